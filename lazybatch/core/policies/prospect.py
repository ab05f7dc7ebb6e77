"""What is to be expected of the rows that wait, and of those to come.

Owns: `Prospect`: arrival rates, the controls that follow from them, the price of lateness, and the cost of what an
alternative leaves behind.
Must not know: what is in flight, which alternatives there are.

What a model leaves behind is worth what its control says: during a time T, left T + rate T^2 / 2 row-time pass, and
E[h(left + arrivals)] - gain T follows (the relative value of a semi-Markov decision process; see `core.control`).

The control is that of the mean rate. How long rows really take is a second opinion on it, right where the first is
most needed: close to saturation, where latencies tell loads apart best. The last few arrivals count where they came
faster, but for no more than `BURST_LOAD`: at low loads a burst is worth batching for, at high ones running after every
cluster costs more than it gains.

A machine may be slower than it was when its tables were measured, or faster. What alternatives cost is in the time of
the tables: a rate is that of the clock times the pace, a price what it is by the clock over the pace. Deadlines are
compared with what the clock will show: now plus the pace times what the table says.

Deadlines: a row that ends late costs a price, the less the more the processor is loaded, because there every moment
that is spent on saving one row makes others late. With several models the price is the same for all of them, so that
short ones, which are saved in little time, are. A row that is late whatever is done (*lost*) has no price, and lets
those pass that can still be in time; but only while it will itself be done soon enough (`left.PASS_WITHIN`), so that
the tail does not pay for it.

Several models share the processor. Each is valued as if it had a share of it for itself: what its rate needs, plus a
part of what is spare in proportion to the square root of that (Kleinrock's capacity assignment, Communication Nets,
1964). In a share s the same control holds with time stretched by 1 / s. So a model is neither forgotten beside a busier
one, nor is its batching judged as if the others were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.core.control import Control
from lazybatch.core.lane import Lane
from lazybatch.core.pace import Pace
from lazybatch.core.policies.left import Left
from lazybatch.core.request import UNBOUNDED_NS, Request

LATE_WEIGHT = 1.25
"""A row that misses its deadline costs this many of its model's usual SLA target of row-time, times the processor's
spare share. Were it the row's own target, or the last one's, chance would decide what a lone urgent row may cost."""
LATE_WEIGHT_SHARED = 1.5
"""With several models: this many of the longest usual SLA target among them, whichever model the row is of."""
TAIL_FROM = 1.3
"""The tail begins at this many mean latencies (by the control, slowed by what the other models need)."""
SILENCE_GAPS = 1.0
"""While waiting for company by the control's advice: give up after this many mean gaps without an arrival."""
BURST_LOAD = 0.6
"""The load up to which arrivals that come faster than the mean count as the rate."""
_SPARE_MIN = 0.1
_LATENCIES, _LATENCIES_MIN = 512, 128
"""The mean latency that was seen is taken over about so many rows; it corrects the rate once it is of so many."""
_RECENT, _OVER = 64, 4.0
"""Where the last rows, about so many, took so many times less than that mean, an overload is over: it is forgotten."""
_NOTHING_SEEN = (0, 0.0, 0.0)
_TARGETS = 64
"""The usual target is that of the last rows, about so many."""
_SHARE_MIN = 0.1
"""A model is never valued as if it had less of the processor, however rarely it is asked for."""


class _Model:
    """One lane and what follows from its rate, as long as that is the same.

    rate_per_ns: in the time of the table. load: rate over capacity; root: of that. solution: the control of the rate
    where others do not disturb.
    """

    __slots__ = ("arrivals", "control", "lane", "left", "load", "model", "rate_per_ns", "root", "solution")

    def __init__(self, lane: Lane, control: Control, arrivals: ArrivalRate) -> None:
        self.lane = lane
        self.model = lane.model
        self.control = control
        self.arrivals = arrivals
        self.rate_per_ns = self.load = self.root = 0.0
        self.solution = control.at(0.0)
        self.left = Left(lane, self.solution)

    def change(self, rate_per_ns: float) -> None:
        """The rate is another now."""
        self.rate_per_ns = rate_per_ns
        self.load = rate_per_ns / self.control.capacity_per_ns
        self.root = sqrt(self.load)
        self.solution = self.control.at(rate_per_ns)


