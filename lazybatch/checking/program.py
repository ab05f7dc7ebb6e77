"""What `check` says of a program: of every stage what it says of a model, and whether rows are what they are alone.

Owns: `check_program`, and the run of rows that join and leave at random.
Must not know: how models are proved, how programs are run, printing.

A stage's proof is of one run of its model. The program's own check is of what comes after: carried state, growing
state, rows at different iterations, rows that leave. Rows are served one at a time, then again through the batcher
under a policy that lets any number of them in at any node; every row must get the same answer, in as many iterations.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lazybatch.api import LazyBatcher
from lazybatch.checking.reports import ProgramReport, StageReport
from lazybatch.checking.rows import varied_rows
from lazybatch.checking.single import check_model
from lazybatch.core.policies.base import Choice, Start, View, most_urgent_first
from lazybatch.core.task import Reason
from lazybatch.engine import Stats
from lazybatch.errors import InvalidInput, LazyBatchError
from lazybatch.executors.program.in_place import could_be_in_place
from lazybatch.executors.program.model import ProgramModel
from lazybatch.partition.proof.traits import close, difference

ROWS, ROWS_LEAST = 24, 4
SECONDS = 20.0
"""For made-up rows served alone, as the first of them lets expect; a slow program is tried with fewer."""
ROWS_MAX = 8
"""Of a batch of the joined run."""
TOLERANCE = 1e-3
"""Allowed difference of floats over their row's magnitude: rounding grows from iteration to iteration."""
_SHOWN = 3
_JOIN_SHARE = 0.3


def check_program(model: ProgramModel, inputs: Sequence[Any] | None = None, *, seed: int = 0) -> ProgramReport:
    """Check every stage, then the program with rows that join at random.

    inputs: rows to try, as `predict` takes them; None: made up. Raises `ModelError`, `InvalidInput` as `check` does.
    """
    notes: list[str] = []
    try:
        rows = varied_rows(model, ROWS, seed) if inputs is None else list(inputs)
    except InvalidInput as error:
        rows = []
        notes.append(f"no rows could be made up to try it with: {error}")
    limit_s = SECONDS if inputs is None else None
    alone, joined, stats = _served(model, rows, seed, limit_s) if rows else ([], [], None)
    different, gap = _compared(alone, joined)
    failed = [one for one in alone if isinstance(one, Exception)]
    if failed and len(failed) == len(alone):
        notes.append(f"no row could be served: {failed[0]}")
    answered = [one for one in alone if not isinstance(one, Exception)]
    loops = [loop.name for loop in model.graph.loops]
    return ProgramReport(
        model=model.name,
        nodes=len(model.graph),
        joinable=model.joinable,
        reason=model.reason,
        stages=tuple(_stage(model, name) for name in model.models),
        rows=len(alone),
        failed=len(failed),
        equal=not different if answered or different else None,
        different=tuple(different[:_SHOWN]),
        joined_max_abs_diff=gap,
        trips_max_seen={name: max((one.trips[k] for one in answered), default=0) for k, name in enumerate(loops)},
        merges=0 if stats is None else stats.merges,
        left_early=0 if stats is None else stats.left_early,
        iterations=0 if stats is None else stats.iterations,
        notes=tuple(notes),
    )


def _stage(model: ProgramModel, name: str) -> StageReport:
    found = check_model(model.models[name])
    loop = next((loop for loop in model.graph.loops if loop.name == name), None)
    why = None
    if loop is not None and loop.same_iteration:
        repeat = model.program.stage(name).loop
        iteration = None if repeat is None else repeat.iteration
        why = f"its input {iteration!r} has no batch axis: all rows of a run are given one iteration number"
    plan = next(plan for plan in model.plans if plan.name == name)
    notes = list(found.notes)
    able = could_be_in_place(plan)
    if able:
        states = ", ".join(map(repr, able))
        notes.append(f"{states} could be kept in place (in_place): an iteration would copy nothing of it")
    return StageReport(
        stage=name,
        nodes=found.nodes,
        loop=loop is not None,
        joinable=plan.alone is None,
        reason=plan.alone,
        same_iteration=None if loop is None else loop.same_iteration,
        same_iteration_reason=why,
        max_abs_diff=found.max_abs_diff,
        chain_over_whole=found.chain_over_whole,
        identical=found.identical,
        notes=tuple(notes),
        in_place=() if plan.loop is None else tuple(sorted(plan.loop.cycle.in_place)),
    )


class _Anyhow:
    """A policy that lets any number of rows in at any node, by a seed: what no plan would do must be right as well."""

    needs_table = False

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def decide(self, view: View, now: int) -> Choice:
        """Start a few rows, or go on."""
        lane = most_urgent_first(view.lanes, now)[0]
        room = lane.rows_max - lane.table.rows
        if view.active is not None and (room < 1 or self._rng.random() > _JOIN_SHARE):
            return None
        rows = min(room, len(lane.queue), self._rng.randint(1, 3))
        return Start(lane, rows, Reason.START_IDLE if view.active is None else Reason.JOIN_STEP)


def _served(
    model: ProgramModel, rows: Sequence[Any], seed: int, limit_s: float | None
) -> tuple[list[Any], list[Any], Stats]:
    """What every row gets alone and joined, errors in their places; and what happened when they joined."""
    options: dict[str, Any] = {"max_batch_size": ROWS_MAX, "queue_capacity": max(ROWS_MAX, len(rows))}
    with LazyBatcher(model, policy="serial", **options) as batcher:
        if limit_s is not None:
            start_s = time.perf_counter()
            batcher.predict_batch(rows[:1], return_exceptions=True)
            rows = rows[: max(ROWS_LEAST, int(limit_s / (time.perf_counter() - start_s)))]
        alone = batcher.predict_batch(rows, return_exceptions=True)
    with LazyBatcher(model, policy=_Anyhow(seed), **options) as batcher:
        joined = batcher.predict_batch(rows, return_exceptions=True)
        return alone, joined, batcher.stats()


def _compared(alone: Sequence[Any], joined: Sequence[Any]) -> tuple[list[str], float | None]:
    """What differs, in words, and the largest difference of floats."""
    different: list[str] = []
    gaps: list[float] = []
    for number, (one, other) in enumerate(zip(alone, joined, strict=True)):
        if isinstance(one, LazyBatchError) or isinstance(other, LazyBatchError):
            if type(one) is not type(other):
                different.append(f"row {number}: alone {_told(one)}, joined {_told(other)}")
            continue
        if one.trips != other.trips:
            different.append(f"row {number}: {list(one.trips)} iterations alone, {list(other.trips)} joined")
            continue
        for name, want in one.items():
            got = other[name]
            gap = difference(np.asarray(got), np.asarray(want))
            gaps += [] if np.isnan(gap) else [gap]
            if got.shape != want.shape or not close(got, want, want.dtype.name, TOLERANCE):
                different.append(f"row {number}: output {name!r} differs by {gap:.3g}")
    return different, max(gaps, default=None)


def _told(result: Any) -> str:
    return f"{type(result).__name__} ({result})" if isinstance(result, Exception) else "an answer"
