"""Measuring: how long each node of a model takes at each batch size, through the executor that will serve it.

Owns: `profile` (model -> latency table) and `Progress`; `verdict` says what a table means for batching.
Must not know: how a node is run, how the engine's own time is told from the nodes' (`dispatching`).

A *pass* (`passes`) opens a sub-batch of b rows, runs its nodes one after the other, each timed, and closes it: the
calls the engine makes, in its order. Passes of the batch sizes are interleaved (`turns`), so that a machine that gets
slower meanwhile (heat, neighbours) slows all cells alike. The numbers in the table are plain quantiles of what was
measured: nothing is smoothed, made monotone or dropped. Last, an engine serves rows on the same executor for a moment,
for what it takes per dispatch itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from lazybatch.core.latency import BATCH_SIZE_MAX
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model, Row
from lazybatch.profiler.dispatching import engine_time
from lazybatch.profiler.judgement import Verdict, verdict
from lazybatch.profiler.padded import Padded, profile_lengths
from lazybatch.profiler.passes import Runner, rounds_of
from lazybatch.profiler.state import State
from lazybatch.profiler.turns import SAMPLES_MIN, WARM_UP_PASSES, next_size
from lazybatch.profiles import LatencyTable, accelerator_of, machine, versions
from lazybatch.program import Stage
from lazybatch.table_loops import KEY, TableLoop, described

__all__ = ["HIGH_QUANTILE", "ITERATIONS", "SAMPLES_MIN", "WARM_UP_PASSES", "Progress", "Verdict", "profile", "verdict"]

ITERATIONS = 16
"""Of a loop in one pass, unless rows make fewer."""
ENGINE_SHARE, ENGINE_MOST_S = 0.2, 1.0
"""Share of the budget, and at most how many seconds of it, for the engine's own time."""
_SAVE_EVERY_NS = 3_000_000_000
HIGH_QUANTILE = "p99 from 100 samples on, p95 from 20 on, else the largest"


class Progress(NamedTuple):
    """How far a profile is: ``share`` 0..1, passes measured, seconds spent, and the batch size measured last."""

    share: float
    passes: int
    elapsed_s: float
    rows: int


