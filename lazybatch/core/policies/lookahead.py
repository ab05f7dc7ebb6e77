"""Lookahead, the default policy: one step of looking ahead, over solved control.

Owns: `Lookahead`: which alternatives there are, and the choice. Must not know: how controls are solved
(`lazybatch.solver`), clocks, tensors.

Two questions, one measure. When the processor is free: how many waiting rows to start, of which model, or wait for one
more? At a node boundary: go on, or let newcomers catch up and merge first? The measure of an alternative is the time it
makes rows spend, in row-nanoseconds: those in flight by exact tables (`prediction`), those that wait and those to come
by expectation (`prospect`). On top come a price for every row predicted to miss its deadline, and `TAIL_WEIGHT` times
what rows in flight spend in the tail, so that the mean is not bought with the slowest.

Who was refused is looked at again when something has changed for him: one more row of his model, a merge, the end of a
sub-batch, the next iteration of a loop. Until then the newcomers' way to catch up only grows.

In a running loop newcomers of its own model come in by solved thresholds (`joining`).

Rows of a padded model that are of other lengths than those in flight do not preempt them: they can never merge, and
may ride along when the next batch starts (`riding`).

Priorities are strict, with what ageing adds to them. Rows of the highest level that waits start first, and no row is
preempted by a lower one. Among equals nobody starves: a sub-batch lends its turn to other models only up to `LENDING`
times its own run; one that has been in flight for `PATIENCE` of its model's longest runs is preempted no more; and a
model is passed over for no longer than some rounds (`turns.ROUNDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.core.batch_table import SubBatch
from lazybatch.core.control import Control
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Comparison, Start, Stay, View, most_urgent_first
from lazybatch.core.policies.joining import Joining, LoopControls
from lazybatch.core.policies.prediction import Running, drain
from lazybatch.core.policies.prospect import Prospect
from lazybatch.core.policies.starting import Starting, crowded_rows, is_alone, startable
from lazybatch.core.policies.turns import overdue
from lazybatch.core.progress import Progress
from lazybatch.core.request import Request
from lazybatch.core.task import Reason

TAIL_WEIGHT = 6.0
"""What time that a row in flight spends in the tail costs, in row-time."""
PATIENCE = 4
"""A sub-batch in flight for so many of its model's longest runs is preempted no more."""
LENDING = 1.0
"""A sub-batch waits for other models for at most so many of its own runs."""
LENDING_IN_LOOPS = 2.0
"""The same in a loop, where rows wait for newcomers of their own model as well, and the two are not told apart."""
LANES_WEIGHED = 8
"""Of so many lanes, those with the most urgent rows, starts are weighed: with each the cost of all lanes is summed."""
_new = tuple.__new__  # as in the scheduler: a NamedTuple's own constructor is one more call


class Score(NamedTuple):
    """The measure of an alternative; smaller is better. late: rows predicted to miss their deadline, priced in it."""

    cost_ns: float
    late: int


