"""Node by node against the whole model: time, and bits.

Owns: running one batch through an executor's nodes and through one whole session, side by side.
Must not know: the scheduler, threads.

The whole model is one ONNX Runtime session with all optimisations, on the thread pool and arena the nodes use. It is
called in both ways there are, plainly and with inputs and outputs bound beforehand; the faster of the two is the
base. The chain is all that serving a batch takes: gathering rows, every node, results per row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import lazybatch as lb
from bench.common import interleave, ratio
from bench.models import Batch, Subject
from lazybatch.executors.base import Executor, Model
from lazybatch.executors.ort_session import open_session, runtime


def chain(model: Model, executor: Executor, rows: list[Batch], nodes_ns: list[int]) -> Callable[[], dict[int, Any]]:
    """A call that serves the rows as one sub-batch; appends the time inside nodes to ``nodes_ns``."""
    admitted = {k: model.admit(row) for k, row in enumerate(rows)}
    count, clock = len(model.graph), time.perf_counter_ns

    def run() -> dict[int, Any]:
        executor.open(0, admitted, len(admitted))
        start_ns = clock()
        for node in range(count):
            executor.run(0, node)
        nodes_ns.append(clock() - start_ns)
        return executor.close(0)

    return run


def whole_bound(session: Any, feeds: Batch) -> Callable[[], None]:
    """A call of the whole session with inputs and outputs bound to memory that stays."""
    ort = runtime()
    outputs = [value.name for value in session.get_outputs()]
    binding = session.io_binding()
    kept = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for name, value in kept.items():
        binding.bind_ortvalue_input(name, value)
    for name, array in zip(outputs, session.run(outputs, feeds), strict=True):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)


def same_bits(results: Mapping[int, Mapping[str, Any]], whole: Mapping[str, Any]) -> bool:
    """Whether every row's outputs are, bit for bit, the rows of the whole model's outputs."""
    return all(
        np.ascontiguousarray(outputs[name]).tobytes() == np.ascontiguousarray(array[k]).tobytes()
        for k, outputs in results.items()
        for name, array in whole.items()
    )


def measure_chain(subject: Subject, batch_sizes: tuple[int, ...], within_s: float) -> list[dict[str, Any]]:
    """One row per batch size. ``within_s``: seconds of measuring for each, warm-up apart."""
    model = lb.load(subject.path)
    session = open_session(subject.path, optimise=True)
    names = [value.name for value in session.get_outputs()]
    executor = model.executor(max_batch_size=max(batch_sizes) if model.joinable else 1)
    measured = []
    try:
        for size in batch_sizes if model.joinable else (1,):
            feeds = subject.batch(size, 0)
            nodes_ns: list[int] = []
            run = chain(model, executor, subject.rows(size), nodes_ns)
            variants: dict[str, Callable[[], object]] = {
                "chain": run,
                "run": lambda feeds=feeds: session.run(names, feeds),  # type: ignore[misc]
                "bound": whole_bound(session, feeds),
            }
            identical = same_bits(run(), dict(zip(names, session.run(names, feeds), strict=True)))
            times = interleave(variants, 200, warm_up=3, within_s=within_s)
            nodes = nodes_ns[-len(times["chain"]) :]
            medians = {name: statistics.median(values) for name, values in times.items()}
            base = min(("run", "bound"), key=medians.__getitem__)
            measured.append(
                {
                    "what": "chain",
                    "model": subject.name,
                    "batch": size,
                    "nodes": len(model.graph),
                    "rounds": len(nodes),
                    "chain_ms": medians["chain"] / 1e6,
                    "nodes_ms": statistics.median(nodes) / 1e6,
                    "whole_run_ms": medians["run"] / 1e6,
                    "whole_bound_ms": medians["bound"] / 1e6,
                    "chain_over_whole": ratio(times["chain"], times[base]),
                    "chain_over_run": ratio(times["chain"], times["run"]),
                    "chain_over_bound": ratio(times["chain"], times["bound"]),
                    "nodes_over_bound": ratio(nodes, times["bound"]),
                    # Fastest against fastest: where neighbours disturb, closer to the truth than medians.
                    "chain_over_whole_fastest": min(times["chain"]) / min(times["run"] + times["bound"]),
                    "bit_identical": identical,
                    "joinable": model.joinable,
                }
            )
    finally:
        executor.shutdown()
    return measured
