"""Prospect: rates and the controls that follow, shares of the processor, lateness, tails, and when waiting ends.

Unless said otherwise a model has 2 nodes that take 45 + 5 b ns each, at most 4 rows: 100 alone, 130 for four; its
capacity is 4 / 130 rows per nanosecond.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.control import Control
from lazybatch.core.lane import Lane
from lazybatch.core.policies.left import DEADLINES_SEEN, PASS_WITHIN, QUEUE_SEEN
from lazybatch.core.policies.prospect import (
    BURST_LOAD,
    LATE_WEIGHT,
    LATE_WEIGHT_SHARED,
    SILENCE_GAPS,
    TAIL_FROM,
    Prospect,
)
from lazybatch.solver import solve
from tests.core.kit import lane_spec, linear, row, sub_batch

CAPACITY = 4 / 130


@cache
def control(model: str = "m", fixed: int = 45, per_row: int = 5) -> Control:
    """The solved control of a table."""
    return solve(linear(model, 2, fixed, per_row, 4), 4)


def lane(model: str = "m", fixed: int = 45, per_row: int = 5) -> Lane:
    """The lane of a table."""
    return Lane(lane_spec(linear(model, 2, fixed, per_row, 4), max_batch_size=4))


def arrive(prospect: Prospect, of: Lane, load: float, *, arrivals: int = 200, sla: int | None = None) -> int:
    """Requests at a share of the capacity, in equal gaps; returns the time of the last."""
    gap_ns = round(1 / (load * CAPACITY))
    for k in range(arrivals):
        prospect.arrived(row(k, gap_ns * k, model=of.model, sla=sla))
    return gap_ns * (arrivals - 1)


def queue(of: Lane, rows: int, *, at: int = 0, sla: int | None = None) -> None:
    """Rows that wait."""
    for _ in range(rows):
        of.queue.push(row(10_000 + len(of.queue), at, model=of.model, sla=sla))


class TestOneModel:
    """It has the processor for itself."""

    def test_lanes_of_another_scheduler_are_looked_at_themselves(self) -> None:
        """Of the same name they are others: their queues count."""
        prospect, old, new = Prospect({"m": control()}), lane(), lane()
        prospect.look([old], 0)
        queue(new, 3)
        prospect.look([new], 0)
        assert prospect.left["m"].lane is new
        assert prospect.left["m"].waiting == 3

    @pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
    def test_its_share_is_all_and_its_control_that_of_its_rate(self, load: float) -> None:
        """With work and without; the solution is the nearest the control has."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, load)
        for rows in (0, 3):
            queue(m, rows)
            prospect.look([m], now)
            left = prospect.left["m"]
            assert (left.share, left.rows) == (1.0, rows)
            assert left.solution == control().at(1 / round(1 / (load * CAPACITY)))
            assert prospect.tail_from_ns["m"] == pytest.approx(TAIL_FROM * left.solution.mean_latency_ns)

    def test_before_anything_is_known_the_lowest_rate_is_taken(self) -> None:
        """One request says nothing of a rate."""
        m, prospect = lane(), Prospect({"m": control()})
        prospect.arrived(row(0))
        prospect.look([m], 0)
        assert prospect.left["m"].solution is control().solutions[0]

    def test_silence_lowers_the_rate(self) -> None:
        """Long after the last request the control is that of a low load."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, 0.9)
        prospect.look([m], now + 10**9)
        assert prospect.left["m"].solution is control().solutions[0]

    @pytest.mark.parametrize(("steady", "burst", "taken"), [(0.1, 0.4, 0.4), (0.1, 3.0, BURST_LOAD), (0.8, 3.0, 0.8)])
    def test_a_burst_counts_up_to_a_moderate_load(self, steady: float, burst: float, taken: float) -> None:
        """The control is that of the last arrivals, of `BURST_LOAD`, or of the mean rate where that is higher."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, steady)
        for k in range(20):
            now += round(1 / (burst * CAPACITY))
            prospect.arrived(row(1_000 + k, now))
        prospect.look([m], now)
        assert prospect.left["m"].solution == control().at(taken * CAPACITY)

    @pytest.mark.parametrize("load", [0.1, 0.95])
    def test_how_long_rows_take_corrects_the_rate(self, load: float) -> None:
        """Told a tenth or nearly all, rows take as long as at three quarters: that is about the rate then."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, load)
        mean_ns = round(control().at(0.75 * CAPACITY).mean_latency_ns)
        for rows in (127, 1):
            prospect.look([m], now)
            assert prospect.left["m"].solution == control().at(load * CAPACITY), "too few to tell"
            prospect.completed("m", [row(k, now - mean_ns) for k in range(rows)], now)
        prospect.look([m], now)
        assert 0.65 <= prospect.left["m"].solution.rate_per_ns / CAPACITY <= 0.76

    def test_an_overload_that_is_over_is_forgotten(self) -> None:
        """600 rows took a hundred times as long as at this load; after 300 that took what is usual, those count."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, 0.1)
        usual_ns = round(control().at(0.1 * CAPACITY).mean_latency_ns)
        for count, took_ns, load in ((600, 100 * usual_ns, None), (300, usual_ns, 0.1)):
            prospect.completed("m", [row(k, now - took_ns) for k in range(count)], now)
            prospect.look([m], now)
            same = prospect.left["m"].solution == control().at(0.1 * CAPACITY)
            assert same is (load is not None)

    @pytest.mark.parametrize("load", [0.05, 0.3, 0.6, 0.9])
    @pytest.mark.parametrize("waiting", [1, 2, 3, 4, 7, 11])
    def test_what_the_control_advises_costs_least(self, load: float, waiting: int) -> None:
        """Of all batches that can start now, the advised one; and its cost is the value of the state (to what the
        tables' interpolation in time allows): what the measure rests on."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, load)
        queue(m, waiting)
        prospect.look([m], now)
        sizes = range(1, min(waiting, 4) + 1)
        costs = {b: prospect.cost_ns(m, b, m.run_ns(b), now)[0] + b * m.run_ns(b) for b in sizes}
        value = prospect.left["m"].solution.value[waiting]
        least = min(costs.values())
        if advice := prospect.left["m"].solution.start(waiting):
            assert costs[advice] == pytest.approx(least, rel=0.005, abs=2)
            assert least == pytest.approx(value, rel=0.02, abs=5)
        else:
            assert least > value, "waiting is worth more than any start"

    def test_rows_far_behind_change_nothing(self) -> None:
        """Beyond some full batches the queue is not looked at further."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, 0.5)
        queue(m, QUEUE_SEEN * 4)
        prospect.look([m], now)
        before = prospect.cost_ns(m, 2, 120, now)
        queue(m, 50)
        prospect.look([m], now)
        assert prospect.cost_ns(m, 2, 120, now) == before


