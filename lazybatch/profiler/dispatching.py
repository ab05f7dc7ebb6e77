"""What the engine itself takes per dispatch, measured: rows through the real engine, on the executor that was measured.

Owns: `engine_time`: how rows are kept coming, which gaps between nodes count, and the line through them.
Must not know: how nodes are measured, what becomes of the table, which policy will serve.

Between the end of one node and the start of the next the engine keeps its books, decides, moves rows and resolves
futures. So an engine with the executor under it is kept busy, and the gaps are timed at the executor: no node's time is
in them, whatever the machine's pace, nor the submitting of further rows. It runs whole batches, the plainest decisions
there are, of one row and of as many as fit; medians leave the machine's hiccups out. A gap before a graph's first node
also holds the end of the batch before.

In a loop the engine takes longer after rows have come or gone: states are moved, results handed out. So in a third run
rows join now and then, few and many in turns, and leave between. What gaps are longer by after that, than in quiet
iterations, is the time of moving rows. What their first iteration then takes more itself is not told from the noise of
nodes, and left out.

All of it happens in the calling thread: what callers that share the processor take depends on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple, cast

from lazybatch.core.graph import Loop
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime
from lazybatch.core.policies.continuous import Continuous
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.task import Completion, Merge, Task
from lazybatch.engine import Engine, RequestFuture, ServedModel
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Executor, Model, Row
from lazybatch.metrics import Observer

GAPS_MAX = 200
"""So many gaps before first nodes are enough. One is, where that already takes more than the budget: next to such nodes
the engine's time is nothing."""

_EVERY = 4
"""Iterations from one joining to the next; those who join leave at other ones."""
MOVES_MIN, MOVES_MAX = 10, 100
"""Times that rows come and go: fewer than the first say nothing, and are waited for, up to twice the time there is."""
_MIXED_ROWS = 8
"""In flight where rows come and go: what moving takes hardly depends on those who stay, and more rows are slower."""
ITERATIONS_MAX = 8
"""Of a row in each loop: they only have to be begun and ended."""


