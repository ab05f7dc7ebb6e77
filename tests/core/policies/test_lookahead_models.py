"""Lookahead with several models and levels: who preempts whom, who starts first, and that nobody starves.

Unless said otherwise "long" has 10 nodes of 100 ns, one row at a time or several at the price of each; "quick" has one
node that takes 46 + 4 b.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import GraphBatching, turns
from lazybatch.core.policies import lookahead as module
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, linear, row
from tests.core.policies.looking import control, lookahead, looking, node_ns, step, to_end


def long(**options: Any) -> LaneSpec:
    """1000 for a row, and as much for every further one."""
    return lane_spec(linear("long", nodes=10, fixed=0, per_row=100), **{"max_batch_size": 2, **options})


def quick(model: str = "quick", nodes: int = 1, **options: Any) -> LaneSpec:
    """50 for a row, 58 for three."""
    return lane_spec(linear(model, nodes, 46, 4), **{"max_batch_size": 4, **options})


def under_way(core: Core, *specs: LaneSpec, model: str, nodes: int = 1, **options: Any) -> tuple[Ledger, int]:
    """A row of a model that has run so many nodes, and the time; every model was seen at a twentieth of its load."""
    ledger = looking(core, *specs, load=0.05)
    ledger.add(row(0, model=model, **options))
    now = 0
    for _ in range(nodes):
        _, now = step(ledger, now)
    return ledger, now


class TestPreemption:
    """At a node boundary with newcomers of another model."""

    def test_the_quick_preempts_the_long(self, core: Core) -> None:
        """A run of 50 need not wait for one of 900; both costs say so."""
        ledger, now = under_way(core, long(), quick(), model="long")
        ledger.add(row(1, now, model="quick"))
        task, now = step(ledger, now)
        assert (task.opened, task.preempted, task.reason) == ((1,), 0, Reason.PREEMPT_CHEAPER)
        assert task.comparison is not None
        assert task.comparison.start_cost < task.comparison.stay_cost
        task, now = step(ledger, now)
        assert (task.model, task.node) == ("long", 1)
        to_end(ledger, now)

    @pytest.mark.parametrize(("wider", "priority", "preempted"), [("", 0, 0), ("long", 0, None), ("long", 1, 0)])
    def test_another_length_of_the_same_model_waits(
        self, core: Core, wider: str, priority: int, preempted: int | None
    ) -> None:
        """A quick row of another model preempts; one of the same model, padded to less, could never merge, and waits:
        unless it is of a higher priority."""
        spec = lane_spec(linear("quick", 10, 4, 1), max_batch_size=4, length=1, wider=(wider,) if wider else ())
        ledger, now = under_way(core, replace(long(), length=2), spec, model="long")
        ledger.add(row(1, now, model="quick", priority=priority))
        task, now = step(ledger, now)
        assert task.preempted == preempted
        to_end(ledger, now)

    def test_the_long_does_not_preempt_the_quick(self, core: Core) -> None:
        """It waits for the second of two short nodes."""
        ledger, now = under_way(core, long(), quick(nodes=2), model="quick")
        ledger.add(row(1, now, model="long"))
        task, now = step(ledger, now)
        assert (task.model, task.node) == ("quick", 1)
        to_end(ledger, now)

    def test_a_short_rest_is_finished_first(self, core: Core) -> None:
        """Of two equal models with 3 nodes the one under way goes on, as it is nearer to its end."""
        ledger, now = under_way(core, quick("a", 3), quick("b", 3), model="a")
        ledger.add(row(1, now, model="b"))
        task, now = step(ledger, now)
        assert (task.model, task.node) == ("a", 1)
        to_end(ledger, now)

    @pytest.mark.parametrize(("sla", "preempts"), [(1_049, False), (1_050, True)])
    def test_what_is_in_flight_is_not_made_late_for_it(self, core: Core, sla: int, preempts: bool) -> None:
        """The long one ends at 1,000, with the quick one at 1,050: its target decides."""
        ledger, now = under_way(core, long(), quick(), model="long", sla=sla)
        ledger.add(row(1, now, model="quick"))
        task, now = step(ledger, now)
        assert (task.model == "quick") is preempts
        assert task.comparison is not None
        assert task.comparison.start_late == int(not preempts)
        to_end(ledger, now)

    def test_a_row_that_would_be_late_is_a_reason_of_its_own(self, core: Core) -> None:
        """Waiting for 900 the quick one misses 200."""
        ledger, now = under_way(core, long(), quick(), model="long")
        ledger.add(row(1, now, model="quick", sla=200))
        task, now = step(ledger, now)
        assert (task.opened, task.reason) == ((1,), Reason.PREEMPT_SLACK)
        assert task.comparison is not None
        assert (task.comparison.stay_late, task.comparison.start_late) == (1, 0)
        to_end(ledger, now)

    def test_the_better_of_two_newcomers_comes(self, core: Core) -> None:
        """Two models could come, the quicker of them does; the other follows."""
        ledger, now = under_way(core, long(), quick("a", 4), quick("b"), model="long")
        for id, model in ((1, "a"), (2, "b")):
            ledger.add(row(id, now, model=model))
        first, now = step(ledger, now)
        second, now = step(ledger, now)
        assert (first.model, second.model) == ("b", "a")
        to_end(ledger, now)

    def test_rows_that_cannot_join_preempt_one_at_a_time(self, core: Core) -> None:
        """Another model's rows that may have no mates."""
        ledger, now = under_way(core, long(), quick(joinable=False), model="long")
        for id in (1, 2):
            ledger.add(row(id, now, model="quick"))
        for id in (1, 2):
            task, now = step(ledger, now)
            assert task.opened == (id,)
        to_end(ledger, now)

    def test_only_models_with_news_are_compared_again(self, core: Core) -> None:
        """A row that was refused is compared once, not again when another model's row comes and is refused."""
        ledger, now = under_way(core, quick("a", 4), quick("b", 4), quick("c", 3), model="a")
        ledger.add(row(1, now, model="b"))
        refused, now = step(ledger, now)
        silent, now = step(ledger, now)
        ledger.add(row(2, now, model="c"))
        again, now = step(ledger, now)
        assert [task.model for task in (refused, silent, again)] == ["a", "a", "a"]
        assert [task.reason for task in (refused, again)] == [Reason.STAY_CHEAPER] * 2
        assert (silent.reason, silent.comparison) == (Reason.CONTINUE, None)
        to_end(ledger, now)

    def test_others_come_when_newcomers_have_ended(self, core: Core) -> None:
        """What was started on top of a long row is over: whoever waits meanwhile is looked at again."""
        ledger, now = under_way(core, long(), quick("a"), quick("b"), model="long")
        for id, model in ((1, "a"), (2, "b")):
            ledger.add(row(id, now, model=model))
        models = []
        for _ in range(3):
            task, now = step(ledger, now)
            models.append(task.model)
        assert models == ["a", "b", "long"]
        to_end(ledger, now)

    def test_as_many_come_as_those_in_flight_lend_their_turn_to(self, core: Core) -> None:
        """A run of 50 has just begun, and rows that take 5 + 5 each wait: one may come (10), so may some of sixteen,
        though all of them (85) would be more than it lends."""
        for waiting, opened in ((1, 1), (16, 8)):
            specs = (
                lane_spec(linear("long", nodes=10, fixed=5, per_row=0), max_batch_size=2),
                lane_spec(linear("quick", nodes=1, fixed=5, per_row=5), max_batch_size=16),
            )
            ledger, now = under_way(core, *specs, model="long")
            for id in range(1, 1 + waiting):
                ledger.add(row(id, now, model="quick"))
            task, now = step(ledger, now)
            assert len(task.opened) == opened
            to_end(ledger, now)


