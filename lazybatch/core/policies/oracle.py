"""Oracle, the paper's upper bound of LazyBatching: slack predicted with exact tables instead of Eq. 2.

Owns: `Oracle`, and how many rows a stack makes late.
Must not know: anything `LazyBatching` does not, but the whole latency table. Who is asked when is in `slack_batching`.

The stack is run to its end in thought (`prediction`), node x batch times and merges included, with and without the
newcomers. They are admitted if no row misses its deadline that would make it without them, and none of them misses its
own that could make it alone. Eq. 2 charges batched rows as if they ran one after another, so it refuses much that the
table allows. Where models have loops, rows are followed one by one (`course`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.policies import course
from lazybatch.core.policies.base import View
from lazybatch.core.policies.course import Going
from lazybatch.core.policies.prediction import Running, drain
from lazybatch.core.policies.slack_batching import SlackBatching, is_lost
from lazybatch.core.request import UNBOUNDED_NS


class Outlook(NamedTuple):
    """Everything that shares the processor with newcomers, and how many of its rows will be late without them.

    going: the same as ``stack`` where some model has loops; else None.
    """

    stack: list[Running]
    late: int
    going: list[Going] | None = None


class Oracle(SlackBatching[Outlook]):
    """LazyBatching that knows how long batches take."""

    def __repr__(self) -> str:
        return "Oracle()"

    def _in_flight(self, view: View, now: int) -> Outlook:
        if any(lane.loops for lane in view.lanes):
            going = [Going.of(view.lane_of(entry.model), entry) for entry in view.stack]
            return Outlook([], course.late_rows(going, now), going)
        # What runs now does so on a processor of its own.
        stack = [running(view.lane_of(entry.model), entry) for entry in view.stack if not entry.running]
        return Outlook(stack, late_rows(stack, now))

    def _rows_with_slack(self, lane: Lane, room: int, in_flight: Outlook, now: int) -> int:
        waiting = lane.queue.peek(now, room)
        if in_flight.going is not None:
            lost = [is_lost(lane, request, now) for request in waiting]
            going, late = in_flight.going, in_flight.late

            def makes_late(rows: int) -> bool:
                return course.late_rows([*going, Going.newcomers(lane, waiting[:rows], lost[:rows])], now) > late

            return _most(len(waiting), makes_late)
        deadlines_ns = [UNBOUNDED_NS if is_lost(lane, request, now) else request.deadline_ns for request in waiting]

        def endangers(rows: int) -> bool:
            padded_rows, signature = lane.padded_rows(rows), waiting[0].signature
            newcomers = _of(lane, 0, rows, padded_rows, signature, sorted(deadlines_ns[:rows]))
            return late_rows([*in_flight.stack, newcomers], now) > in_flight.late

        return _most(len(waiting), endangers)


def _most(rows: int, endangers: Callable[[int], bool]) -> int:
    """The most newcomers, at most ``rows``, that endanger nobody.

    More newcomers take longer and have more deadlines: once they endanger someone, more of them do so too. Most often
    either the first one does, or all together do not.
    """
    if endangers(1):
        return 0
    if rows == 1 or not endangers(rows):
        return rows
    return 1 + bisect_left(range(2, rows), True, key=endangers)


def late_rows(stack: Sequence[Running], now: int) -> int:
    """How many rows end after their deadlines if the stack, the last on top, runs to its end without newcomers."""
    for_nothing = dict.fromkeys([entry.lane.model for entry in stack], 0.0)
    return drain([*stack], now, for_nothing, for_nothing).late


def running(lane: Lane, entry: SubBatch) -> Running:
    """A sub-batch in flight; of its latency only the deadlines count."""
    return _of(lane, entry.cursor, len(entry.requests), entry.padded_rows, entry.signature, entry.deadlines_ns)


def _of(
    lane: Lane, cursor: int, rows: int, padded_rows: int | None, signature: Hashable, deadlines_ns: Sequence[int]
) -> Running:
    """deadlines_ns: in ascending order."""
    return Running(lane, cursor, padded_rows or rows, object() if padded_rows else signature, (deadlines_ns,), ())
