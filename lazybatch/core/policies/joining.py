"""When newcomers are let into a running loop: by thresholds, unless deadlines speak against them.

Owns: `Joining`, the loop's part of `Lookahead`.
Must not know: how thresholds are solved (`lazybatch.loop_solver`), how arrival rates are estimated, other models.

At the first node of a loop newcomers could be sent after the rows that run in it: they run what lies before the loop,
the others wait, and all go on together. That is done once as many wait as the loop's `LoopControl` asks for.

A loop that others follow is part of the way to the next one: whoever is in flight waits there for those who are behind.
Newcomers who come in while it runs share what is left of it, and hold up the others only for the rest. So there the
next loop's threshold counts, in proportion of that rest to the whole way.

Where rows have deadlines, both courses are followed for every row with the trips to be expected of it: whichever makes
fewer rows late is taken, and the threshold decides where they are equal. But once rows in flight have missed theirs,
thresholds alone decide.

Thresholds rest on the lengths seen: whoever runs will soon be gone. Where all that run are longer than those, or no
lengths are known, they may run for long: then newcomers come in once what they would wait for is more than what they
cost the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.loop_control import LoopControl, rule_of_thumb
from lazybatch.core.loop_times import LoopTimes, loop_times
from lazybatch.core.policies.base import Choice, Start, Stay
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason

MISSED_MOST = 0.03
"""Share of the rows in flight that may have missed their deadlines before these no longer count."""

LoopControls = Mapping[str, Sequence[LoopControl | None]]
"""By model, one per loop of its graph; None where nobody can be let in."""


class _Met(NamedTuple):
    """A lane that was seen, and of each of its loops: when newcomers are let in (None: never), and its times."""

    lane: Lane
    controls: Sequence[LoopControl | None]
    times: Sequence[LoopTimes]


class Joining:
    """Decides for one sub-batch in a loop.

    controls: models that are missing are served by a rule of thumb.
    """

    def __init__(self, controls: LoopControls) -> None:
        self._controls = dict(controls)
        self._met: dict[str, _Met] = {}
        """By model, the lane it was seen in last: another scheduler's lane of that name has times of its own."""

    def decide(
        self, lane: Lane, top: SubBatch, rate_per_ns: float, now: int, *, pace: float = 1.0, at_once: bool = False
    ) -> Choice:
        """Let newcomers in, or go on. None: this is no place where any could come in.

        rate_per_ns: of the model's arrivals, in the time of its table. pace: what the clock shows over that.
        at_once: those who wait outrank those who run; the threshold is one.
        """
        progress, queue = top.progress, lane.queue
        if progress is None or top.cursor != lane.loops[progress.loop].first:
            return None
        head, room = queue.head(now), lane.rows_max - lane.table.rows
        if room <= 0 or head is None or head.signature != top.signature:
            return None
        met = self._met.get(lane.model)
        if met is None or met.lane is not lane:
            met = self._meet(lane)
        number = progress.loop
        if met.controls[number] is None:
            return None
        waiting = len(queue) if queue.uniform else len(queue.peek(now, lane.rows_max))
        rows = min(waiting, room)
        if at_once:
            return Start(lane, rows, Reason.JOIN_LOOP)
        newcomers = queue.peek(now, rows)
        needed = _needed(met, top, number, newcomers, rate_per_ns)
        joins = waiting >= needed or _outlast(lane, top, number, newcomers, met.times[number])
        if _matter(lane, top, newcomers, now):
            flight = _Flight(lane, top, newcomers, now, pace)
            start_ns = met.times[number].before_ns[rows]
            wait_ns = 0.0 if joins else min((needed - waiting) / rate_per_ns, _all_left_ns(lane, top))
            if not flight.in_time(start_ns + wait_ns):
                if not joins:
                    if not flight.saved(start_ns, wait_ns):
                        return Stay(Reason.STAY_LOOP)
                    arrivals_ns = min((needed - waiting) / rate_per_ns, float(UNBOUNDED_NS))
                    wait_ns = _wait_ns(met, top, number, arrivals_ns, waiting, rate_per_ns)
                joins = flight.spares(start_ns, wait_ns, joins=joins)
        return Start(lane, rows, Reason.JOIN_LOOP) if joins else Stay(Reason.STAY_LOOP)

    def _meet(self, lane: Lane) -> _Met:
        """See a lane for the first time."""
        times = [loop_times(lane, number) for number in range(len(lane.loops))]
        controls = self._controls.get(lane.model)
        if controls is None:
            controls = [
                None if loop.same_iteration else rule_of_thumb(lane.model, loop.name, of)
                for loop, of in zip(lane.loops, times, strict=True)
            ]
        self._met[lane.model] = met = _Met(lane, controls, times)
        return met