class TestLevels:
    """Priorities are strict."""

    def test_a_higher_level_preempts_what_it_would_not_otherwise(self, core: Core) -> None:
        """The same two rows: with equal levels the one nearer to its end goes on, with a higher level it is parked."""
        for priority, model, reason in ((0, "a", Reason.STAY_CHEAPER), (1, "b", Reason.PREEMPT_URGENT)):
            ledger, now = under_way(core, quick("a", 3), quick("b", 3), model="a", nodes=2)
            ledger.add(row(1, now, model="b", priority=priority))
            task, now = step(ledger, now)
            assert (task.model, task.reason) == (model, reason)
            to_end(ledger, now)

    def test_a_higher_level_of_the_same_model_catches_up(self, core: Core) -> None:
        """Before the last of three nodes, and at once; both then end together."""
        for priority, opened in ((0, ()), (1, (1,))):
            ledger, now = under_way(core, quick(nodes=3), model="quick", nodes=2)
            ledger.add(row(1, now, model="quick", priority=priority))
            task, now = step(ledger, now)
            assert task.opened == opened
            to_end(ledger, now)

    def test_a_lower_level_never_preempts(self, core: Core) -> None:
        """Not even the quick one the long one, nor a row of the same model, nor to save a deadline."""
        ledger, now = under_way(core, long(), quick(), model="long", priority=2)
        for id, model in ((1, "quick"), (2, "quick"), (3, "long")):
            ledger.add(row(id, now, model=model, priority=id % 2, sla=60))
        for node in range(1, 10):
            task, now = step(ledger, now)
            assert (task.node, task.opened, task.comparison) == (node, (), None)
        to_end(ledger, now)

    def test_the_highest_of_several_levels_comes(self, core: Core) -> None:
        """Of two that outrank what is in flight the higher one, in whichever order the models stand."""
        for order in (("a", "b"), ("b", "a")):
            ledger, now = under_way(core, long(), *(quick(model) for model in order), model="long")
            ledger.add(row(1, now, model="a", priority=1))
            ledger.add(row(2, now, model="b", priority=2))
            first, now = step(ledger, now)
            second, now = step(ledger, now)
            assert (first.opened, second.opened) == ((2,), (1,))
            to_end(ledger, now)

    def test_the_cheaper_of_equal_levels_comes(self, core: Core) -> None:
        """Both outrank what is in flight: the quicker one first."""
        ledger, now = under_way(core, long(), quick("a", 4), quick("b"), model="long")
        for id, model in ((1, "a"), (2, "b")):
            ledger.add(row(id, now, model=model, priority=1))
        task, now = step(ledger, now)
        assert task.opened == (2,)
        to_end(ledger, now)

    def test_the_highest_level_starts_first(self, core: Core) -> None:
        """On a free processor: the long one before the quick one, though that costs more."""
        for priority, order in ((0, ["quick", "long"]), (1, ["long", "quick"])):
            ledger = looking(core, long(), quick(), load=0.05)
            ledger.add(row(0, model="quick"))
            ledger.add(row(1, model="long", priority=priority))
            now, seen = 0, []
            while not ledger.scheduler.idle:
                task, now = step(ledger, now)
                seen += [task.model] if task.opened else []
            assert seen == order