class Lookahead:
    """One-step lookahead over the solved graph-level control. See the module's text.

    controls: one per model, from `lazybatch.solver.solve`. loops: by model, one per loop, from `lazybatch.loop_solver`;
    models that are left out are served by a rule of thumb. rates: makes the estimate of a model's arrival rate. One
    object serves one scheduler: it learns from what arrives and ends.
    """

    needs_table = True

    def __init__(
        self,
        controls: Mapping[str, Control],
        loops: LoopControls | None = None,
        *,
        rates: Callable[[], ArrivalRate] = ArrivalRate,
    ) -> None:
        self._prospect = Prospect(controls, rates)
        self.ran = self._prospect.ran
        """News of every node that has run: how fast the machine is. Heard at every boundary, so without a detour."""
        self._starting = Starting(self._prospect)
        self._joining = Joining(loops or {})
        self._levels = self._ages = False
        self._lanes: Sequence[Lane] = ()
        self._news: set[str] = set()
        self._settled: tuple[int, int, int, int] | None = None

    def __repr__(self) -> str:
        return "Lookahead()"

    @property
    def pace(self) -> float:
        """What nodes take just now over what their tables say."""
        return self._prospect.pace

    def arrived(self, request: Request) -> None:
        """News of every admitted request: the arrival rate and the price of lateness follow from it."""
        self._news.add(request.model)
        self._levels = self._levels or request.priority != 0
        self._prospect.arrived(request)

    def completed(self, sub_batch: SubBatch, now: int) -> None:
        """News of every sub-batch that has ended: how long its rows took."""
        self._prospect.completed(sub_batch.model, sub_batch.requests, now)

    def decide(self, view: View, now: int) -> Choice:
        """Compare the alternatives; see the module's text."""
        top = view.active
        if top is None:
            return self._start_or_wait(view, now)
        if top.progress is not None:
            choice = self._join(view, top, now)
            if type(choice) is Start or len(view.lanes) == 1:
                return choice
        situation = (len(view.stack), top.id, len(top.requests), 0 if top.progress is None else top.progress.steps)
        if situation != self._settled:
            lanes = view.lanes
        elif self._news:
            lanes = [lane for lane in view.lanes if lane.model in self._news]
        else:
            return None
        choice = self._preempt_or_stay(view, lanes, now)
        self._news.clear()
        # Once newcomers that start now have ended, the situation looks the same: others may be waiting for that. And
        # who ages comes to be asked about without any news.
        self._settled = None if type(choice) is Start or (self._ages and self._levels) else situation
        return choice

    def _start_or_wait(self, view: View, now: int) -> Choice:
        self._prospect.look(view.lanes, now)
        lanes = view.lanes
        if len(lanes) > 1:
            lanes = most_urgent_first(lanes, now)
        if len(lanes) == 1:
            return self._starting.start_or_wait(lanes[0], now, draining=view.draining)
        leading = self._leading(view, now)
        return self._starting.start([lane for lane in lanes if lane in leading][:LANES_WEIGHED], now)

    def _preempt_or_stay(self, view: View, lanes: Sequence[Lane], now: int) -> Choice:
        outranked = False
        if len(view.lanes) > 1:
            leading = self._leading(view, now)
            lanes = [lane for lane in lanes if lane in leading]
        if self._ranked(view):
            ranks = [(lane, self._above(lane, view, now)) for lane in lanes if len(lane.queue)]
            lanes = [lane for lane, above in ranks if above >= 0]
            outranked = any(above > 0 for _, above in ranks)
            if outranked:
                lanes = [lane for lane, above in ranks if above > 0]
        candidates = [(lane, rows) for lane in lanes if (rows := self._newcomers(lane, view, outranked, now))]
        if not candidates:
            return None
        self._prospect.look(view.lanes, now)
        running = [_running(entry, view) for entry in view.stack]
        stay = best = self._score_in_flight(running.copy(), None, 0, now)
        chosen: Lane | None = None
        for lane, rows in candidates:
            while True:
                score = self._score_in_flight(running.copy(), lane, rows, now)
                if score.cost_ns < best.cost_ns or (outranked and chosen is None):
                    best, chosen, chosen_rows = score, lane, rows
                if score.late <= stay.late or not (rows := lane.joining_rows(rows // 2)):
                    break
        if chosen is None:
            return Stay(Reason.STAY_CHEAPER, Comparison(stay.cost_ns, score.cost_ns, stay.late, score.late))
        reason = (
            Reason.PREEMPT_URGENT
            if outranked
            else Reason.PREEMPT_SLACK
            if best.late < stay.late
            else Reason.PREEMPT_CHEAPER
        )
        compared = Comparison(stay.cost_ns, best.cost_ns, stay.late, best.late)
        return Start(chosen, chosen_rows, reason, comparison=compared)

    def _join(self, view: View, top: SubBatch, now: int) -> Choice:
        """Whether rows of the active sub-batch's own model come into the loop that it runs."""
        lane = view.lane_of(top.model)
        if not len(lane.queue) or (len(view.lanes) > 1 and lane not in self._leading(view, now)):
            return None
        above = self._above(lane, view, now) if self._ranked(view) else 0
        if above < 0:
            return None
        rate_per_ns = self._prospect.rate_per_ns(lane.model, now)
        return self._joining.decide(lane, top, rate_per_ns, now, pace=self._prospect.pace, at_once=above > 0)

    def _ranked(self, view: View) -> bool:
        """Whether rows can be of different levels."""
        if view.lanes is not self._lanes:
            self._lanes = view.lanes
            self._levels = self._levels or any(lane.spec.levels for lane in view.lanes)
            self._ages = any(lane.spec.ageing_ns is not None for lane in view.lanes)
        return self._levels

    def _above(self, lane: Lane, view: View, now: int) -> int:
        """By how many levels the first row that waits in a lane is above all that is in flight. Of its own model it is
        priorities that count: of equals whoever runs came first, and will always be older.
        """
        head, queue = lane.queue.head(now), lane.queue
        assert head is not None, "something waits there"
        if not self._ages:
            return head.priority - max([row.priority for entry in view.stack for row in entry.requests])
        level = queue.level(head, now)
        return min(
            [
                head.priority - row.priority
                if row.model == head.model
                else level - view.lane_of(row.model).queue.level(row, now)
                for entry in view.stack
                for row in entry.requests
            ]
        )

    def _leading(self, view: View, now: int) -> list[Lane]:
        """The lanes whose turn it may be: of the highest level that waits, and of these one that is overdue first."""
        heads = [(lane, head) for lane in view.lanes if (head := lane.queue.head(now)) is not None]
        if self._ranked(view):
            levels = [lane.queue.level(head, now) for lane, head in heads]
            highest = max(levels)
            heads = [one for one, level in zip(heads, levels, strict=True) if level == highest]
        lanes = [lane for lane, _ in heads]
        if len(lanes) < 2:
            return lanes
        lane, head = min(reversed(heads), key=lambda one: one[1].arrival_ns)
        return [lane] if overdue(head, lanes, view, now, self._prospect.pace) else lanes

    def _newcomers(self, lane: Lane, view: View, outranked: bool, now: int) -> int:
        """Rows of a lane that may preempt now, and can merge with what it has in flight; 0 for none.

        outranked: they are of a higher level than all that is in flight, so nobody there is asked. Into a model with
        loops that is in flight they come by `Joining` alone.
        """
        head, table = lane.queue.head(now), lane.table
        room = lane.rows_max - table.rows
        if head is None or room <= 0 or crowded_rows(lane, self._prospect) or (lane.loops and table.rows):
            return 0
        rows, top = startable(lane, room, now, alone=is_alone(lane, now)), table.top
        if top is not None:
            if top.signature != head.signature:
                return 0
            rows = lane.joining_rows(rows)
        elif not outranked and _other_length(lane, view):
            return 0
        if not rows or outranked:
            return rows
        pace = self._prospect.pace
        # Who has waited for others already may still wait for a few rows, if not for all that wait.
        while rows and any(_unwilling(entry, view, lane, lane.run_ns(rows), now, pace) for entry in view.stack):
            rows = lane.joining_rows(rows // 2)
        return rows

    def _score_in_flight(self, stack: list[Running], lane: Lane | None, rows: int, now: int) -> Score:
        """The measure of going on (no lane), or of starting ``rows`` of a lane on top of what is in flight."""
        prospect = self._prospect
        if lane is not None:
            head = lane.queue.head(now)
            assert head is not None, "newcomers were counted"
            deadlines_ns = sorted(prospect.deadlines_ns(lane, rows))
            stack.append(_new(Running, (lane, 0, rows, head.signature, (deadlines_ns,), (), 0)))
        pace = prospect.pace
        time_ns, row_time_ns, late_in_flight, late_ns, tail_ns = drain(
            stack, now, prospect.late_price_ns, prospect.tail_from_ns, pace
        )
        cost_ns, late = prospect.cost_ns(lane, rows, time_ns, now)
        cost_ns += row_time_ns + late_ns + TAIL_WEIGHT * tail_ns / pace
        return _new(Score, (cost_ns, late + late_in_flight))


def _other_length(lane: Lane, view: View) -> bool:
    """Whether rows of a lane, which has none in flight, are padded to another length than those of the same model that
    are."""
    if lane.spec.length is None:
        return False
    models = {entry.model for entry in view.stack}
    return any(model in lane.spec.wider or lane.model in view.lane_of(model).spec.wider for model in models)


def _running(entry: SubBatch, view: View) -> Running:
    requests = entry.requests
    lane = view.lane_of(entry.model)
    more_ns = 0 if entry.progress is None else _more_ns(lane, entry, entry.progress)
    return _new(Running, (lane, entry.cursor, len(requests), entry.signature, (entry.deadlines_ns,), requests, more_ns))


def _more_ns(lane: Lane, entry: SubBatch, progress: Progress) -> int:
    """What rows in a loop have left of it, by the iterations that they have made, beyond what the mean row has."""
    latency, times_ns = lane.loop_latency, lane.times_ns
    assert latency is not None, "lanes without a table are refused"
    assert times_ns is not None, "lanes without a table are refused"
    rows, number = len(entry.requests), progress.loop
    stop, sums_ns = lane.loops[number].stop, lane.sums_ns[rows]
    lefts = latency.expected_left(entry.requests, number, progress.iterations())
    once_ns = sum([node_ns[rows] for node_ns in times_ns[entry.cursor : stop]])
    left_ns = once_ns + (sum(lefts) / rows - 1) * lane.body_ns(number, rows)
    return round(left_ns) - (sums_ns[stop] - sums_ns[entry.cursor])


def _unwilling(entry: SubBatch, view: View, newcomers: Lane, time_ns: int, now: int, pace: float) -> bool:
    """Whether a sub-batch in flight has waited enough for others; time_ns: what the newcomers take. All is by the
    table: what the clock shows counts over the pace."""
    lane, rows, progress = view.lane_of(entry.model), len(entry.requests), entry.progress
    sums_ns = lane.sums_ns[rows]
    in_flight_ns, own_ns = (now - entry.started_ns) / pace, float(sums_ns[entry.cursor])
    if progress is not None:  # rows come and go: what counts is how they fare on average
        started_ns, iterations = progress.means()
        in_flight_ns = (now - started_ns) / pace
        own_ns = sums_ns[lane.loops[progress.loop].first] + iterations * lane.body_ns(progress.loop, rows)
    if in_flight_ns > PATIENCE * lane.run_ns(lane.rows_max):
        return True
    if lane is newcomers:
        return False
    lending = LENDING if progress is None else LENDING_IN_LOOPS
    return in_flight_ns - own_ns + time_ns > lending * sums_ns[-1]