def _needed(met: _Met, top: SubBatch, number: int, newcomers: Sequence[Request], rate_per_ns: float) -> int:
    """How many must wait before newcomers are let in here."""
    lane, controls, times = met
    transit = number + 1 < len(controls)
    control = controls[number + 1 if transit else number]
    if control is None:  # in the next loop nobody can be joined: here is the last chance
        return 1
    needed = control.needed(lane.table.rows, rate_per_ns)
    if not transit or needed == 1:
        return needed
    latency, progress = lane.loop_latency, top.progress
    assert latency is not None, "lanes without a table are refused"
    assert progress is not None, "it stands in a loop"
    rows, running = len(newcomers), len(top.requests)
    longer = max(latency.expected_left(newcomers, number, {})) - max(
        latency.expected_left(top.requests, number, progress.iterations())
    )
    rest_ns = times[number].before_ns[rows] + max(0.0, longer) * lane.body_ns(number, running + rows)
    return max(1, ceil(needed * min(1.0, rest_ns / times[number + 1].before_ns[rows])))


def _outlast(lane: Lane, top: SubBatch, number: int, newcomers: Sequence[Request], times: LoopTimes) -> bool:
    """Whether all that run are longer than the lengths seen, and newcomers would lose more by waiting for their end
    than all others by letting them in.

    A row whose trips are not told is expected to make as many again as it has behind it.
    """
    if number + 1 < len(lane.loops):
        return False
    guess, progress = lane.spec.guess(number), top.progress
    assert progress is not None, "it stands in a loop"
    left = 0
    for request in top.requests:
        trips, behind = request.trips_in(number), progress.iteration(request.id)
        if guess is not None and (behind + 1 if trips is None else trips) <= guess.longest(request.size):
            return False
        left += max(1, behind) if trips is None else trips - behind
    running, rows = len(top.requests), len(newcomers)
    return rows * left * lane.body_ns(number, running) >= running**2 * times.before_ns[rows]


def _wait_ns(met: _Met, top: SubBatch, number: int, arrivals_ns: float, waiting: int, rate_per_ns: float) -> float:
    """When those who wait are expected to be enough: others join them, or so many leave that fewer are needed.

    arrivals_ns: until enough have come. Where too many run for anybody to be let in, it is those who leave that
    count: nobody waits for ever.
    """
    lane, controls, _ = met
    latency, progress = lane.loop_latency, top.progress
    assert latency is not None, "lanes without a table are refused"
    assert progress is not None, "it stands in a loop"
    begin_ns, behind = 0.0, progress.iterations()
    if number + 1 < len(controls):
        begin_ns = max(latency.expected_left(top.requests, number, behind)) * lane.body_ns(number, len(behind))
        number, behind = number + 1, {}
    control = controls[number]
    assert control is not None, "without one nobody needs company"
    lefts = sorted(latency.expected_left(top.requests, number, behind))
    body_ns = lane.body_ns(number, len(lefts))
    leave_ns = arrivals_ns
    for left, others in enumerate(lefts, start=1):
        leave_ns = begin_ns + others * body_ns
        fewer = control.needed(lane.table.rows - left, rate_per_ns)
        if leave_ns >= arrivals_ns or waiting + rate_per_ns * leave_ns >= fewer:
            break
    return min(arrivals_ns, leave_ns)


def _matter(lane: Lane, top: SubBatch, newcomers: Sequence[Request], now: int) -> bool:
    """Whether to look at deadlines: some rows have one, and hardly any has been missed already.

    Where many are missed anyway, time is what there is too little of, and thresholds spend it best: to depart from them
    for the sake of some rows makes more others late.
    """
    deadlines_ns = top.deadlines_ns
    if deadlines_ns[0] >= UNBOUNDED_NS and all(row.deadline_ns >= UNBOUNDED_NS for row in newcomers):
        return False
    return bisect_left(deadlines_ns, now) <= MISSED_MOST * len(deadlines_ns)