class Prospect:
    """What lies ahead of all lanes. `look` brings it up to the present moment; everything else reads."""

    def __init__(self, controls: Mapping[str, Control], rates: Callable[[], ArrivalRate] = ArrivalRate) -> None:
        self._controls = controls
        self._rates = {model: rates() for model in controls}
        self.sla_ns: dict[str, float] = {}
        """By model, the usual target of its rows: their mean by ratio, as targets may be of very different sizes."""
        self._targets: dict[str, int] = {}
        self.late_price_ns: dict[str, float] = {}
        self.tail_from_ns: dict[str, float] = {}
        self.left: dict[str, Left] = {}
        self.calm_until_ns = 0
        """Nobody who waits is late if the processor is free by then, whoever starts now."""
        self._lanes: Sequence[Lane] = ()
        self._models: list[_Model] = []
        self._machine: Pace | None = None
        self._lefts: list[Left] = []
        self._seen: dict[str, tuple[int, float, float]] = {}

    def arrived(self, request: Request) -> None:
        """One more request was admitted."""
        self._rates[request.model].arrived(request.arrival_ns)
        if request.deadline_ns < UNBOUNDED_NS:
            self._aim(request.model, max(1, request.deadline_ns - request.arrival_ns))

    def _aim(self, model: str, sla_ns: int) -> None:
        if self._targets.get(model) == _TARGETS and self.sla_ns[model] == sla_ns:
            return  # as ever
        usual_ns, count = self.sla_ns.get(model, float(sla_ns)), min(self._targets.get(model, 0) + 1, _TARGETS)
        self._targets[model] = count
        self.sla_ns[model] = usual_ns if sla_ns == usual_ns else usual_ns * (sla_ns / usual_ns) ** (1 / count)

    def ran(self, lane: Lane, node: int, rows: int, took_ns: int) -> None:
        """A node has run, with so many rows."""
        if self._machine is not None:
            assert lane.times_ns is not None, "lanes without a table are refused"
            self._machine.ran(took_ns, lane.times_ns[node][rows])

    @property
    def pace(self) -> float:
        """What nodes take just now, of whichever model, over what tables say."""
        return 1.0 if self._machine is None else self._machine.ratio

    def completed(self, model: str, requests: Sequence[Request], now: int) -> None:
        """These have ended; how long rows take is seen, whatever the control expects."""
        count, mean_ns, recent_ns = self._seen.get(model, _NOTHING_SEEN)
        pace = self.pace
        for request in requests:
            count = min(count + 1, _LATENCIES)
            took_ns = (now - request.arrival_ns) / pace
            mean_ns += (took_ns - mean_ns) / count
            recent_ns += (took_ns - recent_ns) / min(count, _RECENT)
        if count >= _LATENCIES_MIN and recent_ns < mean_ns / _OVER:
            count, mean_ns = _RECENT, recent_ns
        self._seen[model] = count, mean_ns, recent_ns

    def rate_per_ns(self, model: str, now: int) -> float:
        """Estimated arrivals of a model per nanosecond of its table; the least positive number before anything is
        known."""
        return (self._rates[model].per_ns(now) or 0.0) * self.pace or 5e-324

    def look(self, lanes: Sequence[Lane], now: int) -> None:
        """Bring everything up to the present moment."""
        if lanes is not self._lanes:
            self._meet(lanes)
        if len(lanes) == 1:
            self._look_at_one(now)
            return
        models, at_work, total, roots, pace = self._models, 0, 0.0, 0.0, self.pace
        for of in models:
            rate_per_ns = (of.arrivals.per_ns(now) or 0.0) * pace
            if rate_per_ns != of.rate_per_ns:
                of.change(rate_per_ns)
            total += of.load
            roots += of.root
            if of.lane.table.rows or len(of.lane.queue):
                at_work += 1
        if self.sla_ns:
            price_ns = LATE_WEIGHT_SHARED * max(self.sla_ns.values()) / pace
            self.late_price_ns = dict.fromkeys(self.sla_ns, price_ns)
        timed, tail_from_ns, calm_until_ns = self.late_price_ns, self.tail_from_ns, UNBOUNDED_NS
        shared, offered, spare, roots = at_work > 1, max(1.0, total), max(0.0, 1.0 - total), roots or 1.0
        for of in models:
            load, solution, share, left = of.load, of.solution, 1.0, of.left
            slowed = 1.0 - total + load
            tail_from_ns[of.model] = (
                TAIL_FROM * pace * solution.mean_latency_ns / (slowed if slowed > _SHARE_MIN else _SHARE_MIN)
            )
            if shared:
                share = load / offered + spare * of.root / roots
                if share < _SHARE_MIN:
                    share = _SHARE_MIN
                if share < 1.0:
                    solution = of.control.at(of.rate_per_ns / share)
            left.see(solution, share, now, of.model in timed, pace)
            if left.late_alone:
                self._lose(left)
            if left.calm_until_ns < calm_until_ns:
                calm_until_ns = left.calm_until_ns
        self.calm_until_ns = calm_until_ns

    def _meet(self, lanes: Sequence[Lane]) -> None:
        """See these lanes for the first time. Of a scheduler made anew, models have the same names and other queues."""
        self._lanes = lanes
        known = {of.left.lane: of for of in self._models}
        self._models = [
            known.get(lane) or _Model(lane, self._controls[lane.model], self._rates[lane.model]) for lane in lanes
        ]
        self._lefts = [of.left for of in self._models]
        if self._machine is None:
            self._machine = Pace(sum([lane.run_ns(1) for lane in lanes]) // len(lanes))
        self.left = {of.model: of.left for of in self._models}

    def _look_at_one(self, now: int) -> None:
        """The same with a share of 1, on the path of most decisions; and the rate is looked at more closely."""
        of = self._models[0]
        model, control, arrivals, left, pace = of.model, of.control, of.arrivals, of.left, self.pace
        rate = (arrivals.per_ns(now) or 0.0) * pace
        sla_ns = self.sla_ns.get(model)
        if sla_ns is not None:
            spare = 1.0 - rate / control.capacity_per_ns
            self.late_price_ns[model] = LATE_WEIGHT * (spare if spare > _SPARE_MIN else _SPARE_MIN) * sla_ns / pace
        solution = control.at(rate)
        count, seen_ns, _ = self._seen.get(model, _NOTHING_SEEN)
        if count >= _LATENCIES_MIN:
            solution = control.agreeing(solution, seen_ns)
        recent_per_ns = (arrivals.recent_per_ns(now) or 0.0) * pace
        if recent_per_ns > solution.rate_per_ns:
            burst = control.at(min(recent_per_ns, BURST_LOAD * control.capacity_per_ns))
            if burst.rate_per_ns > solution.rate_per_ns:
                solution = burst
        self.tail_from_ns[model] = TAIL_FROM * pace * solution.mean_latency_ns
        left.see(solution, 1.0, now, sla_ns is not None, pace)
        if left.late_alone:
            self._lose(left)
        self.calm_until_ns = left.calm_until_ns

    def _lose(self, left: Left) -> None:
        """The first rows of a lane are late whatever is done."""
        model = left.lane.model
        seen_ns = self._seen.get(model, _NOTHING_SEEN)[1] * self.pace
        left.lose(max(self.tail_from_ns[model] / TAIL_FROM, seen_ns))

    def cost_ns(
        self, started: Lane | None, rows: int, time_ns: int, now: int, *, passing: bool = False
    ) -> tuple[float, int]:
        """Row-time of those that wait and those to come, and how many of the former end late.

        started, rows: the lane of which so many of the first rows start now (None: none do). passing: of the first
        behind the lost. time_ns: until everything in flight, those included, is done.
        """
        cost_ns, late, free_ns = 0.0, 0, now + self.pace * time_ns
        for left in self._lefts:
            begun = rows if left.lane is started else 0
            cost_ns += left.row_time_ns(left.rows - begun, time_ns)
            if free_ns > left.calm_until_ns and (missed := left.late(begun, free_ns, passing=passing)):
                late += missed
                cost_ns += missed * self.late_price_ns[left.lane.model]
        return cost_ns, late

    def others_ns(self, lane: Lane, time_ns: int) -> float:
        """What of `cost_ns` is the row-time of all other lanes, where this one runs for so long."""
        return sum([left.row_time_ns(left.rows, time_ns) for left in self._lefts if left.lane is not lane])

    def deadlines_ns(self, lane: Lane, rows: int, *, passing: bool = False) -> Sequence[int]:
        """Deadlines of a lane's first rows, without those of the lost. passing: of the first behind the lost."""
        left = self.left[lane.model]
        return left.deadlines_ns[: rows if passing else max(0, rows - left.lost)]

    def late_started(self, lane: Lane, rows: int, end_ns: float, *, passing: bool = False) -> tuple[float, int]:
        """What the first rows of a lane cost by being late if they end then, and how many are."""
        if self.left[lane.model].tightest_ns >= end_ns:
            return 0.0, 0
        late = sum([deadline_ns < end_ns for deadline_ns in self.deadlines_ns(lane, rows, passing=passing)])
        return late * self.late_price_ns[lane.model] if late else 0.0, late

    def waiting_ends_ns(self, lane: Lane, fits: int, now: int) -> int:
        """Until when to wait for one more row: silence, or the tightest deadline, ends it."""
        left = self.left[lane.model]
        pace, run_ns = self.pace, lane.run_ns(min(fits + 1, lane.rows_max))
        silence_ns = self._rates[lane.model].last_arrival_ns + int(SILENCE_GAPS * pace / left.per_ns)
        return min(silence_ns, min(left.deadlines_ns, default=UNBOUNDED_NS) - int(pace * run_ns))