class TestPace:
    """Nodes take twice what the table says: everything is as if the table said so, and rows came half as often."""

    def slow(self, of: Lane, prospect: Prospect, runs: int = 1_000) -> None:
        """So many runs of one row, at half the table's pace."""
        for _ in range(runs):
            for node in range(2):
                prospect.ran(of, node, 1, 100)

    def slowed(self) -> tuple[Lane, Prospect]:
        """A model on such a machine, which has been found out."""
        m, prospect = lane(), Prospect({"m": control()})
        prospect.look([m], 0)
        self.slow(m, prospect)
        return m, prospect

    @pytest.mark.parametrize("models", ["m", "ab"])
    def test_rates_count_in_the_time_of_the_table(self, models: str) -> None:
        """A quarter of the table's capacity is half of what the machine can serve; tails begin twice as late."""
        prospect = Prospect({model: control(model) for model in models})
        lanes = [lane(model) for model in models]
        prospect.look(lanes, 0)
        now = arrive(prospect, lanes[0], 0.25)
        before = prospect.rate_per_ns(models[0], now)
        self.slow(lanes[0], prospect)
        prospect.look(lanes, now)
        assert prospect.rate_per_ns(models[0], now) == pytest.approx(2 * before)
        solution = prospect.left[models[0]].solution
        assert solution == control(models[0]).at(2 * before)
        assert prospect.tail_from_ns[models[0]] == pytest.approx(2 * TAIL_FROM * solution.mean_latency_ns, rel=0.01)

    def test_a_burst_counts_at_the_pace_as_well(self) -> None:
        """Calm at 0.1 of the capacity, then some arrivals at 0.25: half of what can be served now."""
        m, prospect = self.slowed()
        now = arrive(prospect, m, 0.1)
        for k in range(1, 17):
            prospect.arrived(row(1_000 + k, now + k * round(4 / CAPACITY)))
        prospect.look([m], now + 16 * round(4 / CAPACITY))
        assert prospect.left["m"].solution == control().at(0.5 * CAPACITY)

    def test_how_long_rows_took_is_of_that_pace(self) -> None:
        """Rows that take twice the control's mean latency say nothing against the rate, as all takes twice as long."""
        m, prospect = self.slowed()
        now = arrive(prospect, m, 0.25)
        mean_ns = control().at(0.5 * CAPACITY).mean_latency_ns
        prospect.completed("m", [row(k, now) for k in range(500)], now + round(2 * mean_ns))
        prospect.look([m], now)
        assert prospect.left["m"].solution == control().at(0.5 * CAPACITY)

    def test_the_gap_to_wait_for_is_that_of_the_clock(self) -> None:
        """Silence is a gap between arrivals as they come, whatever the machine does."""
        m, prospect = self.slowed()
        now = arrive(prospect, m, 0.25)
        queue(m, 1)
        prospect.look([m], now)
        gap_ns = prospect.waiting_ends_ns(m, 1, now) - now
        assert gap_ns == pytest.approx(SILENCE_GAPS / (0.25 * CAPACITY), rel=0.2)

    def test_before_any_lane_was_seen_nothing_is_learnt(self) -> None:
        """There is nothing to tell how long a run is."""
        prospect, m = Prospect({"m": control()}), lane()
        self.slow(m, prospect)
        assert prospect.pace == 1.0
        prospect.look([m], 0)
        assert prospect.pace == 1.0

    def test_the_machine_has_one_pace(self) -> None:
        """What one model's nodes say holds for the other's."""
        prospect, lanes = Prospect({name: control(name) for name in "ab"}), [lane("a"), lane("b")]
        prospect.look(lanes, 0)
        self.slow(lanes[0], prospect)
        now = arrive(prospect, lanes[1], 0.25)
        assert prospect.pace == pytest.approx(2.0, rel=0.01)
        assert prospect.rate_per_ns("b", now) == pytest.approx(0.5 * CAPACITY, rel=0.05)

    @pytest.mark.parametrize(("sla", "late"), [(195, 1), (201, 0)])
    def test_deadlines_are_by_the_clock(self, sla: int, late: int) -> None:
        """A row alone takes 100 by the table and 200 now: who starts now is late by that, so is who follows, and the
        start before which nobody is late is twice as early."""
        m, prospect = self.slowed()
        arrive(prospect, m, 0.05, sla=sla)
        m.queue.push(row(500, 0, sla=sla))
        prospect.look([m], 0)
        left = prospect.left["m"]
        assert left.late_alone is bool(late)
        assert prospect.cost_ns(None, 0, 0, 0)[1] == (0 if left.late_alone else late), "the lost have no price"
        assert left.calm_until_ns == pytest.approx(sla - 200, abs=2) or left.late_alone
        if not late:
            assert prospect.cost_ns(None, 0, 10, 0)[1] == 1, "another 20 by the clock are too much"
            assert prospect.waiting_ends_ns(m, 1, 0) <= sla - 200


