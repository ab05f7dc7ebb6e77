"""When newcomers are let into a running loop: solved thresholds, unless deadlines speak against them.

Owns: `Joining`, the loop's part of `Lookahead`.
Must not know: how thresholds are solved (`lazybatch.loop_solver`), arrival rates, other models.

At the first node of a loop newcomers could be sent after the rows that run in it: they run what lies before the loop,
the others wait, and all go on together. That is done once as many wait as the loop's `LoopControl` asks for. Where rows
have deadlines, both courses are followed for every row with the trips to be expected of it: whichever makes fewer rows
late is taken, and the threshold decides where they are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.loop_control import LoopControl
from lazybatch.core.policies.base import Choice, Start, Stay
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason

LoopControls = Mapping[str, Sequence[LoopControl | None]]
"""By model, one per loop of its graph; None where nobody can be let in."""


class Course(NamedTuple):
    """What lies ahead of rows in a loop: when newcomers start and how long their way is, and times of iterations."""

    start_ns: int
    before_ns: int
    body_ns: int
    behind_ns: int


class Joining:
    """Decides for one sub-batch in a loop. Reads only."""

    def __init__(self, controls: LoopControls) -> None:
        self._controls = controls

    def decide(self, lane: Lane, top: SubBatch, rate_per_ns: float, now: int, *, at_once: bool = False) -> Choice:
        """Let newcomers in, or go on. None: this is no place where any could come in.

        rate_per_ns: of the model's arrivals. at_once: those who wait outrank those who run; the threshold is one.
        """
        progress = top.progress
        if progress is None or top.cursor != lane.loops[progress.loop].first:
            return None
        control, head = self._controls[lane.model][progress.loop], lane.queue.head(now)
        room = lane.rows_best - lane.table.rows
        if control is None or head is None or head.signature != top.signature or room <= 0:
            return None
        running = len(top.requests)
        waiting = len(lane.queue) if lane.queue.uniform else len(lane.queue.peek(now, lane.rows_max))
        needed = 1 if at_once else control.needed(running, rate_per_ns)
        joins = waiting >= needed
        rows = min(waiting, room)
        if not at_once:
            fewer_late = self._fewer_late_by_joining(lane, top, rows, max(1, needed - waiting) / rate_per_ns, now)
            joins = joins if fewer_late is None else fewer_late
        return Start(lane, rows, Reason.JOIN_LOOP) if joins else Stay(Reason.STAY_LOOP)

    def _fewer_late_by_joining(self, lane: Lane, top: SubBatch, rows: int, wait_ns: float, now: int) -> bool | None:
        """Whether fewer rows end late if newcomers come in now than if they wait; None where it makes no difference."""
        newcomers = lane.queue.peek(now, rows)
        if top.deadlines_ns[0] == UNBOUNDED_NS and all(row.deadline_ns == UNBOUNDED_NS for row in newcomers):
            return None
        progress = top.progress
        assert progress is not None, "it stands in a loop"
        number, running = progress.loop, len(top.requests)
        joined = running + rows
        sums_ns = lane.sums_ns[rows]
        before_ns, behind_ns = sums_ns[lane.loops[number].first], sums_ns[-1] - sums_ns[lane.loops[number].stop]
        with_us_ns, without_ns = lane.body_ns(number, joined), lane.body_ns(number, running)
        later_ns = now + max(without_ns, int(min(wait_ns, UNBOUNDED_NS - now)))
        stay = Course(now, 0, without_ns, behind_ns)
        late_now = _late(lane, number, top, top.requests, Course(now, before_ns, with_us_ns, behind_ns))
        late_now += _late(lane, number, None, newcomers, Course(now, before_ns, with_us_ns, behind_ns))
        late_later = _late(lane, number, top, top.requests, stay)
        late_later += _late(lane, number, None, newcomers, Course(later_ns, before_ns, with_us_ns, behind_ns))
        return None if late_now == late_later else late_now < late_later


def _late(lane: Lane, number: int, top: SubBatch | None, requests: Sequence[Request], course: Course) -> int:
    """How many of these rows end after their deadline; those of ``top`` have some of their iterations behind them."""
    assert lane.loop_latency is not None, "lanes without a table are refused"
    behind = {} if top is None or top.progress is None else top.progress.iterations()
    first_ns = course.start_ns + course.before_ns + course.behind_ns
    late = 0
    for request in requests:
        done = behind.get(request.id, 0)
        left = lane.loop_latency.expected_trips(request, number, done) - done
        late += request.deadline_ns < first_ns + left * course.body_ns
    return late
