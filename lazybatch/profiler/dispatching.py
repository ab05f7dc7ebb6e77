"""What the engine itself takes per dispatch, measured: rows through the real engine, on the executor that was measured.

Owns: `engine_time`: how batches are kept coming, which gaps between nodes count, and the line through them.
Must not know: how nodes are measured, what becomes of the table, which policy will serve.

Between the end of one node and the start of the next the engine keeps its books, decides, moves rows and resolves
futures. So an engine with the executor under it is given more than it can run at once, and the gaps are timed at the
executor: no node's time is in them, whatever the machine's pace. Batches are whole ("graph"), the plainest decision
there is, and of one row or of as many as fit. Medians leave the machine's hiccups out. Gaps before a graph's first node
also hold the end of the batch before.

It runs in the calling thread. What callers take that share the processor depends on them, and is not the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, cast

from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.engine import Engine, RequestFuture, ServedModel
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Executor, Model, Row

GAPS_MAX = 200
"""So many gaps before first nodes are enough at a size. One is, where that already takes more than the budget: next to
such nodes the engine's time is nothing."""
_BATCHES = 5
"""Full batches that wait when the engine starts; all but the first follow on another."""


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
    """Measure with batches of one row and of ``size``, about ``budget_ns`` in all; the executor stays usable.

    rows: of one shape, used in turn. rounds: per loop of the model's graph, the iterations that the executor was told
    rows make. Raises `ExecutionError` when a row fails.
    """
    if rounds:
        rows = [replace(row, trips=tuple(rounds)) for row in rows]
    sizes = sorted({1, size})
    found = [_gaps(model, executor, rows, one, budget_ns // len(sizes), clock_ns) for one in sizes]
    goes_on = _line(sizes, [gaps.continuing_ns for gaps in found])
    loops = model.graph.loops
    if loops and loops[0].first == 0:
        # Iterations are most of what is dispatched at such a first node, and batches begin among them.
        return EngineTime(*goes_on, *goes_on)
    return EngineTime(*_line(sizes, [gaps.opening_ns for gaps in found]), *goes_on)


def _line(sizes: Sequence[int], gaps_ns: Sequence[Sequence[int]]) -> tuple[int, int]:
    """What a dispatch takes, and more for each row; nothing where none was seen."""
    if not all(gaps_ns):
        return 0, 0
    medians = [median(gaps) for gaps in gaps_ns]
    if len(sizes) == 1 or medians[1] <= medians[0]:  # more rows never take less: that is noise
        return round(sum(medians) / len(medians)), 0
    per_row = (medians[1] - medians[0]) / (sizes[1] - sizes[0])
    return max(0, round(medians[0] - per_row)), round(per_row)


class _Gaps:
    """An executor under the engine that notes, for sub-batches of one size, how long after a node the next starts."""

    def __init__(self, executor: Executor, size: int, clock_ns: Callable[[], int]) -> None:
        self.opening_ns: list[int] = []
        self.continuing_ns: list[int] = []
        self._executor = executor
        self._size = size
        self._clock_ns = clock_ns
        self._rows = 0
        self._opened = False
        self._longest_ns = 0
        self._end_ns: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def enough(self, until_ns: int) -> bool:
        """Whether no further node is to run: enough was seen, or one gap at least and the next might end too late."""
        seen = len(self.opening_ns)
        return seen >= GAPS_MAX or (seen > 0 and self._clock_ns() + self._longest_ns > until_ns)

    def pause(self) -> None:
        """The engine has had nothing to do: the gap before the next node is not its own."""
        self._end_ns = None

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """See `Executor.open`."""
        self._rows, self._opened = len(rows), True
        self._executor.open(sub_batch, rows, padded_rows)

    def run(self, sub_batch: int, node: int) -> Collection[int] | None:
        """See `Executor.run`."""
        start_ns = self._clock_ns()
        if self._end_ns is not None and self._rows == self._size:
            (self.opening_ns if self._opened else self.continuing_ns).append(start_ns - self._end_ns)
        self._opened = False
        done = self._executor.run(sub_batch, node)
        self._end_ns = self._clock_ns()
        self._longest_ns = max(self._longest_ns, self._end_ns - start_ns)
        return done

    def shutdown(self) -> None:
        """The engine's end is not the executor's."""


def _gaps(
    model: Model, executor: Executor, rows: Sequence[Row], size: int, budget_ns: int, clock_ns: Callable[[], int]
) -> _Gaps:
    """Give an engine batches of this size until enough gaps were seen."""
    until_ns = clock_ns() + budget_ns
    gaps = _Gaps(executor, size, clock_ns)
    spec = LaneSpec(
        model.graph,
        max_batch_size=size,
        queue_capacity=_BATCHES * size,
        joinable=model.joinable,
        length=rows[0].length,
    )
    served = ServedModel(spec, cast(Executor, gaps))
    engine = Engine([served], GraphBatching(), isolate_failures=False, threaded=False)
    given = [rows[number % len(rows)] for number in range(_BATCHES * size)]
    try:
        while not gaps.enough(until_ns):
            gaps.pause()
            futures = engine.submit(served.called, given)
            while engine.step() and not gaps.enough(until_ns):
                pass
            _check(size, futures)
    finally:
        engine.shutdown(drain=False)
    return gaps


def _check(size: int, futures: Sequence[RequestFuture]) -> None:
    """Raise for a row that failed; those that were not needed have not ended."""
    for future in futures:
        error = future.exception() if future.done() else None
        if error is not None:
            raise ExecutionError(f"in batches of {size} under the engine: {error}") from error