class TestShares:
    """Several models on one processor."""

    def looked(self, *loads: float, working: int | None = None) -> Prospect:
        """Models at these loads, of which so many (all by default) have work."""
        names = "abcdef"[: len(loads)]
        lanes = [lane(name) for name in names]
        prospect = Prospect({name: control(name) for name in names})
        # Equal moments of the last arrival: rates are compared, not silences.
        for of, load in zip(lanes, loads, strict=True):
            gap_ns = round(1 / (load * CAPACITY)) if load else 0
            for k in range(40 if load else 0):
                prospect.arrived(row(k, 10**6 - gap_ns * (39 - k), model=of.model))
        for of in lanes[:working]:
            queue(of, 1)
        prospect.look(lanes, 10**6)
        return prospect

    def test_with_nobody_elses_work_the_share_is_all(self) -> None:
        """Whoever else is loaded asks for nothing just now."""
        prospect = self.looked(0.3, 0.3, working=1)
        assert [left.share for left in prospect.left.values()] == [1.0, 1.0]

    def test_what_is_in_flight_is_work(self) -> None:
        """A model with an empty queue and a sub-batch under way has its share."""
        lanes = [lane(name) for name in "ab"]
        prospect = Prospect({name: control(name) for name in "ab"})
        for of in lanes:
            arrive(prospect, of, 0.3)
        queue(lanes[0], 1)
        lanes[1].table.push(sub_batch(0, row(0, model="b")))
        prospect.look(lanes, 0)
        assert [left.share for left in prospect.left.values()] == pytest.approx([0.5, 0.5])

    def test_equal_loads_share_equally(self) -> None:
        """Three models: a third each."""
        prospect = self.looked(0.2, 0.2, 0.2)
        assert [left.share for left in prospect.left.values()] == pytest.approx([1 / 3] * 3)

    def test_each_has_what_it_needs_and_spare_by_the_square_root(self) -> None:
        """Loads 0.4 and 0.1, spare 0.5 in the ratio 2 to 1."""
        prospect = self.looked(0.4, 0.1)
        expected = [0.4 + 0.5 * 2 / 3, 0.1 + 0.5 / 3]
        assert [left.share for left in prospect.left.values()] == pytest.approx(expected, rel=0.02)

    def test_a_share_stretches_time(self) -> None:
        """In a share s the control is that of rate / s, and everything costs what it would in 1 / s of the time."""
        left = self.looked(0.4, 0.1).left["b"]
        assert left.solution == control("b").at(0.1 * CAPACITY / left.share)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(0, 2).map(lambda load: load if load > 0.001 else 0.0), min_size=2, max_size=6))
    def test_limits(self, loads: list[float]) -> None:
        """Whatever the loads: a model's share is at least a tenth and at most all; below saturation it covers its
        load; a busier model has no less; without the least share they add up to one (or, with no load, to nothing)."""
        prospect = self.looked(*loads)
        shares = [left.share for left in prospect.left.values()]
        assert all(0.1 <= share <= 1 + 1e-9 for share in shares)
        if sum(loads) < 0.95:
            assert all(share >= 0.95 * load for share, load in zip(shares, loads, strict=True))
        for one, share in zip(loads, shares, strict=True):
            assert all(share >= 0.95 * less for other, less in zip(loads, shares, strict=True) if one >= other)
        if min(shares) > 0.1:
            assert sum(shares) == pytest.approx(1.0)
        assert 1 - 1e-9 <= sum(shares) <= 1 + 0.1 * len(shares) or not any(loads)

    def test_the_cost_is_that_of_each_alone_stretched(self) -> None:
        """The sum over models of the control's cost at share x time, over share; nobody is started here."""
        prospect = self.looked(0.4, 0.1)
        expected = 0.0
        for left in prospect.left.values():
            solution, share, waiting = left.solution, left.share, left.rows
            time_ns = 300 * share
            own = waiting * time_ns + solution.rate_per_ns * time_ns**2 / 2 - solution.gain_rows * time_ns
            expected += (own + solution.after(waiting, time_ns)) / share
        assert prospect.cost_ns(None, 0, 300, 10**6) == (pytest.approx(expected), 0)

    def test_the_tail_begins_later_where_others_take_the_processor(self) -> None:
        """By what the others leave: half of it, and never less than a tenth."""
        alone = self.looked(0.2).tail_from_ns["a"]
        assert self.looked(0.2, 0.5).tail_from_ns["a"] == pytest.approx(alone / 0.5, rel=0.05)
        assert self.looked(0.2, 1.5).tail_from_ns["a"] == pytest.approx(alone / 0.1)


