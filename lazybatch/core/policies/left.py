"""What an alternative leaves behind in one lane: what that is worth, and who of those that wait ends late.

Owns: `Left`.
Must not know: other lanes, how arrival rates are estimated, prices.

Every alternative of every decision asks for all lanes, so what they share is found out once per decision, and deadlines
are read only where somebody could miss one. Nobody can where even the earliest deadline that is possible is not before
the end of all: in a queue in order of arrival that is the head's arrival plus the least SLA target in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.control import Solution
from lazybatch.core.lane import Lane
from lazybatch.core.request import UNBOUNDED_NS

QUEUE_SEEN = 3
"""Rows waiting beyond this many full batches do not change a decision: the values are no longer exact so far out."""
DEADLINES_SEEN = 32
"""Of so many waiting rows the deadlines are looked at, the same ones in every alternative."""
PASS_WITHIN = 2.0
"""Rows that are late anyway let others pass while they can be done within so many mean latencies."""


class Left:
    """One lane when the alternatives are weighed; `see` brings it up to the present moment.

    solution, share: the control of the lane's rate in its share of the processor; per_ns: the rate by that control.
    waiting: rows in the queue; rows: those that matter. lost: so many of the first are late whatever is done; they let
    others pass that end by ``pass_until_ns``. seen: so many behind those have deadlines that are looked at; none of
    them is before ``tightest_ns``. late_alone: the first row is late even if it starts alone, and `lose` is to be told.
    calm_until_ns: nobody is late if the processor is free by then, whoever starts now. pace: of the machine; by the
    clock everything takes so many times what the table says.
    """

    __slots__ = (
        "_by_rate",
        "_changes",
        "_deadlines_ns",
        "_now",
        "_same_until_ns",
        "_served_ns",
        "_timed",
        "calm_until_ns",
        "lane",
        "late_alone",
        "lost",
        "pace",
        "pass_until_ns",
        "per_ns",
        "rows",
        "seen",
        "share",
        "solution",
        "tightest_ns",
        "waiting",
    )

    def __init__(self, lane: Lane, solution: Solution) -> None:
        self.lane = lane
        self.solution = solution
        self.share, self.per_ns = 1.0, solution.rate_per_ns
        self._changes, self._same_until_ns, self._timed = -1, 0, False
        self.waiting = self.rows = self.lost = self.seen = self.tightest_ns = self.calm_until_ns = self._now = 0
        self.late_alone = False
        self.pass_until_ns = 0.0
        self.pace = 1.0
        self._deadlines_ns: Sequence[int] | None = ()
        # By the rate of a solution: by rows, a time within which so many are done.
        self._by_rate: dict[float, list[int]] = {}
        self._served_ns = self._by_rate.setdefault(solution.rate_per_ns, [0])

    def see(self, solution: Solution, share: float, now: int, timed: bool, pace: float = 1.0) -> None:
        """Look at the lane as it is now. timed: its rows can have deadlines."""
        self.share = share
        self.per_ns = solution.rate_per_ns * share
        if (
            solution is not self.solution
            or self.lane.queue.changes != self._changes
            or now > self._same_until_ns
            or timed is not self._timed
            or pace != self.pace
        ):
            self.pace = pace
            self._look(solution, now, timed)

    def _look(self, solution: Solution, now: int, timed: bool) -> None:
        """Find out what is not as it was: the solution, the queue, or the first row can no longer be in time."""
        lane = self.lane
        queue = lane.queue
        if solution is not self.solution:
            self.solution = solution
            self._served_ns = self._by_rate.setdefault(solution.rate_per_ns, [0])
        self._changes, self._timed, self._now = queue.changes, timed, now
        self.lost, self.late_alone, self._same_until_ns = 0, False, UNBOUNDED_NS
        self.waiting = waiting = len(queue)
        most = QUEUE_SEEN * lane.rows_max
        self.rows = rows = waiting if waiting < most else most
        if not rows or not timed:
            self.seen, self._deadlines_ns, self.calm_until_ns = 0, (), UNBOUNDED_NS
            return
        self.seen = rows if rows < DEADLINES_SEEN else DEADLINES_SEEN
        head = queue.head(now)
        assert head is not None, "rows wait"
        if queue.uniform:
            self._same_until_ns = head.deadline_ns - int(self.pace * lane.sums_ns[1][-1])
            self.late_alone = now > self._same_until_ns
            self.tightest_ns = head.arrival_ns + queue.least_sla_ns
            self._deadlines_ns = None
        else:
            self._same_until_ns = now - 1  # in which order rows are taken depends on the time
            self._deadlines_ns = [request.deadline_ns for request in queue.peek(now, self.seen)]
            self.seen = len(self._deadlines_ns)
            self.tightest_ns = min(self._deadlines_ns)
        seen, served_ns = self.seen, self._served_ns
        until_served_ns = served_ns[seen] if seen < len(served_ns) else self._until_served_ns(seen)
        self.calm_until_ns = self.tightest_ns - int(self.pace * until_served_ns)

    def row_time_ns(self, waiting: int, time_ns: int) -> float:
        """What these rows and those to come spend during a time and after it, at the model's share, over the mean."""
        solution, share = self.solution, self.share
        return (
            waiting * time_ns
            + self.per_ns * time_ns * time_ns / 2
            - solution.gain_rows * time_ns
            + solution.after(waiting, time_ns * share) / share
        )

    def lose(self, mean_ns: float) -> None:
        """The first row is late even if it starts alone: find the first that is not.

        mean_ns: how long rows take on average.
        """
        lane, now, pace = self.lane, self._now, self.pace
        waiting, in_time_ns = lane.queue.peek(now, self.rows), now + pace * lane.run_ns(1)
        lost = next((k for k, request in enumerate(waiting) if request.deadline_ns >= in_time_ns), len(waiting))
        own_ns = pace * lane.run_ns(min(lost, lane.rows_max))
        self.pass_until_ns = waiting[0].arrival_ns + PASS_WITHIN * mean_ns - own_ns
        self._deadlines_ns = [request.deadline_ns for request in waiting[lost : lost + DEADLINES_SEEN]]
        self.lost, self.seen = lost, len(self._deadlines_ns)
        # Nobody behind them has a price, or whoever has waits for them as well: look, in every alternative.
        self.tightest_ns = min(self._deadlines_ns, default=UNBOUNDED_NS)
        self.calm_until_ns = -UNBOUNDED_NS if self.seen else UNBOUNDED_NS

    @property
    def deadlines_ns(self) -> Sequence[int]:
        """Of the first rows behind the lost, in their order, where the model has deadlines."""
        if self._deadlines_ns is None:
            self._deadlines_ns = [request.deadline_ns for request in self.lane.queue.peek(self._now, self.seen)]
            self.tightest_ns = min(self._deadlines_ns)
        return self._deadlines_ns

    def late(self, begun: int, free_ns: float, *, passing: bool = False) -> int:
        """How many of those that do not start now end late, if they follow from ``free_ns`` on.

        begun: so many of the first rows start now; passing: of the first behind the lost.
        """
        ahead = self.lost
        if ahead and not passing:
            begun, ahead = max(0, begun - ahead), max(0, ahead - begun)
        if begun >= self.seen:
            return 0
        if ahead and free_ns <= self.pass_until_ns:
            ahead = 0
        left = ahead + self.seen - begun
        if self.tightest_ns >= free_ns + self.pace * self._until_served_ns(left):
            return 0
        deadlines_ns = self.deadlines_ns[begun:]
        lane, solution, pace = self.lane, self.solution, self.pace
        at, late, tightest_ns = -ahead, 0, min(deadlines_ns)
        while left:
            size = min(solution.start(left) or left, lane.rows_max, left)
            free_ns += pace * lane.run_ns(size)
            if tightest_ns < free_ns:
                late += sum([deadline_ns < free_ns for deadline_ns in deadlines_ns[max(0, at) : max(0, at + size)]])
            at += size
            left -= size
        return late

    def _until_served_ns(self, rows: int) -> int:
        """By the table, a time within which so many, or fewer, are done in batches of the advised sizes."""
        served_ns = self._served_ns
        while len(served_ns) <= rows:
            left = len(served_ns)
            size = min(self.solution.start(left) or left, self.lane.rows_max, left)
            served_ns.append(max(self.lane.run_ns(size) + served_ns[left - size], served_ns[-1]))
        return served_ns[rows]
