"""Torch modules node by node against the module run whole, eagerly: time, and bits.

Owns: running one batch through a torch executor's nodes and through the module itself, side by side.
Must not know: the scheduler, threads.

Both sides do the same work: gather the rows into a batch, run it in inference mode, hand out an array per row and
output. The time inside the nodes and inside the module alone is reported too.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from bench.common import interleave, ratio
from bench.measure_chain import chain, same_bits
from bench.models import Batch
from graphs import zoo
from graphs.build import load
from lazybatch.executors.base import Model

MODELS = ("resnet50", "bert-base")
QUICK_MODELS = ("mobilenetv2",)


def measure_torch(name: str, batch_sizes: tuple[int, ...], within_s: float) -> list[dict[str, Any]]:
    """One row per batch size. ``within_s``: seconds of measuring for each, warm-up apart."""
    model: Any = load(name)
    return [_measured(name, model, size, within_s) for size in (batch_sizes if model.joinable else (1,))]


def _measured(name: str, model: Model, size: int, within_s: float) -> dict[str, Any]:
    given = dict(zip(zoo.ZOO[name].inputs, zoo.sample(name, size, seed=1).values(), strict=True))
    rows: list[Batch] = [{key: array[k] for key, array in given.items()} for k in range(size)]
    whole_model = model.whole_call()  # type: ignore[attr-defined]
    executor = model.executor(max_batch_size=size)
    nodes_ns: list[int] = []
    whole_ns: list[int] = []
    run = chain(model, executor, rows, nodes_ns)

    def whole() -> list[Batch]:
        feeds = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        start_ns = time.perf_counter_ns()
        made = whole_model(feeds)
        whole_ns.append(time.perf_counter_ns() - start_ns)
        return [{key: array[k].copy() for key, array in made.items()} for k in range(size)]

    try:
        identical = same_bits(run(), whole_model(given))
        times = interleave({"chain": run, "whole": whole}, 200, warm_up=3, within_s=within_s)
    finally:
        executor.shutdown()
    inside = [nodes_ns[-len(times["chain"]) :], whole_ns[-len(times["whole"]) :]]
    return {
        "what": "torch",
        "model": name,
        "batch": size,
        "nodes": len(model.graph),
        "rounds": len(times["chain"]),
        "chain_ms": statistics.median(times["chain"]) / 1e6,
        "whole_ms": statistics.median(times["whole"]) / 1e6,
        "chain_over_whole": ratio(times["chain"], times["whole"]),
        "nodes_over_module": ratio(*inside),
        "chain_over_whole_fastest": min(times["chain"]) / min(times["whole"]),
        "bit_identical": identical,
        "joinable": model.joinable,
    }
