"""What the engine itself takes per dispatch, measured: rows through the real engine, on the executor that was measured.

Owns: `engine_time`: how rows are kept coming, which gaps between nodes count, and the line through them.
Must not know: how nodes are measured, what becomes of the table, which policy will serve.

Between the end of one node and the start of the next the engine keeps its books, decides, moves rows and resolves
futures. So an engine with the executor under it is kept busy, and the gaps are timed at the executor: no node's time is
in them, whatever the machine's pace, nor the submitting of further rows. It runs whole batches, the plainest decisions
there are, of one row and of as many as fit; medians leave the machine's hiccups out. A gap before a graph's first node
also holds the end of the batch before.

In a loop an iteration takes longer after rows have come and gone, before its nodes and in them: states are moved. So in
a third run rows join and leave at every second step. What the steps in between take less is counted where newcomers
begin: letting rows in costs as much, and whole batches need not pay for it.

All of it happens in the calling thread: what callers that share the processor take depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple, cast

from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime
from lazybatch.core.policies.continuous import Continuous
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.task import Completion, Task
from lazybatch.engine import Engine, RequestFuture, ServedModel
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Executor, Model, Row
from lazybatch.metrics import Observer

GAPS_MAX = 200
"""So many gaps before first nodes are enough. One is, where that already takes more than the budget: next to such nodes
the engine's time is nothing."""

_EVERY = 2
"""Iterations from one joining to the next."""
ITERATIONS_MAX = 8
"""Of a row in each loop: they only have to be begun and ended."""


class Gap(NamedTuple):
    """Before a node that ran with so many rows. joined: in the first iteration of newcomers. run_ns: of the node."""

    node: int
    rows: int
    ns: int
    joined: bool = False
    run_ns: int = 0


