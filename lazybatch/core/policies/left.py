"""What an alternative leaves behind in one lane: what that is worth, and who of those that wait ends late.

Owns: `Left`.
Must not know: other lanes, arrival rates, prices.

Every alternative of every decision asks for all lanes, so what they share is found out once per decision, and deadlines
are read only where somebody could miss one. Nobody can where even the earliest deadline that is possible is not before
the end of all: in a queue in order of arrival that is the head's arrival plus the least SLA target in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.control import Solution
from lazybatch.core.lane import Lane

QUEUE_SEEN = 3
"""Rows waiting beyond this many full batches do not change a decision: the values are no longer exact so far out."""
DEADLINES_SEEN = 32
"""Of so many waiting rows the deadlines are looked at, the same ones in every alternative."""
PASS_WITHIN = 2.0
"""Rows that are late anyway let others pass while they can be done within so many mean latencies."""


class Left:
    """One lane when the alternatives are weighed; `see` brings it up to the present moment.

    solution, share: the control of the lane's rate in its share of the processor. rows: those that wait, as far as they
    matter. lost: so many of the first are late whatever is done; they let others pass that end by ``pass_until_ns``.
    seen: so many behind those have deadlines that are looked at; none of them is before ``tightest_ns``.
    """

    __slots__ = (
        "_by_rate",
        "_deadlines_ns",
        "_now",
        "_served_ns",
        "lane",
        "lost",
        "pass_until_ns",
        "rows",
        "seen",
        "share",
        "solution",
        "tightest_ns",
    )

    def __init__(self, lane: Lane, solution: Solution) -> None:
        self.lane = lane
        self.solution = solution
        self.share = 1.0
        self.rows = self.lost = self.seen = self.tightest_ns = self._now = 0
        self.pass_until_ns = 0.0
        self._deadlines_ns: Sequence[int] | None = ()
        # By the rate of a solution: by rows, the time until so many are done in batches of the advised sizes.
        self._by_rate: dict[float, list[int]] = {}
        self._served_ns = self._by_rate.setdefault(solution.rate_per_ns, [0])

    def see(self, solution: Solution, share: float, now: int, mean_ns: float, *, timed: bool) -> None:
        """Look at the lane as it is now. mean_ns: how long rows take on average. timed: its rows can have deadlines."""
        lane = self.lane
        queue = lane.queue
        if solution is not self.solution:
            self.solution = solution
            self._served_ns = self._by_rate.setdefault(solution.rate_per_ns, [0])
        self.share = share
        self._now = now
        self.rows = rows = min(len(queue), QUEUE_SEEN * lane.rows_max)
        self.lost = 0
        if not rows or not timed:
            self.seen = 0
            self._deadlines_ns = ()
            return
        self.seen = rows if rows < DEADLINES_SEEN else DEADLINES_SEEN
        if queue.uniform:
            head = queue.head(now)
            assert head is not None, "rows wait"
            self.tightest_ns = head.arrival_ns + queue.least_sla_ns
            if head.deadline_ns >= now + lane.sums_ns[1][-1]:
                self._deadlines_ns = None
                return
            deadlines_ns = self._without_lost(mean_ns)
        else:
            deadlines_ns = [request.deadline_ns for request in queue.peek(now, self.seen)]
        self._deadlines_ns = deadlines_ns
        self.seen = len(deadlines_ns)
        self.tightest_ns = min(deadlines_ns, default=0)

    def _without_lost(self, mean_ns: float) -> list[int]:
        """Deadlines from the first row on that is in time if it starts alone; the head is not."""
        lane, now = self.lane, self._now
        waiting, in_time_ns = lane.queue.peek(now, self.rows), now + lane.run_ns(1)
        lost = next((k for k, request in enumerate(waiting) if request.deadline_ns >= in_time_ns), len(waiting))
        own_ns = lane.run_ns(min(lost, lane.rows_max))
        self.lost = lost
        self.pass_until_ns = waiting[0].arrival_ns + PASS_WITHIN * mean_ns - own_ns
        return [request.deadline_ns for request in waiting[lost : lost + DEADLINES_SEEN]]

    @property
    def deadlines_ns(self) -> Sequence[int]:
        """Of the first rows behind the lost, in their order, where the model has deadlines."""
        if self._deadlines_ns is None:
            self._deadlines_ns = [request.deadline_ns for request in self.lane.queue.peek(self._now, self.seen)]
            self.tightest_ns = min(self._deadlines_ns)
        return self._deadlines_ns

    def cost_ns(self, begun: int, time_ns: int) -> float:
        """Row-time of those that wait and those to come, if so many start now and all in flight ends in that time."""
        solution, share, left = self.solution, self.share, self.rows - begun
        return (
            left * time_ns
            + solution.rate_per_ns * share * time_ns * time_ns / 2
            - solution.gain_rows * time_ns
            + solution.after(left, time_ns * share) / share
        )

    def late(self, begun: int, free_ns: int, *, passing: bool = False) -> int:
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
        if self.tightest_ns >= free_ns + self._until_served_ns(left):
            return 0
        deadlines_ns = self.deadlines_ns[begun:]
        lane, solution = self.lane, self.solution
        at, late, tightest_ns = -ahead, 0, min(deadlines_ns)
        while left:
            size = min(solution.start(left) or left, lane.rows_max, left)
            free_ns += lane.run_ns(size)
            if tightest_ns < free_ns:
                late += sum([deadline_ns < free_ns for deadline_ns in deadlines_ns[max(0, at) : max(0, at + size)]])
            at += size
            left -= size
        return late

    def all_in_time(self, begun: int, free_ns: int) -> bool:
        """Whether nobody can be late, if so many of the first rows end at ``free_ns`` and the others follow.

        False says nothing: then somebody has to be looked at.
        """
        if not self.seen:
            return True
        return not self.lost and self.tightest_ns >= free_ns + self._until_served_ns(max(0, self.seen - begun))

    def _until_served_ns(self, rows: int) -> int:
        """How long it takes until so many are done, in batches of the advised sizes."""
        served_ns = self._served_ns
        while len(served_ns) <= rows:
            left = len(served_ns)
            size = min(self.solution.start(left) or left, self.lane.rows_max, left)
            served_ns.append(self.lane.run_ns(size) + served_ns[left - size])
        return served_ns[rows]