class Gap(NamedTuple):
    """Before a node that ran with so many rows. step: iterations that had ended before it."""

    node: int
    rows: int
    ns: int
    step: int = 0


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
        rounds = [_odd(min(count, ITERATIONS_MAX)) for count in rounds]
        rows = [replace(row, trips=tuple(rounds)) for row in rows]
        limit = getattr(executor, "limit", None)
        if limit is not None:
            limit(rounds)

    def run(most: int, mixed: bool) -> _Gaps:
        return _Run(model, executor, rows, most, mixed, budget_ns // (4 if loops and not mixed else 2), clock_ns).gaps()

    few = run(1, mixed=False)
    many = run(size, mixed=False) if size > 1 else few
    opened, goes_on = _line(few.opening, many.opening), _line(few.continuing, many.continuing)
    if not loops:
        return EngineTime(*opened) if getattr(executor, "runs_ahead", False) else EngineTime(*opened, *goes_on)
    move_ns = move_row_ns = 0
    if size > 1 and not all(loop.same_iteration for loop in loops):  # else rows that are alike join and leave nobody
        move_ns, move_row_ns = _moving(run(min(size, _MIXED_ROWS), mixed=True), loops)
    if loops[0].first == 0:  # iterations are most of what is dispatched at such a first node, where there are several
        both = goes_on if many.continuing else opened
        return EngineTime(*both, *both, move_ns, move_row_ns)
    # A row's beginning and its results are in what it takes where its sub-batch begins.
    return EngineTime(*opened, *goes_on, move_ns, max(0, move_row_ns - opened[1]))


def _odd(rounds: int) -> int:
    """So that rows do not leave at the steps at which others join."""
    return rounds if rounds % 2 or rounds < 3 else rounds - 1


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


def _moving(mixed: _Gaps, loops: Sequence[Loop]) -> tuple[int, int]:
    """What the engine takes more after rows came or went, once, and more for each of these rows."""
    inside = [gap for gap in mixed.all if any(loop.first <= gap.node < loop.stop for loop in loops)]
    quiet = [gap.ns for gap in inside if gap.step not in mixed.moved]
    if not quiet or not any(gap.step in mixed.moved for gap in inside):
        return 0, 0
    usual_ns = median(quiet)
    more_ns: dict[int, int] = {}
    for gap in inside:
        if gap.step in mixed.moved:
            more_ns[gap.step] = more_ns.get(gap.step, 0) + round(gap.ns - usual_ns)
    moved = sorted(Gap(0, mixed.moved[step], max(0, ns)) for step, ns in more_ns.items())
    middle = (moved[0].rows + moved[-1].rows) / 2
    few, many = ([gap for gap in moved if (gap.rows > middle) is more] for more in (False, True))
    return _line(few, many or few)


def _median(gaps: Sequence[Gap]) -> tuple[float, float]:
    return median(gap.rows for gap in gaps), median(gap.ns for gap in gaps)


class _Gaps(Observer):
    """Between an engine and its executor: notes how long after the end of a node the next one starts.

    steps: iterations so far. moved: by how many had ended before, the rows that came to others in a loop or left them
    then. loops_first: whether newcomers begin in a loop. all: gaps of both kinds in the order of time.
    """

    def __init__(self, executor: Executor, clock_ns: Callable[[], int], *, loops_first: bool = False) -> None:
        self.opening: list[Gap] = []
        self.continuing: list[Gap] = []
        self.all: list[Gap] = []
        self.steps = 0
        self.moved: Counter[int] = Counter()
        self._came: dict[int, int] = {}
        self._loops_first = loops_first
        self._executor = executor
        self._clock_ns = clock_ns
        self._longest_ns = 0
        self._end_ns: int | None = None
        self._gap_ns: int | None = None

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
        self._longest_ns = max(self._longest_ns, self._end_ns - start_ns)
        return done

    def shutdown(self) -> None:
        """The engine's end is not the executor's."""

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`: the engine says what has just run."""
        if task.opened:
            self._came[task.sub_batch] = len(task.opened)
            if self._loops_first:
                self.moved[self.steps] += len(task.opened)
        if self._gap_ns is not None:
            gap = Gap(task.node, task.rows, self._gap_ns, self.steps)
            (self.opening if task.opened else self.continuing).append(gap)
            self.all.append(gap)

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """See `Observer.stepped`."""
        self.steps += 1
        if 0 < completion.leaving < task.rows:
            self.moved[self.steps] += completion.leaving

    def merged(self, now_ns: int, merge: Merge) -> None:
        """See `Observer.merged`."""
        self.moved[self.steps] += self._came.get(merge.source, 0)


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
        self._until_ns, self._budget_ns = clock_ns() + budget_ns, budget_ns
        self._clock_ns = clock_ns
        self._rows = rows
        self._size = size
        self._mixed = mixed
        self._submitted = 0
        self._open: list[RequestFuture] = []
        loops = model.graph.loops
        self._gaps = _Gaps(executor, clock_ns, loops_first=bool(loops) and loops[0].first == 0)
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
            while not (self._moved_enough() if self._mixed else self._gaps.enough(self._until_ns)):
                self._feed()
                self._engine.step()
        finally:
            self._engine.shutdown(drain=False)
        return self._gaps

    def _moved_enough(self) -> bool:
        late_ns, moves = self._clock_ns() - self._until_ns, len(self._gaps.moved)
        return moves >= MOVES_MAX or late_ns >= (0 if moves >= MOVES_MIN else self._budget_ns)

    def _feed(self) -> None:
        """Submit what is missing to what should be in flight or wait."""
        start_ns = self._clock_ns()
        for future in self._open:
            error = future.exception() if future.done() else None
            if error is not None:
                raise ExecutionError(f"with {self._size} rows in flight under the engine: {error}") from error
        self._open = [future for future in self._open if not future.done()]
        numbers = range(self._submitted, self._submitted + max(0, self._wanted() - len(self._open)))
        if numbers:
            self._open += self._engine.submit(self._model, [self._rows[k % len(self._rows)] for k in numbers])
            self._submitted = numbers.stop
        self._gaps.apart(self._clock_ns() - start_ns)

    def _wanted(self) -> int:
        """Rows that should be in flight or wait: the next batch is always there; or one row begins, others join it,
        and who leaves is replaced later, so that few move and many, and some iterations see nothing of it."""
        if not self._mixed:
            return 2 * self._size
        if not self._open:
            return 1
        return 0 if self._gaps.steps % _EVERY else self._size
