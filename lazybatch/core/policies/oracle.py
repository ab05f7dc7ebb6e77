"""Oracle, the paper's upper bound of LazyBatching: slack predicted with exact tables instead of Eq. 2.

Owns: `Oracle`, and the exact course of a stack under its admission.
Must not know: anything `LazyBatching` does not, but the whole latency table. Who is asked when is in `slack_batching`.

The stack is run to its end in thought, node x batch times and merges included, with and without the newcomers. They are
admitted if no row misses its deadline that would make it without them, and none of them misses its own that could make
it alone. Eq. 2 charges batched rows as if they ran one after another, so it refuses much that the table allows. Where
models have loops, rows are followed one by one (`course`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from lazybatch.core.lane import Lane
from lazybatch.core.policies import course
from lazybatch.core.policies.base import View
from lazybatch.core.policies.course import Going
from lazybatch.core.policies.slack_batching import SlackBatching, is_lost
from lazybatch.core.request import UNBOUNDED_NS


class Standing(NamedTuple):
    """A sub-batch of ``rows``, run as ``executed``, and the ascending deadlines of those of its rows that count."""

    lane: Lane
    cursor: int
    rows: int
    executed: int
    signature: Hashable
    deadlines_ns: list[int]


class Outlook(NamedTuple):
    """Everything that shares the processor with newcomers, and how many of its rows will be late without them.

    going: the same as ``stack`` where some model has loops; else None.
    """

    stack: list[Standing]
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
        stack = [
            Standing(
                view.lane_of(entry.model),
                entry.cursor,
                len(entry.requests),
                entry.padded_rows or len(entry.requests),
                entry.signature,
                entry.deadlines_ns,
            )
            for entry in view.stack
            if not entry.running  # on a processor of its own
        ]
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
            executed = lane.padded_rows(rows) or rows
            newcomers = Standing(lane, 0, rows, executed, waiting[0].signature, sorted(deadlines_ns[:rows]))
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


def late_rows(stack: Sequence[Standing], now: int) -> int:
    """How many rows end after their deadlines if the stack, the last on top, runs to its end without newcomers.

    Follows the BatchTable: a sub-batch that comes to where an older one of its model stands merges with it if it may.
    """
    left = list(stack)
    late = 0
    while left:
        top = left.pop()
        lane, cursor, rows, executed, signature, deadlines_ns = top
        sums_ns = lane.sums_ns[executed]
        place = next((place for place in reversed(range(len(left))) if left[place].lane is lane), None)
        if place is None or not _meet(left[place], top):
            now += sums_ns[-1] - sums_ns[cursor]
            late += bisect_left(deadlines_ns, now)
        else:
            mate = left.pop(place)
            now += sums_ns[mate.cursor] - sums_ns[cursor]
            rows += mate.rows
            left.append(Standing(lane, mate.cursor, rows, rows, signature, sorted(deadlines_ns + mate.deadlines_ns)))
    return late


def _meet(lower: Standing, upper: Standing) -> bool:
    rows, sizes = lower.rows + upper.rows, upper.lane.spec.allowed_sizes
    return (
        upper.cursor <= lower.cursor
        and lower.signature == upper.signature
        and lower.rows == lower.executed
        and upper.rows == upper.executed
        and rows <= upper.lane.rows_max
        and (not sizes or rows in sizes)
    )