def engine_time(
    model: Model,
    executor: Executor,
    rows: Sequence[Row],
    size: int,
    *,
    rounds: Sequence[int] = (),
    budget_ns: int,
    clock_ns: Callable[[], int],
) -> EngineTime:
    """Measure with one row and with ``size`` rows in flight, about ``budget_ns`` in all; the executor stays usable.

    rows: of one shape, used in turn. rounds: per loop of the model's graph, the iterations that rows can make. Where
    the executor runs ahead, what the engine does between the nodes of a chain takes no time of the device's, and is 0.
    Raises `ExecutionError` when a row fails.
    """
    loops = model.graph.loops
    if loops:
        rounds = [min(count, ITERATIONS_MAX) for count in rounds]
        rows = [replace(row, trips=tuple(rounds)) for row in rows]
        limit = getattr(executor, "limit", None)
        if limit is not None:
            limit(rounds)

    def run(most: int, mixed: bool) -> _Gaps:
        return _Run(model, executor, rows, most, mixed, budget_ns // (3 if loops else 2), clock_ns).gaps()

    few = run(1, mixed=False)
    many = run(size, mixed=False) if size > 1 else few
    opened, goes_on = _line(few.opening, many.opening), _line(few.continuing, many.continuing)
    if not loops:
        return EngineTime(*opened) if getattr(executor, "runs_ahead", False) else EngineTime(*opened, *goes_on)
    mixed = run(size, mixed=True)
    if loops[0].first == 0:
        # Iterations are most of what is dispatched at such a first node, and newcomers join them.
        both = _line(few.opening + few.continuing, mixed.opening + mixed.continuing)
        return EngineTime(*both, *both)
    return EngineTime(_joining_ns(mixed, opened[1]), opened[1], *goes_on)


def _line(few: Sequence[Gap], many: Sequence[Gap]) -> tuple[int, int]:
    """What a dispatch takes, and more for each row, from gaps with few rows and with many; 0 where none was seen."""
    if not few or not many:
        return 0, 0
    (fewest, low_ns), (most, high_ns) = _median(few), _median(many)
    if most <= fewest or high_ns <= low_ns:  # more rows never take less: that is noise
        return round((low_ns + high_ns) / 2), 0
    per_row = (high_ns - low_ns) / (most - fewest)
    fixed = low_ns - per_row * fewest
    return (round(fixed), round(per_row)) if fixed > 0 else (0, round(high_ns / most))


def _joining_ns(mixed: _Gaps, row_ns: int) -> int:
    """What letting rows into a loop takes besides so much per row, with what their first iteration then takes more."""
    rows, joining_ns = _median(mixed.opening)
    for node in {gap.node for gap in mixed.continuing}:
        there = [gap for gap in mixed.continuing if gap.node == node]
        fresh, usual = ([gap.ns + gap.run_ns for gap in there if gap.joined is joined] for joined in (True, False))
        if fresh and usual:
            joining_ns += median(fresh) - median(usual)
    return max(0, round(joining_ns - row_ns * rows))


def _median(gaps: Sequence[Gap]) -> tuple[float, float]:
    return median(gap.rows for gap in gaps), median(gap.ns for gap in gaps)


class _Gaps(Observer):
    """Between an engine and its executor: notes how long after the end of a node the next one starts, once `counting`.

    steps: iterations so far.
    """

    def __init__(self, executor: Executor, clock_ns: Callable[[], int]) -> None:
        self.opening: list[Gap] = []
        self.continuing: list[Gap] = []
        self.counting = False
        self.steps = 0
        self._executor = executor
        self._clock_ns = clock_ns
        self._longest_ns = 0
        self._end_ns: int | None = None
        self._gap_ns: int | None = None
        self._run_ns = 0
        self._joined = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def apart(self, spent_ns: int) -> None:
        """So much of the gap that is going on is not the engine's."""
        if self._end_ns is not None:
            self._end_ns += spent_ns

    def enough(self, until_ns: int) -> bool:
        """Whether no further node is to run: enough was seen, or one gap at least and the next might end too late."""
        seen = len(self.opening)
        return seen >= GAPS_MAX or (seen > 0 and self._clock_ns() + self._longest_ns > until_ns)

    def run(self, sub_batch: int, node: int) -> Collection[int] | None:
        """See `Executor.run`."""
        start_ns = self._clock_ns()
        self._gap_ns = None if self._end_ns is None else start_ns - self._end_ns
        done = self._executor.run(sub_batch, node)
        self._end_ns = self._clock_ns()
        self._run_ns = self._end_ns - start_ns
        self._longest_ns = max(self._longest_ns, self._run_ns)
        return done

    def shutdown(self) -> None:
        """The engine's end is not the executor's."""

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`: the engine says what has just run."""
        self._joined |= bool(task.opened)
        if self.counting and self._gap_ns is not None:
            gap = Gap(task.node, task.rows, self._gap_ns, self._joined, self._run_ns)
            (self.opening if task.opened else self.continuing).append(gap)

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """See `Observer.stepped`."""
        self.steps += 1
        self._joined = False


class _Run:
    """An engine that is kept busy with so many rows in flight: whole batches, or ``mixed``, coming and going."""

    def __init__(
        self,
        model: Model,
        executor: Executor,
        rows: Sequence[Row],
        size: int,
        mixed: bool,
        budget_ns: int,
        clock_ns: Callable[[], int],
    ) -> None:
        self._until_ns = clock_ns() + budget_ns
        self._clock_ns = clock_ns
        self._rows = rows
        self._size = size
        # Those that join a loop at once: as many as leave it, when all stand at different iterations.
        iterations = sum(count or 1 for count in rows[0].trips)
        self._share = min(size, -(-_EVERY * size // iterations)) if mixed else size
        self._mixed = mixed
        self._submitted = 0
        self._open: list[RequestFuture] = []
        self._gaps = _Gaps(executor, clock_ns)
        spec = LaneSpec(
            model.graph,
            max_batch_size=size,
            queue_capacity=2 * size,
            joinable=model.joinable,
            length=rows[0].length,
        )
        served = ServedModel(spec, cast(Executor, self._gaps))
        policy = Continuous() if mixed else GraphBatching()
        self._model = served.called
        self._engine = Engine([served], policy, isolate_failures=False, observers=[self._gaps], threaded=False)

    def gaps(self) -> _Gaps:
        """Those between nodes, when enough were seen."""
        try:
            while not self._gaps.enough(self._until_ns):
                self._feed()
                self._engine.step()
        finally:
            self._engine.shutdown(drain=False)
        return self._gaps

    def _feed(self) -> None:
        """Submit what is missing to what should be in flight or wait: always the next batch, or few by few."""
        start_ns = self._clock_ns()
        for future in self._open:
            error = future.exception() if future.done() else None
            if error is not None:
                raise ExecutionError(f"with {self._size} rows in flight under the engine: {error}") from error
        self._open = [future for future in self._open if not future.done()]
        most = self._size + self._share
        wanted = min(most, self._share * (1 + self._gaps.steps // _EVERY)) if self._mixed else most
        numbers = range(self._submitted, self._submitted + max(0, wanted - len(self._open)))
        if numbers:
            self._open += self._engine.submit(self._model, [self._rows[k % len(self._rows)] for k in numbers])
            self._submitted = numbers.stop
        self._gaps.apart(self._clock_ns() - start_ns)
        self._gaps.counting = wanted == most
