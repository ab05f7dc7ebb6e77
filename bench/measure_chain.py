"""Node by node against the whole model: time, and bits.

Owns: running one batch through an executor's nodes and through one whole session, side by side.
Must not know: the scheduler, threads.

The whole model is one ONNX Runtime session with all optimisations, on the thread pool and arena the nodes use. It is
called in both ways there are, plainly and with inputs and outputs bound to memory that stays; the faster of the two is
the base. Both sides do the same work: gather the rows into a batch, run it, hand out results per row. The time inside
the runtime alone is reported too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.common import interleave, ratio
from bench.models import Batch, Subject
from lazybatch.executors.base import Executor, Model
from lazybatch.executors.ort.session import open_session


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


def whole_run(session: Any, rows: list[Batch]) -> Callable[[], list[Batch]]:
    """A call that gathers the rows, runs the whole session plainly, and hands out a copy per row."""
    names = [value.name for value in session.get_outputs()]

    def run() -> list[Batch]:
        feeds = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return _per_row(dict(zip(names, session.run(names, feeds), strict=True)), len(rows))

    return run


def whole_bound(session: Any, rows: list[Batch], inside_ns: list[int]) -> Callable[[], list[Batch]]:
    """The same with inputs and outputs bound to memory that stays; appends the time in the runtime to ``inside_ns``."""
    given = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    names = [value.name for value in session.get_outputs()]
    made = {name: np.array(array) for name, array in zip(names, session.run(names, given), strict=True)}
    binding, clock = session.io_binding(), time.perf_counter_ns
    for name, array in given.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in made.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def run() -> list[Batch]:
        for name, array in given.items():
            np.stack([row[name] for row in rows], out=array)
        start_ns = clock()
        session.run_with_iobinding(binding)
        inside_ns.append(clock() - start_ns)
        return _per_row(made, len(rows))

    return run


def _per_row(outputs: Mapping[str, Any], count: int) -> list[Batch]:
    return [{name: array[k].copy() for name, array in outputs.items()} for k in range(count)]


def same_bits(results: Mapping[int, Mapping[str, Any]], whole: Mapping[str, Any]) -> bool:
    """Whether every row's outputs are, bit for bit, the rows of the whole model's outputs."""
    return all(
        np.ascontiguousarray(outputs[name]).tobytes() == np.ascontiguousarray(array[k]).tobytes()
        for k, outputs in results.items()
        for name, array in whole.items()
    )


def measure_chain(subject: Subject, batch_sizes: tuple[int, ...], within_s: float) -> list[dict[str, Any]]:
    """One row per batch size. ``within_s``: seconds of measuring for each, warm-up apart."""
    model = subject.load()
    session = open_session(subject.path, optimise=True)
    names = [value.name for value in session.get_outputs()]
    executor = model.executor(max_batch_size=max(batch_sizes) if model.joinable else 1)
    measured = []
    try:
        for size in batch_sizes if model.joinable else (1,):
            feeds = subject.batch(size, 0)
            rows = subject.rows(size)
            nodes_ns: list[int] = []
            bound_ns: list[int] = []
            run = chain(model, executor, rows, nodes_ns)
            variants: dict[str, Callable[[], object]] = {
                "chain": run,
                "run": whole_run(session, rows),
                "bound": whole_bound(session, rows, bound_ns),
            }
            identical = same_bits(run(), dict(zip(names, session.run(names, feeds), strict=True)))
            times = interleave(variants, 200, warm_up=3, within_s=within_s)
            nodes, inside = nodes_ns[-len(times["chain"]) :], bound_ns[-len(times["bound"]) :]
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
                    "nodes_over_session": ratio(nodes, inside),
                    # Fastest against fastest: where neighbours disturb, closer to the truth than medians.
                    "chain_over_whole_fastest": min(times["chain"]) / min(times["run"] + times["bound"]),
                    "bit_identical": identical,
                    "joinable": model.joinable,
                }
            )
    finally:
        executor.shutdown()
    return measured
