"""Lookahead, the default policy: one step of looking ahead, over solved control.

Owns: `Lookahead`. Must not know: how controls are solved (`lazybatch.solver`), clocks, tensors.

Two questions, one measure. When the processor is free: how many waiting rows to start, or wait for one more? At a node
boundary: go on, or let newcomers catch up and merge first? Each alternative costs, in row-nanoseconds,

* the exact row-time until everything in flight is done, plus that of rows that wait or arrive meanwhile;
* what the rows left behind are worth under optimal control from there on, minus the optimal gain for the time taken (the
  relative value of a semi-Markov decision process; see `core.control`);
* `LATE_WEIGHT` times its SLA target for every row predicted to miss its deadline.

The arrival rate is estimated on line, and the control is the one solved for the nearest rate of its grid. Several models
share the processor: each is valued as if it had a share of it for itself (Kleinrock's square-root assignment: what it
needs, plus a part of what is spare), so a rare long model is not forgotten beside a busy short one.

What was refused is looked at again when something has changed: an arrival, a merge, the end of a sub-batch. Until then
the newcomers' way to catch up only grows.

Nobody starves: a sub-batch that has been kept waiting for longer than `PATIENCE` times its own whole run is preempted
no more until it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
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
LATE_WEIGHT = 4.0
"""A row that misses its deadline costs this many of its SLA targets of row-time."""


class _Outlook:
    """What is expected of one lane: its arrival rate, and the control that follows from it."""

    __slots__ = ("advance", "control", "rate", "share", "solution")

    def __init__(self, control: Control) -> None:
        self.control = control
        self.rate = ArrivalRate()
        self.solution: Solution = control.solutions[0]
        self.share = 1.0


class Lookahead:
    """One-step lookahead over the solved graph-level control. See the module's text.

    controls: one per model, from `lazybatch.solver.solve`.
    """

    needs_table = True

    def __init__(self, controls: Mapping[str, Control], late_weight: float = LATE_WEIGHT) -> None:
        self._outlooks = {model: _Outlook(control) for model, control in controls.items()}
        self._penalty_ns: dict[str, float] = {}
        self._late_weight = late_weight
        self._news = 0
        self._settled: tuple[int, int, int, int] | None = None

    def __repr__(self) -> str:
        return "Lookahead()"

    def arrived(self, request: Request) -> None:
        """News of every admitted request: the arrival rate and the price of lateness follow from it."""
        self._news += 1
        self._outlooks[request.model].rate.arrived(request.arrival_ns)
        if request.deadline_ns < UNBOUNDED_NS:
            self._penalty_ns[request.model] = self._late_weight * (request.deadline_ns - request.arrival_ns)

    def decide(self, view: View, now: int) -> Choice:
        """Compare the alternatives; see the module's text."""
        top = view.active
        if top is None:
            self._look(view.lanes, now)
            return self._start_or_wait(view, now)
        situation = (self._news, len(view.stack), top.id, len(top.requests))
        if situation == self._settled:
            return None
        best = self._preempt(view, now)
        if best is None:
            self._settled = situation
        return best

    def _look(self, lanes: Sequence[Lane], now: int) -> None:
        """Bring rates, shares and solutions up to the present moment."""
        outlooks = self._outlooks
        if len(lanes) == 1:
            outlook = outlooks[lanes[0].model]
            outlook.solution = outlook.control.at(outlook.rate.per_ns(now) or 0.0)
            return
        rates = [outlooks[lane.model].rate.per_ns(now) or 0.0 for lane in lanes]
        loads = [rate / outlooks[lane.model].control.capacity_per_ns for rate, lane in zip(rates, lanes, strict=True)]
        total = sum(loads)
        spare, roots = max(0.0, 1.0 - total), sum([sqrt(load) for load in loads])
        for lane, rate, load in zip(lanes, rates, loads, strict=True):
            outlook = outlooks[lane.model]
            share = load / max(1.0, total) + (spare * sqrt(load) / roots if roots else 1.0)
            outlook.share = max(share, 1e-3)
            outlook.solution = outlook.control.at(rate / outlook.share)

    # -- at a node boundary --------------------------------------------------------------------------------------

    def _preempt(self, view: View, now: int) -> Start | None:
        best: Start | None = None
        stay = score = None
        for lane in most_urgent_first(view.lanes, now):
            rows = self._newcomers(lane, view, now)
            if not rows:
                continue
            if score is None:
                self._look(view.lanes, now)
                stay = score = self._score(view, None, 0, now)
            join = self._score(view, lane, rows, now)
            if join < score:
                score = join
                best = Start(lane, rows, Reason.PREEMPT_CHEAPER, comparison=Comparison(stay, join, 0, 0))
        return best

    def _newcomers(self, lane: Lane, view: View, now: int) -> int:
        """Rows of a lane that could preempt now and merge with what it has in flight; 0 for none."""
        room = lane.rows_max - lane.table.rows
        if room <= 0 or any([_impatient(entry, view.lane_of(entry.model), now) for entry in view.stack]):
            return 0
        top = lane.table.top
        head = lane.queue.head(now)
        if top is None:
            return 1 if type(head.signature) is Alone or not lane.spec.joinable else _compatible(lane, room, now)
        if top.signature != head.signature:
            return 0
        return lane.joining_rows(_compatible(lane, room, now))

    def _score(self, view: View, lane: Lane | None, rows: int, now: int) -> float:
        """The measure of going on (no lane), or of starting ``rows`` of a lane on top of what is in flight."""
        stack = [
            Running(
                view.lane_of(entry.model), entry.cursor, len(entry.requests), entry.signature, (entry.deadlines_ns,)
            )
            for entry in view.stack
        ]
        if lane is not None:
            taken = lane.queue.peek(now, rows)
            deadlines_ns = sorted([request.deadline_ns for request in taken])
            stack.append(Running(lane, 0, len(taken), taken[0].signature, (deadlines_ns,)))
        drained = drain(stack, now, self._penalty_ns)
        return self._with_those_left(
            view.lanes, lane, rows, drained.time_ns, drained.row_time_ns + drained.late_ns, now
        )

    def _with_those_left(
        self, lanes: Sequence[Lane], started: Lane | None, rows: int, time_ns: int, cost_ns: float, now: int
    ) -> float:
        """Add what rows that wait, and rows to come, cost while and after ``time_ns``."""
        free_ns = now + time_ns
        for lane in lanes:
            outlook = self._outlooks[lane.model]
            solution, share = outlook.solution, outlook.share
            # Far out the values are no longer exact; what lies beyond costs the same in every alternative.
            skipped = rows if lane is started else 0
            left = min(len(lane.queue), QUEUE_SEEN * lane.rows_max) - skipped
            if share == 1.0:
                cost_ns += (
                    left * time_ns
                    + solution.rate_per_ns * time_ns * time_ns / 2
                    - solution.gain_rows * time_ns
                    + solution.after(left, time_ns)
                )
            else:
                cost_ns += (
                    left * time_ns
                    + solution.rate_per_ns * share * time_ns * time_ns / 2
                    - solution.gain_rows * time_ns
                    + solution.after(left, int(time_ns * share)) / share
                )
            if left and lane.model in self._penalty_ns:
                late, free_ns = _late_waiting(lane, solution, skipped, free_ns, now)
                cost_ns += late * self._penalty_ns[lane.model]
        return cost_ns

    # -- when the processor is free ------------------------------------------------------------------------------

    def _start_or_wait(self, view: View, now: int) -> Choice:
        best: Start | Wait | None = None
        best_score = 0.0
        for lane in most_urgent_first(view.lanes, now):
            for choice, score in self._starts(lane, view, now):
                if best is None or score < best_score:
                    best, best_score = choice, score
        return best

    def _starts(self, lane: Lane, view: View, now: int) -> list[tuple[Start | Wait, float]]:
        head = lane.queue.head(now)
        assert head is not None, "asked only about lanes in which something waits"
        if type(head.signature) is Alone or not lane.spec.joinable:
            return [(Start(lane, 1, Reason.START_ALONE), self._start_score(view, lane, 1, now))]
        fits = _compatible(lane, lane.rows_max, now)
        outlook = self._outlooks[lane.model]
        advised = outlook.solution.start(len(lane.queue))
        if advised == 0:
            until_ns = self._waiting_ends(lane, fits, outlook.solution, now)
            if (
                until_ns > now
                and not view.draining
                and all([other is lane or not len(other.queue) for other in view.lanes])
            ):
                return [(Wait(until_ns), 0.0)]
        sizes = {min(advised or fits, fits)}
        if head.deadline_ns < UNBOUNDED_NS:
            sizes |= {fits, max(1, fits // 2), 1}
        if len(sizes) == 1 and len(view.lanes) == 1:
            size = sizes.pop()
            return [(Start(lane, size, _why(lane, size)), 0.0)]
        return [
            (Start(lane, size, _why(lane, size)), self._start_score(view, lane, size, now))
            for size in sorted(sizes, reverse=True)
        ]

    def _start_score(self, view: View, lane: Lane, rows: int, now: int) -> float:
        time_ns = lane.sums_ns[rows][-1]
        price_ns = self._penalty_ns.get(lane.model)
        late_ns = 0.0
        if price_ns is not None:
            end_ns = now + time_ns
            late_ns = price_ns * sum([request.deadline_ns < end_ns for request in lane.queue.peek(now, rows)])
        return self._with_those_left(view.lanes, lane, rows, time_ns, rows * time_ns + late_ns, now)

    def _waiting_ends(self, lane: Lane, fits: int, solution: Solution, now: int) -> int:
        """Until when to wait for one more row: silence or the tightest deadline ends it."""
        outlook = self._outlooks[lane.model]
        silence_ns = outlook.rate.last_arrival_ns + int(SILENCE_GAPS / (solution.rate_per_ns * outlook.share))
        deadline_ns = min([request.deadline_ns for request in lane.queue.peek(now, fits)])
        return min(silence_ns, deadline_ns - lane.sums_ns[min(fits + 1, lane.rows_max)][-1])


def _why(lane: Lane, rows: int) -> Reason:
    return Reason.START_FULL if rows == lane.rows_max else Reason.START_IDLE


def _compatible(lane: Lane, rows: int, now: int) -> int:
    """Rows of the head's signature that wait, at most ``rows``."""
    return min(rows, len(lane.queue)) if lane.queue.uniform else len(lane.queue.peek(now, rows))


def _impatient(entry, lane: Lane, now: int) -> bool:
    return now - entry.started_ns > (PATIENCE + 1) * lane.sums_ns[lane.rows_max][-1]


def _late_waiting(lane: Lane, solution: Solution, skipped: int, free_ns: int, now: int) -> tuple[int, int]:
    """Of the rows that stay in the queue, how many will end late if batches start from ``free_ns`` on.

    Alternatives are compared over one set of rows: the first ones of the queue, those that start now included.
    """
    late = 0
    deadlines_ns = [request.deadline_ns for request in lane.queue.peek(now, 2 * lane.rows_max)[skipped:]]
    left = len(deadlines_ns)
    at = 0
    while left:
        rows = min(solution.start(left) or lane.rows_max, left)
        free_ns += lane.sums_ns[rows][-1]
        late += sum([deadline_ns < free_ns for deadline_ns in deadlines_ns[at : at + rows]])
        at += rows
        left -= rows
    return late, free_ns
