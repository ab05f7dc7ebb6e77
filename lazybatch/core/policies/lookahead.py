"""Lookahead, the default policy: one step of looking ahead, over solved control.

Owns: `Lookahead`. Must not know: how controls are solved (`lazybatch.solver`), clocks, tensors.

Two questions, one measure. When the processor is free: how many waiting rows to start, or wait for one more? At a node
boundary: go on, or let newcomers catch up and merge first? Each alternative is judged by

1. rows predicted to miss their deadline, fewer is better; then
2. row-time: the exact row-time until everything in flight is done, plus that of rows that wait or arrive meanwhile,
   plus what the rows left behind are worth under optimal control from there on, minus the optimal gain for the time
   taken (the relative value of a semi-Markov decision process; see `core.control`).

The arrival rate is estimated on line; the control is the one solved for the nearest rate of its grid. Without a usable
alternative the active sub-batch goes on, and a free processor starts what the control says for the rows that wait.

Nobody starves: a sub-batch that has been kept waiting for longer than `PATIENCE` times its own whole run is preempted
no more until it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.core.control import Control, Solution
from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Comparison, Start, View, Wait, most_urgent_first
from lazybatch.core.policies.prediction import Running, drain
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason

PATIENCE = 3
"""A sub-batch in flight for this many times its own whole run, plus once for its own, is preempted no more."""
SILENCE_GAPS = 3.0
"""While waiting for company by the control's advice: give up after this many mean gaps without an arrival."""


QUEUE_SEEN = 3
"""Rows waiting beyond this many full batches do not change a decision."""


class Score(NamedTuple):
    """The measure of an alternative; smaller is better."""

    late: int
    cost: float


