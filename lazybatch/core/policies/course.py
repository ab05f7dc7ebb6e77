"""The exact course of a stack with loops, followed to its end in thought.

Owns: `Going`, a sub-batch as it is followed, and `late_rows`: how many rows end after their deadlines.
Must not know: queues, admission; it is what `Oracle` predicts with where rows of a sub-batch differ in what they have
left. Stacks of static models are followed by `prediction`, which need not look at rows.

It follows the BatchTable: rows leave a loop when their trips are over, those in it meet newcomers at equal nodes, and
who has left the last loop goes first. Of trips that are not known, so many are charged as cover most rows. Rows at
different iterations are taken to meet only where the loop allows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import itemgetter

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.request import UNBOUNDED_NS, Request


class Going:
    """Rows of one model that move together: deadlines, and per row the trips still to make in each loop."""

    __slots__ = ("cursor", "deadlines_ns", "lane", "left", "signature")

    def __init__(
        self, lane: Lane, cursor: int, signature: Hashable, deadlines_ns: list[int], left: list[list[int]]
    ) -> None:
        self.lane = lane
        self.cursor = cursor
        self.signature = signature
        self.deadlines_ns = deadlines_ns
        self.left = left

    @classmethod
    def of(cls, lane: Lane, entry: SubBatch) -> Going:
        """A sub-batch in flight."""
        progress = entry.progress
        behind = {} if progress is None else progress.iterations()
        left = _trips_left(lane, entry.requests, None if progress is None else progress.loop, behind)
        deadlines_ns = [request.deadline_ns for request in entry.requests]
        return cls(lane, entry.cursor, entry.signature, deadlines_ns, left)

    @classmethod
    def newcomers(cls, lane: Lane, requests: Sequence[Request], lost: Iterable[bool]) -> Going:
        """Rows that would start now; the deadlines of those that are lost count for nothing."""
        deadlines_ns = [UNBOUNDED_NS if gone else r.deadline_ns for r, gone in zip(requests, lost, strict=True)]
        return cls(lane, 0, requests[0].signature, deadlines_ns, _trips_left(lane, requests, None, {}))

    def copy(self) -> Going:
        """The same, to be followed without changing this one."""
        left = [list(trips) for trips in self.left]
        return Going(self.lane, self.cursor, self.signature, list(self.deadlines_ns), left)

    def run_ns(self, stop: int) -> int:
        """Time from where they stand to another node, without going round."""
        lane, rows = self.lane, len(self.left)
        executed = lane.padded_rows(rows) or rows
        assert lane.times_ns is not None, "lanes without a table are refused"
        return sum([times_ns[executed] for times_ns in lane.times_ns[self.cursor : stop]])

    def part(self, number: int, stop: int) -> Going | None:
        """Split off the rows that have no trips left in a loop, to stand behind it; None where all or none have."""
        leaving = [place for place, left in enumerate(self.left) if not left[number]]
        if not leaving or len(leaving) == len(self.left):
            self.cursor = stop if leaving else self.lane.loops[number].first
            return None
        apart = Going(self.lane, stop, self.signature, [], [])
        for place in reversed(leaving):
            apart.deadlines_ns.append(self.deadlines_ns.pop(place))
            apart.left.append(self.left.pop(place))
        self.cursor = self.lane.loops[number].first
        return apart


def _trips_left(
    lane: Lane, requests: Sequence[Request], inside: int | None, behind: Mapping[int, int]
) -> list[list[int]]:
    """By row and loop, the trips still to make."""
    latency, numbers = lane.loop_latency, range(len(lane.loops))
    if latency is None:
        return [[] for _ in requests]
    lefts = [latency.charged_left(requests, number, behind if number == inside else {}) for number in numbers]
    return [list(of_row) for of_row in zip(*lefts, strict=True)]


def late_rows(stack: Sequence[Going], now: int) -> int:
    """How many rows end after their deadlines if the stack, the last on top, runs to its end without newcomers."""
    if all(min(going.deadlines_ns) == UNBOUNDED_NS for going in stack):
        return 0
    left = [going.copy() for going in stack]
    late, begun = 0, False
    while left:
        top = left[-1]
        if len(left) == 1 and top.lane.loops and top.cursor == top.lane.loops[-1].first:
            return late + _late_in_last_loop(top, now)
        mates = [other for other in left[:-1] if _may_meet(other, top)]
        mate = next((other for other in reversed(mates) if other.cursor == top.cursor), None)
        # Newcomers that have yet to start only join those directly below them.
        if mate is not None and (begun or mate is [other for other in left[:-1] if other.lane is top.lane][-1]):
            _merge(left, mate)
            begun = True
            continue
        begun = True
        number, stop = _stage(top)
        meeting = min([other.cursor for other in mates if top.cursor < other.cursor < stop], default=stop)
        now += top.run_ns(meeting)
        if number is None or meeting < stop:
            top.cursor = meeting
        else:
            first = top.lane.loops[number].first
            now += _go_round(top, number, stop, alone=all(not first <= other.cursor < stop for other in mates))
            apart = top.part(number, stop)
            if apart is not None and stop <= top.lane.loops[-1].first:
                _wait(left, apart)
            elif apart is not None:
                left.append(apart)
                top = apart
        if top.cursor == top.lane.nodes:
            left.remove(top)
            late += sum([deadline_ns < now for deadline_ns in top.deadlines_ns])
    return late


def _late_in_last_loop(top: Going, now: int) -> int:
    """How many are late of rows that are alone, at the first node of the last loop: they leave it one after another."""
    lane = top.lane
    assert lane.times_ns is not None, "lanes without a table are refused"
    loop = lane.loops[-1]
    rows, late = len(top.left), 0
    order = sorted(zip([left[-1] for left in top.left], top.deadlines_ns, strict=True))
    place = past = 0
    while place < len(order):
        trips = order[place][0]
        now += (trips - past) * sum([times_ns[rows] for times_ns in lane.times_ns[loop.first : loop.stop]])
        end = bisect_right(order, trips, lo=place, key=itemgetter(0))
        now += sum([times_ns[end - place] for times_ns in lane.times_ns[loop.stop :]])
        late += sum([deadline_ns < now for _, deadline_ns in order[place:end]])
        rows -= end - place
        place, past = end, trips
    return late


def _merge(left: list[Going], mate: Going) -> None:
    """The last joins another at its node, which takes its place, but for those between that have left the last loop."""
    top = left.pop()
    mate.deadlines_ns += top.deadlines_ns
    mate.left += top.left
    place = left.index(mate)
    stop = mate.lane.loops[-1].stop if mate.lane.loops else 0
    if mate.cursor >= stop or not any(o.lane is mate.lane and o.cursor >= stop for o in left[place + 1 :]):
        left.append(left.pop(place))


def _wait(left: list[Going], apart: Going) -> None:
    """Rows that another loop follows wait below those they left; with others at the same node they are one."""
    left.insert(-1, apart)
    mates = [other for other in left if other is not apart and other.cursor == apart.cursor]
    mate = next((other for other in mates if _may_meet(other, apart)), None)
    if mate is not None:
        left.remove(mate)
        apart.deadlines_ns += mate.deadlines_ns
        apart.left += mate.left


def _go_round(top: Going, number: int, stop: int, *, alone: bool) -> int:
    """Count the iteration that has just ended, and all before the first row leaves if there is nobody to meet."""
    rounds = min([left[number] for left in top.left]) if alone else 1
    for left in top.left:
        left[number] -= rounds
    top.cursor = top.lane.loops[number].first
    return (rounds - 1) * top.run_ns(stop)


def _stage(going: Going) -> tuple[int | None, int]:
    """The loop in which they stand, if any, and the node behind the stage."""
    for number, loop in enumerate(going.lane.loops):
        if going.cursor < loop.first:
            return None, loop.first
        if going.cursor < loop.stop:
            return number, loop.stop
    return None, going.lane.nodes


def _may_meet(lower: Going, upper: Going) -> bool:
    """Whether two could be one sub-batch once they stand at the same node."""
    lane = upper.lane
    number, _ = _stage(lower)
    rows, sizes = len(lower.left) + len(upper.left), lane.spec.allowed_sizes
    return (
        lower.lane is lane
        and lower.signature == upper.signature
        and rows <= lane.rows_max
        and (not sizes or rows in sizes)
        and not (number is not None and lane.loops[number].same_iteration)
    )