class TestAgeing:
    """What has waited long counts as of a higher level, in the queue and in flight, across models."""

    def served(self, core: Core, ageing_ns: int | None) -> int | None:
        """A row of level 0 beside a model that always has one of level 1 waiting: when it starts, if within a while."""
        ledger = looking(core, *[replace(one, ageing_ns=ageing_ns) for one in (quick("a"), quick("b"))], load=0.05)
        ledger.add(row(0, 0, model="b"))
        ledger.add(row(1, 0, model="a", priority=1))
        now = 0
        for id in range(2, 300):
            task, now = step(ledger, now)
            if 0 in task.opened:
                return now
            ledger.add(row(id, now, model="a", priority=1))
        return None

    def test_a_low_row_is_not_passed_over_for_ever(self, core: Core) -> None:
        """Without ageing it never starts; with it, when it has waited for one level and not long after."""
        assert self.served(core, None) is None
        started = self.served(core, 1_000)
        assert started is not None
        assert 1_000 < started < 1_400

    def test_equals_of_one_model_join_whatever_their_age(self, core: Core) -> None:
        """Levels matter and ageing is shorter than a run: rows of one priority catch up as they would without, though
        whoever runs came first and will always be older."""
        seen = []
        for ageing_ns in (None, 10):
            ledger, now = under_way(core, quick(nodes=6, ageing_ns=ageing_ns), model="quick")
            ledger.scheduler._guarded.policy.arrived(row(99, now, model="quick", priority=1))  # type: ignore[attr-defined]
            tasks = []
            for id in range(1, 4):
                ledger.add(row(id, now, model="quick"))
                task, now = step(ledger, now)
                tasks.append((task.node, task.rows, task.opened, task.preempted))
            to_end(ledger, now)
            seen.append(tasks)
        assert seen[0] == seen[1]
        assert any(preempted is not None for *_, preempted in seen[0])

    def test_who_has_aged_is_not_preempted_by_the_young(self, core: Core) -> None:
        """A row of level 0 that had waited for two levels runs on beside one of level 1."""
        specs = [replace(one, ageing_ns=1_000) for one in (quick("a", 3), quick("b", 3))]
        ledger = looking(core, *specs, load=0.05)
        ledger.add(row(0, 0, model="a"))
        _, now = step(ledger, 2_500)
        ledger.add(row(1, now, model="b", priority=1))
        task, now = step(ledger, now)
        assert (task.model, task.opened) == ("a", ())
        to_end(ledger, now)