class Lookahead:
    """One-step lookahead over the solved graph-level control. See the module's text.

    controls: one per model, from `lazybatch.solver.solve`.
    """

    needs_table = True

    def __init__(self, controls: Mapping[str, Control]) -> None:
        self._controls = controls
        self._rates: dict[str, ArrivalRate] = {model: ArrivalRate() for model in controls}

    def __repr__(self) -> str:
        return "Lookahead()"

    def arrived(self, request: Request) -> None:
        """News of every admitted request: the arrival rate is estimated from it."""
        self._rates[request.model].arrived(request.arrival_ns)

    def decide(self, view: View, now: int) -> Choice:
        """Compare the alternatives; see the module's text."""
        if view.active is None:
            return self._start_or_wait(view, now)
        best: Start | None = None
        stay = self._score(view, None, 0, now)
        score = stay
        for lane in most_urgent_first(view.lanes, now):
            rows = self._newcomers(lane, view, now)
            if rows:
                join = self._score(view, lane, rows, now)
                if join < score:
                    score = join
                    reason = Reason.PREEMPT_SLACK if join.late < stay.late else Reason.PREEMPT_CHEAPER
                    best = Start(lane, rows, reason, comparison=Comparison(stay.cost, join.cost, stay.late, join.late))
        if best is None:
            return None
        return best

    # -- at a node boundary --------------------------------------------------------------------------------------

    def _newcomers(self, lane: Lane, view: View, now: int) -> int:
        """Rows of a lane that could preempt now and merge with what it has in flight; 0 for none."""
        head = lane.queue.head(now)
        top = lane.table.top
        room = lane.rows_max - lane.table.rows
        if (
            head is None
            or room <= 0
            or any(_impatient(entry.started_ns, view.lane_of(entry.model), now) for entry in view.stack)
        ):
            return 0
        if top is None:
            return 1 if type(head.signature) is Alone or not lane.spec.joinable else _compatible(lane, room, now)
        if top.signature != head.signature:
            return 0
        return lane.joining_rows(_compatible(lane, room, now))

    def _score(self, view: View, lane: Lane | None, rows: int, now: int) -> Score:
        """The measure of going on (no lane), or of starting ``rows`` of a lane on top of what is in flight."""
        stack = [
            Running(
                view.lane_of(entry.model), entry.cursor, len(entry.requests), entry.signature, (entry.deadlines_ns,)
            )
            for entry in view.stack
        ]
        if lane is not None:
            taken = lane.queue.peek(now, rows)
            deadlines_ns = sorted(request.deadline_ns for request in taken)
            stack.append(Running(lane, 0, len(taken), taken[0].signature, (deadlines_ns,)))
        drained = drain(stack, now)
        return self._with_those_left(view.lanes, lane, rows, drained.time_ns, drained.row_time_ns, drained.late, now)

    def _with_those_left(
        self,
        lanes: Sequence[Lane],
        started: Lane | None,
        rows: int,
        time_ns: int,
        row_time_ns: float,
        late: int,
        now: int,
    ) -> Score:
        """Add what rows that wait, and rows to come, cost while and after ``time_ns``."""
        cost = float(row_time_ns)
        for lane in lanes:
            solution = self._solution(lane, now)
            # Far out the values are no longer exact; what lies beyond costs the same in every alternative.
            left = min(len(lane.queue), QUEUE_SEEN * lane.rows_max) - (rows if lane is started else 0)
            cost += (
                left * time_ns
                + solution.rate_per_ns * time_ns * time_ns / 2
                - solution.gain_rows * time_ns
                + solution.after(left, time_ns)
            )
            if left:
                late += _late_waiting(lane, solution, rows if lane is started else 0, left, now + time_ns, now)
        return Score(late, cost)

    # -- when the processor is free ------------------------------------------------------------------------------

    def _start_or_wait(self, view: View, now: int) -> Choice:
        best: Start | Wait | None = None
        best_score: Score | None = None
        for lane in most_urgent_first(view.lanes, now):
            for choice, score in self._starts(lane, view, now):
                if best_score is None or score < best_score:
                    best, best_score = choice, score
        return best

    def _starts(self, lane: Lane, view: View, now: int) -> list[tuple[Start | Wait, Score]]:
        head = lane.queue.head(now)
        assert head is not None, "asked only about lanes in which something waits"
        if type(head.signature) is Alone or not lane.spec.joinable:
            return [(Start(lane, 1, Reason.START_ALONE), self._start_score(view, lane, 1, now))]
        fits = _compatible(lane, lane.rows_max, now)
        solution = self._solution(lane, now)
        advised = solution.start(len(lane.queue))
        if advised == 0:
            until_ns = self._waiting_ends(lane, fits, solution, now)
            if (
                until_ns > now
                and not view.draining
                and all(other is lane or not len(other.queue) for other in view.lanes)
            ):
                return [(Wait(until_ns), Score(0, 0.0))]
        sizes = {min(advised or fits, fits)}
        if head.deadline_ns < UNBOUNDED_NS:
            sizes |= {fits, max(1, fits // 2), 1}
        return [
            (
                Start(lane, size, Reason.START_FULL if size == lane.rows_max else Reason.START_IDLE),
                self._start_score(view, lane, size, now),
            )
            for size in sorted(sizes, reverse=True)
        ]

    def _start_score(self, view: View, lane: Lane, rows: int, now: int) -> Score:
        time_ns = lane.sums_ns[rows][-1]
        late = sum(request.deadline_ns < now + time_ns for request in lane.queue.peek(now, rows))
        return self._with_those_left(view.lanes, lane, rows, time_ns, rows * time_ns, late, now)

    def _waiting_ends(self, lane: Lane, fits: int, solution: Solution, now: int) -> int:
        """Until when to wait for one more row: silence or the tightest deadline ends it."""
        silence_ns = self._rates[lane.model].last_arrival_ns + int(SILENCE_GAPS / solution.rate_per_ns)
        deadline_ns = min(request.deadline_ns for request in lane.queue.peek(now, fits))
        return min(silence_ns, deadline_ns - lane.sums_ns[min(fits + 1, lane.rows_max)][-1])

    def _solution(self, lane: Lane, now: int) -> Solution:
        return self._controls[lane.model].at(self._rates[lane.model].per_ns(now) or 0.0)


def _compatible(lane: Lane, rows: int, now: int) -> int:
    """Rows of the head's signature that wait, at most ``rows``."""
    return min(rows, len(lane.queue)) if lane.queue.uniform else len(lane.queue.peek(now, rows))


def _impatient(started_ns: int, lane: Lane, now: int) -> bool:
    return now - started_ns > (PATIENCE + 1) * lane.sums_ns[lane.rows_max][-1]


def _late_waiting(lane: Lane, solution: Solution, skipped: int, left: int, free_ns: int, now: int) -> int:
    """Of the rows that stay in the queue, how many will end late if batches start from ``free_ns`` on.

    Alternatives are compared over one set of rows: the first ones of the queue, those that start now included.
    """
    head = lane.queue.head(now)
    if head is None or head.deadline_ns == UNBOUNDED_NS:
        return 0
    late = 0
    waiting = lane.queue.peek(now, 2 * lane.rows_max)[skipped:]
    at = 0
    while at < len(waiting):
        rows = min(solution.start(len(waiting) - at) or lane.rows_max, lane.rows_max, len(waiting) - at)
        free_ns += lane.sums_ns[rows][-1]
        late += sum(request.deadline_ns < free_ns for request in waiting[at : at + rows])
        at += rows
    return late