def _all_left_ns(lane: Lane, top: SubBatch) -> float:
    """A bound on the time until all rows have left the loop they run, where it is the last one."""
    latency, progress = lane.loop_latency, top.progress
    assert latency is not None, "lanes without a table are refused"
    assert progress is not None, "it stands in a loop"
    number = progress.loop
    if number + 1 < len(lane.loops):
        return float(UNBOUNDED_NS)
    return max(latency.most_left(number), progress.last()) * lane.body_ns(number, len(top.requests))


class _Flight:
    """Rows that run in a loop and those that could come to them: who is late, by which course.

    Times are by the table, from now on; deadlines are by the clock, which shows ``pace`` times as much.
    """

    __slots__ = (
        "_lefts",
        "behind_ns",
        "latency",
        "newcomers",
        "now",
        "pace",
        "progress",
        "top",
        "with_ns",
        "without_ns",
    )

    def __init__(self, lane: Lane, top: SubBatch, newcomers: Sequence[Request], now: int, pace: float) -> None:
        latency, progress = lane.loop_latency, top.progress
        assert latency is not None, "lanes without a table are refused"
        assert progress is not None, "it stands in a loop"
        number, running, rows = progress.loop, len(top.requests), len(newcomers)
        self.top, self.newcomers, self.now, self.pace = top, newcomers, now, pace
        self.latency, self.progress = latency, progress
        self._lefts: Sequence[float] | None = None
        self.without_ns, self.with_ns = lane.body_ns(number, running), lane.body_ns(number, running + rows)
        self.behind_ns = lane.sums_ns[rows][-1] - lane.sums_ns[rows][lane.loops[number].stop]

    def in_time(self, start_ns: float) -> bool:
        """Whether nobody is late either way: the last of all ends before the first deadline, if newcomers are in the
        loop by then and each row goes round as often as any; the usual case where targets are loose, and soon found
        out."""
        number, newcomers = self.progress.loop, self.newcomers
        if self.latency.guesses(number):  # it bounds those of whom nothing else is known
            newcomers = [row for row in newcomers if row.trips_in(number) is not None]
        lefts = self.latency.expected_left(newcomers, number, {})
        most = max([self.latency.most_left(number), self.progress.last(), *lefts])
        end_ns = start_ns + self.behind_ns + (most + 1) * max(self.without_ns, self.with_ns)
        first_ns = min([self.top.deadlines_ns[0], *[request.deadline_ns for request in self.newcomers]])
        return self.now + self.pace * end_ns <= first_ns

    def saved(self, start_ns: float, wait_ns: float) -> int:
        """How many newcomers are in time if they are in the loop then, but not so much later; an iteration at least."""
        now, pace = self.now, self.pace
        start_ns += self.behind_ns
        later_ns = pace * max(float(self.without_ns), wait_ns)
        if self._lefts is None:
            self._lefts = self.latency.expected_left(self.newcomers, self.progress.loop, {})
        saved = 0
        for request, left in zip(self.newcomers, self._lefts, strict=True):
            end_ns = now + pace * (start_ns + left * self.with_ns)
            saved += end_ns <= request.deadline_ns < end_ns + later_ns
        return saved

    def spares(self, start_ns: float, wait_ns: float, *, joins: bool) -> bool:
        """Whether to let newcomers in, by deadlines; ``joins`` where these make no difference.

        start_ns: until they would be in the loop. wait_ns: how much later that would be if they do not come in now.
        """
        saved = self.saved(start_ns, wait_ns)
        if not (joins or saved):
            return False
        now, pace, deadlines_ns, requests = self.now, self.pace, self.top.deadlines_ns, self.top.requests
        # Rows that end in between are harmed. Those whose deadline comes with this very iteration are lost in any case.
        lost = bisect_left(deadlines_ns, now + pace * (self.without_ns + self.behind_ns))
        if len(requests) - lost <= (saved if joins else 0) or deadlines_ns[lost] >= UNBOUNDED_NS:
            return True
        lefts, harmed = self.latency.expected_left(requests, self.progress.loop, self.progress.iterations()), 0
        for request, left in zip(requests, lefts, strict=True):
            alone_ns = now + pace * (self.behind_ns + left * self.without_ns)
            joined_ns = now + pace * (start_ns + self.behind_ns + left * self.with_ns)
            harmed += alone_ns <= request.deadline_ns < joined_ns
        return joins if saved == harmed else saved > harmed