class TestAnotherPace:
    """The machine is not what it was when the table was measured."""

    def served(self, told: float, seed: int, sla: int) -> tuple[float, float]:
        """Mean latency and share in time, at load 0.8, told a table of so many times what nodes really take."""
        real, table = linear("m", 4, 40, 10, 8), linear("m", 4, round(40 * told), round(10 * told), 8)
        spec = lane_spec(table, max_batch_size=8, sla_ns=sla)
        rate = 0.8 * control(lane_spec(real, max_batch_size=8)).capacity_per_ns
        requests = requests_from(poisson(rate * 1e9, 1_500, seed), "m", sla_ns=sla)
        result = simulate([spec], lookahead(spec), requests, durations={"m": real})
        kept = [result.latencies_ns[id] for id in range(150, 1_500)]
        return sum(kept) / len(kept), sum(latency_ns <= sla for latency_ns in kept) / len(kept)

    @pytest.mark.parametrize("told", [0.5, 2.0])
    @pytest.mark.parametrize("sla", [600, 1_500])
    def test_it_is_served_as_if_the_table_were_right(self, told: float, sla: int) -> None:
        """Twice as slow as the table, and twice as fast, with tight targets and loose ones."""
        for seed in range(3):
            mean_ns, met = self.served(told, seed, sla)
            right_ns, right_met = self.served(1.0, seed, sla)
            assert mean_ns == pytest.approx(right_ns, rel=0.05)
            assert met == pytest.approx(right_met, abs=0.03)


