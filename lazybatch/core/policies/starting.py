"""What to start on a free processor: how many of the rows that wait, of which model, or wait for one more?

Owns: `Starting`, the free processor's part of `Lookahead`; what may start together (`startable`, `crowded_rows`).
Must not know: what is in flight, whose turn it is.

The control's advice is what is weighed first. Only where that makes somebody late are other starts of the lane weighed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, Wait
from lazybatch.core.policies.left import Left
from lazybatch.core.policies.prospect import Prospect
from lazybatch.core.request import UNBOUNDED_NS
from lazybatch.core.task import Reason


class Starting:
    """Chooses what to start. prospect: has looked at all lanes at the moment of the decision."""

    def __init__(self, prospect: Prospect) -> None:
        self._prospect = prospect

    def start_or_wait(self, lane: Lane, now: int, *, draining: bool) -> Choice:
        """Where only this lane has work. draining: no further request will come."""
        prospect, alone = self._prospect, is_alone(lane, now)
        left = prospect.left[lane.model]
        if not (draining or alone or lane.loops or left.solution.start(left.waiting)):
            until_ns = prospect.waiting_ends_ns(lane, startable(lane, lane.rows_max, now, alone=False), now)
            if until_ns > now:
                return Wait(until_ns)
        rows = self._first(lane, left, now, alone=alone)
        if now + prospect.pace * lane.sums_ns[rows][-1] <= prospect.calm_until_ns:
            return _start(lane, rows, 0, now, prospect.pace, alone=alone)
        return self.start([lane], now)

    def start(self, lanes: Sequence[Lane], now: int) -> Start:
        """The best start of these lanes, of the least cost."""
        lane, rows, skip = self._best(lanes, now)
        return _start(lane, rows, skip, now, self._prospect.pace, alone=is_alone(lane, now))

    def _best(self, lanes: Sequence[Lane], now: int) -> tuple[Lane, int, int]:
        """The lane, the rows to start, and those to pass over."""
        found: tuple[Lane, int, int] | None = None
        best_ns = 0.0
        for lane in lanes:
            rows, skip, cost_ns = self._best_of(lane, now)
            if found is None or cost_ns < best_ns:
                found, best_ns = (lane, rows, skip), cost_ns
        assert found is not None, "asked only while something waits"
        return found

    def _best_of(self, lane: Lane, now: int) -> tuple[int, int, float]:
        """Of one lane: the rows to start, those to pass over, and what that costs all lanes. None are weighed after
        some that make nobody late.

        How many is for the lane's own row-time and everybody's lateness to say. Others are let in at the next boundary,
        and are not held up by the whole run: were their row-time counted, rows would start one by one, and the lane
        would lose its capacity.
        """
        found: tuple[int, int, float] | None = None
        best_ns = 0.0
        for rows, skip in self._starts(lane, now):
            cost_ns, late = self._score(lane, rows, now, passing=skip > 0)
            if found is None and not late:  # the ordinary case: there is nothing to compare
                return rows, skip, cost_ns
            own_ns = cost_ns - self._prospect.others_ns(lane, lane.run_ns(rows))
            if found is None or own_ns < best_ns:
                found, best_ns = (rows, skip, cost_ns), own_ns
            if not late:
                break
        assert found is not None, "something is always advised"
        return found

    def _score(self, lane: Lane, rows: int, now: int, *, passing: bool) -> tuple[float, int]:
        """The cost of a start in row-nanoseconds, and how many rows are late, priced in it."""
        time_ns = lane.run_ns(rows)
        end_ns = now + self._prospect.pace * time_ns
        late_ns, late_now = self._prospect.late_started(lane, rows, end_ns, passing=passing)
        cost_ns, late = self._prospect.cost_ns(lane, rows, time_ns, now, passing=passing)
        return rows * time_ns + late_ns + cost_ns, late_now + late

    def _first(self, lane: Lane, left: Left, now: int, *, alone: bool) -> int:
        """The rows that are weighed first: what the control advises."""
        fits = startable(lane, lane.rows_max, now, alone=alone)
        if lane.loops:  # whoever comes later need not wait for the end of these
            return min(fits, lane.rows_best)
        rows = crowded_rows(lane, self._prospect) or left.solution.start(left.waiting) or fits
        return rows if rows < fits else fits

    def _starts(self, lane: Lane, now: int) -> Iterator[tuple[int, int]]:
        """The starts worth comparing, as (rows, rows passed over): what the control advises, then with deadlines all,
        half, one.

        Where rows in front are lost, the others are of those behind them, if there is time for that.
        """
        left, alone = self._prospect.left[lane.model], is_alone(lane, now)
        first = self._first(lane, left, now, alone=alone)
        yield first, 0
        if lane.loops or not left.seen or crowded_rows(lane, self._prospect):
            return
        fits = startable(lane, lane.rows_max, now, alone=alone)
        if left.lost:
            sizes = self._sizes(lane, min(fits, left.waiting - left.lost), now)
            pace, until_ns = self._prospect.pace, left.pass_until_ns
            passing = [(size, left.lost) for size in sizes if now + pace * lane.run_ns(size) <= until_ns]
            if passing:
                yield from passing
                return
        yield from [(size, 0) for size in self._sizes(lane, fits, now) if size != first]

    def _sizes(self, lane: Lane, fits: int, now: int) -> list[int]:
        return sorted({fits, self._punctual(lane, fits, now), max(1, fits // 2), 1}, reverse=True)

    def _punctual(self, lane: Lane, fits: int, now: int) -> int:
        """The largest start of which nobody is late who would not be late alone; at least one row."""
        pace = self._prospect.pace
        alone_end_ns = now + pace * lane.run_ns(1)
        tightest_ns = min([d for d in self._prospect.left[lane.model].deadlines_ns if d >= alone_end_ns], default=0)
        return _within(lane, fits, (tightest_ns - now) / pace)


def is_alone(lane: Lane, now: int) -> bool:
    """Whether the row that comes first, where there is one, runs without mates."""
    if not lane.spec.joinable:
        return True
    head = lane.queue.head(now)
    return head is not None and type(head.signature) is Alone


def startable(lane: Lane, room: int, now: int, *, alone: bool) -> int:
    """Rows that could start together now, at most ``room``: of the head's signature, or the head alone."""
    if alone:
        return 1
    queue = lane.queue
    rows = len(queue) if queue.uniform else len(queue.peek(now, room))
    return rows if rows < room else room


def crowded_rows(lane: Lane, prospect: Prospect) -> int:
    """Rows per batch where some of those that wait will have to be dropped; 0 where that is not to be expected.

    What counts then is how many are served in time: in batches of the best throughput that take at most half the
    SLA target, so that a row may arrive just after one has started and still be in time with the next.
    """
    if lane.spec.late != "drop":
        return 0
    half_ns = prospect.sla_ns.get(lane.model, float(UNBOUNDED_NS)) / 2
    rows = _within(lane, lane.rows_best, half_ns / prospect.pace)
    return rows if len(lane.queue) > rows else 0


def _within(lane: Lane, rows: int, time_ns: float) -> int:
    """The most rows, at most ``rows``, whose run takes no longer than this by the table; at least one."""
    while rows > 1 and lane.run_ns(rows) > time_ns:
        rows -= 1
    return rows


def _start(lane: Lane, rows: int, skip: int, now: int, pace: float, *, alone: bool) -> Start:
    """A start and why."""
    reason = Reason.START_ALONE if alone else Reason.START_FULL if rows == lane.rows_max else Reason.START_IDLE
    return Start(lane, rows, reason, skip=skip or lane.made_late(rows, now, pace))