class TestDeadlines:
    """Rows that wait, and when they would end."""

    def waiting(self, slas: list[int | None], *, load: float = 0.1, fixed: int = 45, per_row: int = 5) -> Prospect:
        """A model of which requests with these targets wait at time 0; its target was 1000 so far."""
        self.lane = lane(fixed=fixed, per_row=per_row)
        prospect = Prospect({"m": control("m", fixed, per_row)})
        arrive(prospect, self.lane, load, sla=1_000)
        for k, sla in enumerate(slas):
            self.lane.queue.push(row(k, sla=sla))
        prospect.look([self.lane], 0)
        return prospect

    def test_a_miss_costs_some_targets_of_row_time(self) -> None:
        """Of the model's usual target, less under load; a request without one leaves it as it was."""
        for load in (0.1, 0.6, 2.0):
            prospect = self.waiting([], load=load)
            spare = max(0.1, 1 - 1 / (round(1 / (load * CAPACITY)) * CAPACITY))
            assert prospect.late_price_ns == {"m": pytest.approx(LATE_WEIGHT * spare * 1_000)}
            before = prospect.late_price_ns["m"]
            now = round(200 / (load * CAPACITY))
            prospect.arrived(row(900, now))
            prospect.look([self.lane], now)
            assert prospect.late_price_ns["m"] == pytest.approx(before, rel=0.05)
            prospect.arrived(row(901, now, sla=1))
            prospect.look([self.lane], now)
            assert prospect.late_price_ns["m"] == pytest.approx(before, rel=0.2), "one of many says little"

    def test_the_usual_target_is_the_mean_by_ratio_of_the_last_rows(self) -> None:
        """Of 10 and 1000 in turn 100, whichever came last; after a change the old ones are forgotten; a row that came
        with its deadline behind it counts as one of the shortest target there is."""
        prospect = Prospect({"m": control()})
        prospect.arrived(row(0, 0, sla=10))
        assert prospect.sla_ns == {"m": 10}
        for k in range(1, 1_000):
            prospect.arrived(row(k, k, sla=1_000 if k % 2 else 10))
            if k > 500:
                assert 90 < prospect.sla_ns["m"] < 111
        for k in range(1_000, 1_600):
            prospect.arrived(row(k, k, sla=5_000))
        assert prospect.sla_ns["m"] == pytest.approx(5_000, rel=0.01)
        prospect.arrived(row(2_000, 2_000, sla=-7))
        assert prospect.sla_ns["m"] == pytest.approx(5_000 / 5_000 ** (1 / 64), rel=0.01)

    def test_several_models_have_one_price(self) -> None:
        """Of the longest target among them; a model without targets has none."""
        lanes = [lane(name) for name in "abc"]
        prospect = Prospect({name: control(name) for name in "abc"})
        for of, sla in zip(lanes, (300, 5_000, None), strict=True):
            arrive(prospect, of, 0.2, sla=sla)
        prospect.look(lanes, 0)
        assert prospect.late_price_ns == {"a": LATE_WEIGHT_SHARED * 5_000, "b": LATE_WEIGHT_SHARED * 5_000}

    def test_without_deadlines_nobody_is_looked_at(self) -> None:
        """A model none of whose requests has a target."""
        m, prospect = lane(), Prospect({"m": control()})
        arrive(prospect, m, 0.5)
        queue(m, 3)
        prospect.look([m], 0)
        assert prospect.left["m"].deadlines_ns == ()
        assert prospect.late_started(m, 3, 10**9) == (0.0, 0)
        assert prospect.cost_ns(m, 1, 10**9, 0)[1] == 0

    @pytest.mark.parametrize(("end_ns", "late"), [(100, 0), (101, 1), (200, 1), (201, 2), (10**9, 2)])
    def test_who_starts_is_late_after_its_deadline(self, end_ns: int, late: int) -> None:
        """Targets of 100 and 200, and a row without one: on time to the nanosecond is no miss."""
        prospect = self.waiting([100, 200, None])
        assert prospect.late_started(self.lane, 3, end_ns) == (late * prospect.late_price_ns["m"], late)
        assert prospect.late_started(self.lane, 1, end_ns)[1] == min(late, 1)

    @pytest.mark.parametrize(("sla", "late"), [(149, 4), (150, 3), (249, 3), (250, 2), (350, 1), (449, 1), (450, 0)])
    def test_who_stays_is_late_when_its_batch_is(self, sla: int, late: int) -> None:
        """Where batching gains nothing they go one at a time, 100 each, when the processor is free in 50."""
        prospect = self.waiting([sla] * 4, fixed=0, per_row=50)
        assert prospect.cost_ns(None, 0, 50, 0)[1] == late

    @pytest.mark.parametrize(("sla", "late"), [(179, 4), (180, 0)])
    def test_who_stays_ends_together_where_batching_pays(self, sla: int, late: int) -> None:
        """Four rows take 130 together."""
        prospect = self.waiting([sla] * 4)
        assert prospect.cost_ns(None, 0, 50, 0)[1] == late

    def test_a_late_row_is_priced(self) -> None:
        """The cost of leaving rows that will be late is higher by their price than that of rows without deadlines."""
        lost, free = self.waiting([120] * 4), self.waiting([None] * 4)
        more = lost.cost_ns(None, 0, 50, 0)[0] - free.cost_ns(None, 0, 50, 0)[0]
        assert more == pytest.approx(4 * lost.late_price_ns["m"])

    @pytest.mark.parametrize("waiting", [1, 5, DEADLINES_SEEN + 20])
    def test_every_alternative_counts_the_same_rows(self, waiting: int) -> None:
        """When all end late, those that start and those that stay are always as many: late rows can be compared."""
        prospect = self.waiting([100] * waiting)
        for rows in range(min(waiting, 4) + 1):
            started = prospect.late_started(self.lane, rows, 10**6)[1]
            stayed = prospect.cost_ns(self.lane, rows, 10**6, 0)[1]
            seen = min(waiting, DEADLINES_SEEN, QUEUE_SEEN * 4)
            assert started + stayed == seen

    def test_what_is_lost_has_no_price(self) -> None:
        """Two rows that miss even alone, two that need not: only the latter count, whoever starts."""
        prospect = self.waiting([98, 99, 100, 110])
        left = prospect.left["m"]
        assert (left.rows, left.lost, left.deadlines_ns) == (4, 2, [100, 110])
        assert [len(prospect.deadlines_ns(self.lane, rows)) for rows in (1, 2, 3, 4)] == [0, 0, 1, 2]
        assert [len(prospect.deadlines_ns(self.lane, rows, passing=True)) for rows in (1, 2)] == [1, 2]
        assert prospect.late_started(self.lane, 2, 200) == (0.0, 0)
        assert prospect.late_started(self.lane, 2, 200, passing=True)[1] == 2
        for rows, passing in ((0, False), (2, False), (0, True)):
            assert prospect.cost_ns(self.lane, rows, 500, 0, passing=passing)[1] == 2
        assert prospect.cost_ns(self.lane, 3, 500, 0)[1] == 1
        assert prospect.cost_ns(self.lane, 1, 500, 0, passing=True)[1] == 1
        assert prospect.cost_ns(self.lane, 2, 500, 0, passing=True)[1] == 0

    def test_the_lost_let_others_pass_for_a_while(self) -> None:
        """Until they would end after `PASS_WITHIN` mean latencies; the control's mean counts, or what was seen."""
        prospect = self.waiting([98, 99, 100, 110])
        left = prospect.left["m"]
        mean_ns = left.solution.mean_latency_ns
        assert left.pass_until_ns == pytest.approx(PASS_WITHIN * mean_ns - self.lane.run_ns(2))
        prospect.completed("m", [row(50, 0), row(51, 500)], 2_000)
        prospect.look([self.lane], 0)
        assert prospect.left["m"].pass_until_ns == pytest.approx(PASS_WITHIN * 1_750 - self.lane.run_ns(2))

    @pytest.mark.parametrize(("free_ns", "late"), [(0, 0), (60, 1), (70, 2)])
    def test_whoever_must_wait_for_the_lost_is_late_earlier(self, free_ns: int, late: int) -> None:
        """One at a time, 50 each: in time behind two lost rows while they let pass, which they do up to some time."""
        prospect = self.waiting([20, 30, 120, 260], fixed=0, per_row=25)
        pass_until_ns = prospect.left["m"].pass_until_ns
        assert (prospect.left["m"].lost, pass_until_ns < 60) == (2, True)
        assert prospect.cost_ns(None, 0, free_ns, 0)[1] == late

    def test_in_a_mixed_queue_nobody_is_taken_for_lost(self) -> None:
        """Rows in front of others of another signature cannot be passed over by them."""
        self.lane = lane()
        prospect = Prospect({"m": control()})
        arrive(prospect, self.lane, 0.1, sla=1_000)
        for k, signature in enumerate("xy"):
            self.lane.queue.push(row(k, sla=10, signature=signature))
        prospect.look([self.lane], 0)
        assert (prospect.left["m"].lost, prospect.left["m"].deadlines_ns) == (0, [10])

    def test_another_models_rows_are_not_skipped(self) -> None:
        """Starting rows of one model leaves the other's where they are."""
        lanes = [lane(name) for name in "ab"]
        prospect = Prospect({name: control(name) for name in "ab"})
        for of in lanes:
            arrive(prospect, of, 0.2, sla=1_000)
            queue(of, 2, sla=100)
        prospect.look(lanes, 0)
        assert prospect.cost_ns(lanes[0], 2, 500, 0)[1] == 2
        assert prospect.cost_ns(lanes[0], 1, 500, 0)[1] == 3
        assert prospect.cost_ns(None, 0, 500, 0)[1] == 4