class TestNobodyStarves:
    """Among equals: lending, patience, rounds."""

    def flooded(self, core: Core, spec: LaneSpec) -> tuple[int, int]:
        """A long row with a quick one waiting at every boundary: when it ended, and what others took."""
        ledger, now = under_way(core, spec, quick(), model="long")
        lent_ns = 0
        for id in range(1, 3_000):
            if 0 in ledger.left:
                break
            ledger.add(row(id, now, model="quick"))
            task, now = step(ledger, now)
            lent_ns += node_ns(ledger, task) * (task.model == "quick")
        end_ns = now
        assert ledger.left[0] == "finished"
        to_end(ledger, now)
        return end_ns, lent_ns

    def test_what_is_in_flight_lends_only_its_own_time(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others get `LENDING` of its own run, to within one batch of theirs; with another limit, that much."""
        for lending in (module.LENDING, 0.25, 0.0):
            monkeypatch.setattr(module, "LENDING", lending)
            _, lent_ns = self.flooded(core, long())
            assert lending * 1_000 - 62 < lent_ns <= lending * 1_000

    def test_patience_ends(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """Were it to lend without limit, a row would be preempted until `PATIENCE` of its model's longest runs."""
        monkeypatch.setattr(module, "LENDING", 1e9)
        for patience in (module.PATIENCE, 1):
            monkeypatch.setattr(module, "PATIENCE", patience)
            end_ns, _ = self.flooded(core, long(max_batch_size=1))
            assert patience * 1_000 < end_ns <= patience * 1_000 + 62 + 1_000

    def served_first(self, core: Core, rounds_max: int) -> int:
        """Quick rows wait whenever the processor is free, a long one since 0: how long until it starts."""
        ledger = looking(core, long(), quick(), load=0.3)
        ledger.add(row(0, model="long"))
        now = 0
        for id in range(1, rounds_max):
            ledger.add(row(id, now, model="quick"))
            ended = now
            task, now = step(ledger, now)
            if task.model == "long":
                to_end(ledger, now)
                return ended
        to_end(ledger, now)
        return now

    def test_a_model_is_passed_over_for_some_rounds_only(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """A round takes 1,050 here: the long row starts within `ROUNDS` of them; without a limit, not for ages."""
        assert 500 < self.served_first(core, 1_000) <= turns.ROUNDS * 1_050 + 62
        monkeypatch.setattr(turns, "ROUNDS", 1e9)
        assert self.served_first(core, 500) > 20_000

    def test_who_is_overdue_is_not_held_up_by_newcomers(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """While the long row has waited too long, quick newcomers do not join what is in flight of their own model."""
        for rounds, joins in ((1e9, True), (0, False)):
            monkeypatch.setattr(turns, "ROUNDS", rounds)
            ledger, now = under_way(core, long(), quick(nodes=4), model="quick")
            ledger.add(row(1, 1, model="long"))
            ledger.add(row(2, now, model="quick"))
            task, now = step(ledger, now)
            assert (task.opened == (2,)) is joins
            to_end(ledger, now)

    def test_both_are_served(self) -> None:
        """Simulated: the quick model's mean is a fifth of what whole batches give it, the long one's a quarter higher
        at the most; nothing is overruled."""
        specs = [long(queue_capacity=10_000), quick(queue_capacity=10_000)]
        means = {}
        for name, policy in (("lookahead", lookahead(*specs)), ("graph", GraphBatching())):
            result = simulate(specs, policy, two_streams(specs, 0.4, 0.2))
            assert result.scheduler.policy_error is None
            means[name] = mean_by_model(result, 0, 300), mean_by_model(result, 300, 2_300)
        assert means["lookahead"][1] < means["graph"][1] / 5
        assert means["lookahead"][0] < means["graph"][0] * 1.25


def two_streams(specs: list[LaneSpec], slow: float, fast: float) -> list[Any]:
    """300 long requests and 2,000 quick ones at these loads, in order of arrival."""
    rates = [load * control(spec).capacity_per_ns * 1e9 for load, spec in zip((slow, fast), specs, strict=True)]
    requests = requests_from(poisson(rates[0], 300, 1), "long")
    requests += requests_from(poisson(rates[1], 2_000, 2), "quick", first_id=300)
    return sorted(requests, key=lambda request: request.arrival_ns)


def mean_by_model(result: SimulationResult, first_id: int, last_id: int) -> float:
    """Mean latency of a range of ids."""
    own = [latency_ns for id, latency_ns in result.latencies_ns.items() if first_id <= id < last_id]
    return sum(own) / len(own)


ADD = st.tuples(
    st.just("add"),
    st.integers(0, 1),
    st.integers(0, 1),
    st.none() | st.integers(0, 2_000),
    st.sampled_from("xxxy"),
    st.integers(1, 4),
)
OTHER = st.one_of(
    st.tuples(st.just("cancel"), st.integers(0, 60)),
    st.tuples(st.just("run"), st.integers(1, 3)),
    st.tuples(st.just("fail")),
    st.tuples(st.just("pause"), st.integers(1, 400)),
)
LANE = st.fixed_dictionaries(
    {
        "max_batch_size": st.just(4),
        "allowed_sizes": st.sampled_from([(), (), (1, 2, 4), (1, 4)]),
        "joinable": st.sampled_from([True, True, True, False]),
        "late": st.sampled_from(["serve", "drop"]),
        "levels": st.sampled_from([{}, {1: PriorityLevel(300)}, {0: PriorityLevel(200, "demote")}]),
        "ageing_ns": st.sampled_from([None, 150]),
    }
)


@settings(max_examples=100, deadline=None)
@given(
    lanes=st.lists(LANE, min_size=1, max_size=2),
    moves=st.lists(st.one_of(ADD, OTHER), max_size=40),
    uneven=st.booleans(),
)
def test_every_row_leaves_and_nothing_is_overruled(
    lanes: list[dict[str, Any]], moves: list[tuple[Any, ...]], uneven: bool
) -> None:
    """Whatever comes, with cancels, failures, levels, deadlines, signatures, over one or two models of any options: all
    invariants hold after each move, the policy never asks for the impossible, and in the end everybody has left."""
    tables = [linear("a", 3, 20, 5), linear("b", 1 if uneven else 2, 5, 30)]
    specs = [lane_spec(table, **options) for table, options in zip(tables, lanes, strict=False)]
    ledger = Ledger(Scheduler(specs, lookahead(*specs)))
    now = 0

    def held() -> None:
        ledger.scheduler.validate()
        assert ledger.scheduler.policy_error is None

    def run(*, well: bool = True) -> None:
        nonlocal now
        ledger.expire(now)
        task = ledger.schedule(now)
        if task is None:
            now = max(now + 1, min(ledger.scheduler.next_wakeup() or now, now + 200))
        elif well:
            now += node_ns(ledger, task)
            ledger.complete(task, now)
        else:
            now += 3
            ledger.fail(task, now)
        held()

    for move, *what in moves:
        match move:
            case "add":
                number, priority, sla, signature, rows = what
                for _ in range(rows):
                    model = "ab"[number % len(specs)]
                    id = len(ledger.requests)
                    ledger.add(row(id, now, model=model, sla=sla, priority=priority, signature=signature))
            case "cancel":
                ledger.cancel(what[0], now)
            case "pause":
                now += what[0]
            case "fail":
                run(well=False)
            case _:
                for _ in range(what[0]):
                    run()
        held()
    ledger.finish(now)
    held()
    assert ledger.scheduler.counts.policy_failures == 0


def test_a_long_model_with_deadlines_keeps_its_capacity() -> None:
    """A quick model at a fifth and a long one that gains half from batches at two fifths of what they can serve, both
    with targets. Were the quick one's rows charged with all of a long run, which they interrupt at every node, then as
    soon as somebody is late the long one would be started row by row, and could not keep up with what arrives."""
    specs = (
        lane_spec(linear("quick", 3, 667, 333), max_batch_size=16),
        lane_spec(linear("long", 20, 3_000, 2_000), max_batch_size=16),
    )
    targets = {"quick": 60_000, "long": 500_000}
    arrivals = sorted(
        (at, name)
        for seed, (spec, load) in enumerate(zip(specs, (0.2, 0.4), strict=True))
        for name in (spec.graph.model,)
        for at in poisson(load * control(spec).capacity_per_ns * 1e9, 2_000 if name == "quick" else 400, seed)
    )
    requests = [Request(k, name, at, at + targets[name]) for k, (at, name) in enumerate(arrivals)]
    result = simulate(specs, lookahead(*specs), requests)
    assert len(result.late) < 0.05 * len(requests)
    mean_ns = sum(result.latencies_ns[one.id] for one in requests if one.model == "long") / 400
    assert mean_ns < targets["long"]


def test_of_many_lanes_the_most_urgent_are_weighed(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one weighed of three, the one whose row came first starts, although another's is done sooner."""
    specs = (long(), quick(), quick("other"))
    for weighed, last in ((1, False), (3, True)):
        monkeypatch.setattr(module, "LANES_WEIGHED", weighed)
        ledger = looking(core, *specs, load=0.05)
        for id, name in enumerate(("long", "quick", "other")):
            ledger.add(row(id, id, model=name))
        task, now = step(ledger, 3)
        assert (task.model != "long") is last
        to_end(ledger, now)