def profile(
    model: Model,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    budget_s: float = 60.0,
    repeats: int = 50,
    iterations: int = ITERATIONS,
    inputs: Sequence[Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    resume: str | Path | None = None,
    command: str | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> LatencyTable:
    """Measure a model: node x batch size -> median and high quantile (`HIGH_QUANTILE`), in nanoseconds; and what the
    engine takes besides, on this machine with this model (`LatencyTable.engine`).

    batch_sizes: increasing, starting at 1; a model whose rows cannot be joined is measured at 1 only.
    budget_s: seconds to measure for, of which the engine's time has `ENGINE_SHARE`. Every size gets `SAMPLES_MIN`
    passes after its warm-up even if that takes longer; from then on they take turns until the budget, or ``repeats``
    passes per size, are used up: a size that costs four times as much gets half as many passes.
    iterations: how often a pass goes round each loop of a program, at most; a node's time is that of one iteration.
    Where rows are padded to several lengths, each is measured, with an equal share of the budget; the table of the
    longest holds the others.
    inputs: rows as `predict` takes them, used in turn, all of one (padded) shape; by default the model makes them up
    (`sample_row`). progress: called after each pass, in this thread.
    resume: a file that keeps what has been measured; if it exists, only what is missing is measured and the time
    already spent counts against the budget. It is removed when the profile is complete.
    command: what to record as the command that made the table.

    Raises `InvalidInput` for options out of range, inputs the model does not take, or a damaged ``resume`` file,
    `TableMismatch` when that file is of another model, machine, input or number of threads, `ExecutionError` when a
    node fails.
    """
    if getattr(model, "padded_lengths", ()):
        return profile_lengths(
            profile,
            cast(Padded, model),
            batch_sizes=batch_sizes,
            budget_s=budget_s,
            repeats=repeats,
            inputs=inputs,
            progress=progress,
            resume=resume,
            command=command,
            clock_ns=clock_ns,
        )
    sizes = _check_options(batch_sizes, budget_s, repeats, iterations)
    sizes = sizes if model.joinable else (1,)
    rows = _rows(model, inputs, sizes[-1])
    rounds = rounds_of(model.graph, rows, iterations)
    state = State(model, sizes, rows, Path(resume) if resume is not None else None, rounds, inputs)
    executor = model.executor(max_batch_size=sizes[-1])
    budget_ns = round(budget_s * 1e9)
    engine_ns = round(min(ENGINE_SHARE * budget_s, ENGINE_MOST_S) * 1e9)
    try:
        runner = Runner(model, executor, rows, clock_ns, rounds)
        _measure(runner, state, budget_ns - engine_ns, repeats, progress)
        engine = engine_time(model, executor, rows, sizes[-1], rounds=rounds, budget_ns=engine_ns, clock_ns=clock_ns)
    finally:
        executor.shutdown()
        state.save()
    table = replace(_table(model, state, rounds, command, inputs is None), engine=engine)
    state.forget()
    return table


def _check_options(batch_sizes: Sequence[int], budget_s: float, repeats: int, iterations: int) -> tuple[int, ...]:
    sizes = tuple(batch_sizes)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
        raise InvalidInput(f"batch sizes must be whole numbers, got {list(sizes)}")
    if not sizes or sizes[0] != 1 or any(b <= a for a, b in pairwise(sizes)):
        raise InvalidInput(f"batch sizes must increase from 1, got {list(sizes)}")
    if sizes[-1] > BATCH_SIZE_MAX:  # a table could not hold it, and the memory is planned first
        raise InvalidInput(f"batch size {sizes[-1]} is above {BATCH_SIZE_MAX}, the largest that a table holds")
    if not 0 < budget_s < 1e7:
        raise InvalidInput(f"budget_s must be a positive number of seconds, got {budget_s}")
    if repeats < SAMPLES_MIN:
        raise InvalidInput(f"repeats must be at least {SAMPLES_MIN}, got {repeats}")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise InvalidInput(f"iterations must be a positive whole number, got {iterations!r}")
    return sizes


def _rows(model: Model, inputs: Sequence[Any] | None, count: int) -> list[Row]:
    if inputs is None:
        sample_row = getattr(model, "sample_row", None)
        if sample_row is None:
            raise InvalidInput(f"model {model.name!r} cannot make up rows to measure with: give inputs=[row, ...]")
        inputs = [sample_row(seed) for seed in range(count)]
    if isinstance(inputs, dict | str) or not isinstance(inputs, Sequence) or not inputs:
        raise InvalidInput(f"inputs must be a non-empty sequence of rows, got {type(inputs).__name__}")
    rows = [model.admit(one) for one in inputs]
    for number, row in enumerate(rows):
        if row.signature != rows[0].signature:
            raise InvalidInput(
                f"all rows to measure with must have one shape: row 0 has {rows[0].signature!r}, "
                f"row {number} has {row.signature!r}"
            )
    return rows


def _measure(
    runner: Runner, state: State, budget_ns: int, repeats: int, progress: Callable[[Progress], None] | None
) -> None:
    sizes = list(state.samples_ns)
    clock_ns = runner.clock_ns
    already_ns = sum(state.spent_ns.values())
    start_ns = saved_ns = clock_ns()
    cold = dict.fromkeys(sizes, WARM_UP_PASSES)
    took_ns: dict[int, int] = {}
    while True:
        elapsed_ns = already_ns + clock_ns() - start_ns
        size = next_size(state, repeats, budget_ns, budget_ns - elapsed_ns, took_ns)
        if size is None:
            return
        while cold[size]:
            _timed(runner, state, size, took_ns)
            cold[size] -= 1
        state.add(size, _timed(runner, state, size, took_ns))
        now_ns = clock_ns()
        if now_ns - saved_ns > _SAVE_EVERY_NS:
            state.save()
            saved_ns = now_ns
        if progress is not None:
            elapsed_ns = already_ns + now_ns - start_ns
            passes = sum(state.passes(size) for size in sizes)
            share = max(min(1.0, elapsed_ns / budget_ns), passes / (repeats * len(sizes)))
            # Beyond the budget only the passes that every size must have are left.
            must = sum(min(SAMPLES_MIN, state.passes(size)) for size in sizes) / (SAMPLES_MIN * len(sizes))
            progress(Progress(min(share, must), passes, elapsed_ns / 1e9, size))


def _timed(runner: Runner, state: State, size: int, took_ns: dict[int, int]) -> list[int]:
    """One pass, with its whole time (gather and scatter included) counted against the budget."""
    start_ns = runner.clock_ns()
    times_ns = runner.run(size)
    took_ns[size] = runner.clock_ns() - start_ns
    state.spent_ns[size] += took_ns[size]
    return times_ns


def _table(model: Model, state: State, rounds: Sequence[int], command: str | None, made_up: bool) -> LatencyTable:
    cells = [[sorted(samples[node]) for samples in state.samples_ns.values()] for node in range(len(state.nodes))]
    provenance: dict[str, object] = {
        "fingerprint": model.fingerprint,
        "machine": machine(accelerator_of(model)),
        "threads": getattr(model, "threads", None),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command or f"lazybatch.profile({model.name!r})",
        "joinable": model.joinable,
        "reason": model.reason,
        "inputs": "made up" if made_up else "given",
        "signature": state.identity["rows"],
        "samples": {str(size): state.passes(size) for size in state.samples_ns},
        "high_quantile": HIGH_QUANTILE,
    }
    if model.graph.loops:
        provenance[KEY] = described(_loops(model, rounds))
    return LatencyTable(
        model.name,
        state.nodes,
        tuple(state.samples_ns),
        tuple(tuple(_median(cell) for cell in node) for node in cells),
        tuple(tuple(_high(cell) for cell in node) for node in cells),
        provenance,
    )


def _loops(model: Model, rounds: Sequence[int]) -> list[TableLoop]:
    """What the table keeps of the graph's loops."""
    program = getattr(model, "program", None)
    return [
        TableLoop(loop, program is not None and _counted(program.stage(loop.name)), iterations)
        for loop, iterations in zip(model.graph.loops, rounds, strict=True)
    ]


def _counted(stage: Stage) -> bool:
    return stage.loop is not None and stage.loop.counted is not None


def _median(ordered: Sequence[int]) -> int:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _high(ordered: Sequence[int]) -> int:
    count = len(ordered)
    percent = 99 if count >= 100 else 95 if count >= 20 else 100
    return ordered[-(-count * percent // 100) - 1]