class TestWaiting:
    """How long to wait for company where the control says so."""

    def test_silence_ends_it(self) -> None:
        """After a mean gap without an arrival nobody is waited for any longer."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, 0.5)
        queue(m, 1, at=now)
        prospect.look([m], now)
        gap_ns = 1 / prospect.left["m"].solution.rate_per_ns
        assert prospect.waiting_ends_ns(m, 1, now) == now + int(SILENCE_GAPS * gap_ns)

    @pytest.mark.parametrize("fits", [1, 3, 4])
    def test_a_deadline_ends_it_earlier(self, fits: int) -> None:
        """While the batch with one row more would still be in time for the tightest; a full one grows no more."""
        m, prospect = lane(), Prospect({"m": control()})
        now = arrive(prospect, m, 0.1, sla=400)
        queue(m, fits - 1, at=now, sla=400)
        queue(m, 1, at=now, sla=160)
        prospect.look([m], now)
        assert prospect.waiting_ends_ns(m, fits, now) == now + 160 - m.run_ns(min(fits + 1, 4))

    @pytest.mark.parametrize(("rows", "starts"), [(0, 0), (1, 1), (3, 3), (4, 4), (9, 4), (10**6, 4)])
    def test_advice_is_the_controls(self, rows: int, starts: int) -> None:
        """At a load of a tenth: whatever waits, up to a full batch."""
        m, prospect = lane(), Prospect({"m": control()})
        prospect.look([m], arrive(prospect, m, 0.1))
        assert prospect.left["m"].solution.start(rows) == starts
