"""Lookahead with one model: when newcomers catch up, how many start, deadlines, waiting, and its rank among policies.

Unless said otherwise a lane has 4 nodes that take 20 + 5 b ns each and at most 8 rows: 100 alone, 120 for two, 160 for
four, 240 for eight; the policy has seen three tenths of the capacity of one row per 30 ns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from typing import Any

import pytest

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Choice, GraphBatching, Serial, View
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.request import Request
from lazybatch.core.task import Reason
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, linear, row
from tests.core.policies.looking import control, lookahead, looking, node_ns, step, to_end


def spec(**options: Any) -> LaneSpec:
    """The module's lane."""
    return lane_spec(linear(nodes=4, fixed=20, per_row=5), **{"max_batch_size": 8, **options})


def in_flight(
    core: Core, nodes: int, *, sla: int | None = None, load: float = 0.3, signature: Hashable = None, **options: Any
) -> tuple[Ledger, int]:
    """One row that has run so many nodes alone, and the time; ``sla`` is its target, of all seen before too."""
    ledger = looking(core, spec(**options), load=load, sla=sla)
    ledger.add(row(0, sla=sla, signature=signature))
    now = 0
    for _ in range(nodes):
        _, now = step(ledger, now)
    return ledger, now


class TestCatchingUp:
    """At a node boundary with newcomers."""

    @pytest.mark.parametrize(("nodes", "joins"), [(1, True), (3, False)])
    def test_early_and_not_late(self, core: Core, nodes: int, joins: bool) -> None:
        """After one node of four a newcomer catches up and both go on together; after three it waits."""
        ledger, now = in_flight(core, nodes)
        ledger.add(row(1, now))
        task, now = step(ledger, now)
        assert (task.opened == (1,)) is joins
        assert task.comparison is not None
        assert (task.comparison.start_cost < task.comparison.stay_cost) is joins
        assert (task.comparison.stay_late, task.comparison.start_late) == (0, 0)
        if joins:
            assert (task.preempted, task.reason) == (0, Reason.PREEMPT_CHEAPER)
            task, now = step(ledger, now)
            assert (task.rows, task.node) == (2, 1), "they have merged"
        else:
            assert (task.node, task.preempted) == (nodes, None)
        to_end(ledger, now)

    def test_without_news_what_was_refused_is_not_compared_again(self, core: Core) -> None:
        """The row that waits is compared once; the next node goes on without; an arrival asks anew."""
        ledger, now = in_flight(core, 2, load=0.05)
        ledger.add(row(1, now))
        task, now = step(ledger, now)
        assert task.comparison is not None
        task, now = step(ledger, now)
        assert (task.comparison, task.reason) == (None, Reason.CONTINUE)
        to_end(ledger, now)
        ledger, now = in_flight(core, 2, load=0.05)
        for id in (1, 2):
            ledger.add(row(id, now))
            task, now = step(ledger, now)
            assert (task.rows, task.comparison is None) == (1, False)
        to_end(ledger, now)

    def test_all_that_fit_come_together(self, core: Core) -> None:
        """Of nine newcomers seven find room beside the row in flight."""
        ledger, now = in_flight(core, 1)
        for id in range(1, 10):
            ledger.add(row(id, now))
        task, now = step(ledger, now)
        assert task.opened == tuple(range(1, 8))
        task, now = step(ledger, now)
        assert task.rows == 8
        task, now = step(ledger, now)
        assert (task.rows, task.comparison) == (8, None), "there is no room to compare with"
        to_end(ledger, now)

    def test_other_signatures_do_not_catch_up(self, core: Core) -> None:
        """They could not merge: nothing is compared, and they start when the processor is free."""
        ledger, now = in_flight(core, 1, signature="x")
        for id, signature in ((1, "y"), (2, "y"), (3, "x")):
            ledger.add(row(id, now, signature=signature))
        for node in (1, 2, 3):
            task, now = step(ledger, now)
            assert (task.node, task.rows, task.comparison) == (node, 1, None)
        task, now = step(ledger, now)
        assert (task.opened, task.reason) == ((1, 2), Reason.START_IDLE)
        to_end(ledger, now)

    def test_only_the_heads_signature_catches_up(self, core: Core) -> None:
        """Among rows of two signatures those of the head's, which is in flight, join."""
        ledger, now = in_flight(core, 1, signature="x")
        for id, signature in ((1, "x"), (2, "y"), (3, "x")):
            ledger.add(row(id, now, signature=signature))
        task, now = step(ledger, now)
        assert task.opened == (1, 3)
        to_end(ledger, now)

    def test_allowed_sizes_bound_who_joins(self, core: Core) -> None:
        """Beside one row, with sizes of 1, 2, 4 and 8, one of two newcomers joins: three could not run."""
        ledger, now = in_flight(core, 1, allowed_sizes=(1, 2, 4, 8))
        for id in (1, 2):
            ledger.add(row(id, now))
        task, now = step(ledger, now)
        assert task.opened == (1,)
        to_end(ledger, now)

    def test_nobody_joins_what_is_padded(self, core: Core) -> None:
        """Three rows run as four: they never merge, so nothing is compared."""
        ledger = looking(core, spec(allowed_sizes=(1, 4, 8)), load=0.3)
        for id in range(3):
            ledger.add(row(id))
        task, now = step(ledger, 0)
        assert (task.rows, task.padded_rows) == (3, 4)
        ledger.add(row(3, now))
        task, now = step(ledger, now)
        assert (task.opened, task.comparison) == ((), None)
        to_end(ledger, now)

    def test_rows_that_cannot_join_never_do(self, core: Core) -> None:
        """One row at a time is in flight, whoever waits; each starts alone."""
        ledger = looking(core, spec(joinable=False), load=0.3)
        now = 0
        for id in range(3):
            ledger.add(row(id))
        for _ in range(3):
            for node in range(4):
                task, now = step(ledger, now)
                assert (task.rows, task.node) == (1, node)
                assert task.reason is (Reason.CONTINUE if node else Reason.START_ALONE)
        ledger.finish(now)

    def test_rows_that_are_retried_run_alone(self, core: Core) -> None:
        """After a failure each runs for itself, nobody joins them, and a newcomer waits for the last of them."""
        ledger = looking(core, spec(), load=0.3)
        for id in range(2):
            ledger.add(row(id))
        task = ledger.schedule(0)
        assert task is not None
        ledger.fail(task, 30)
        ledger.add(row(2, 30))
        now, rows = 30, []
        for _ in range(12):
            task, now = step(ledger, now)
            if task.opened:
                rows.append((task.opened, task.reason))
        assert rows[:2] == [((0,), Reason.START_ALONE), ((1,), Reason.START_ALONE)]
        assert rows[2][0] == (2,)
        ledger.finish(now)


class TestDeadlines:
    """Rows late first, then time."""

    @pytest.mark.parametrize(("sla", "joins"), [(130, False), (139, False), (140, True), (500, True)])
    def test_nobody_in_flight_is_made_late_for_nothing(self, core: Core, sla: int, joins: bool) -> None:
        """With the newcomer the row in flight ends at 140 instead of 100: refused where that misses its target."""
        ledger, now = in_flight(core, 1, sla=sla)
        ledger.add(row(1, now, sla=10_000))
        task, now = step(ledger, now)
        assert (task.opened == (1,)) is joins
        assert task.comparison is not None
        assert (task.comparison.stay_late, task.comparison.start_late) == (0, int(not joins))
        to_end(ledger, now)

    def test_a_newcomer_that_would_be_late_catches_up(self, core: Core) -> None:
        """It needs 140 from now if it must wait for the last two nodes, 110 on top of them: its target decides."""
        for sla, reason in ((500, Reason.PREEMPT_CHEAPER), (120, Reason.PREEMPT_SLACK)):
            ledger, now = in_flight(core, 1, sla=500)
            ledger.add(row(1, now, sla=sla))
            task, now = step(ledger, now)
            assert (task.opened, task.reason) == ((1,), reason)
            to_end(ledger, now)
            assert now == 50

    @pytest.mark.parametrize(("sla", "rows"), [(99, 4), (100, 1), (119, 1), (120, 2), (139, 2), (160, 4), (900, 4)])
    def test_smaller_batches_start_where_that_saves_a_row(self, core: Core, sla: int, rows: int) -> None:
        """Of four rows the first has this target: as many start as let it be in time, all if it is lost anyway."""
        ledger = looking(core, spec(), load=0.3, sla=1_000)
        ledger.add(row(0, sla=sla))
        for id in (1, 2, 3):
            ledger.add(row(id, sla=1_000))
        task, now = step(ledger, 0)
        assert (task.rows, task.reason) == (rows, Reason.START_IDLE)
        to_end(ledger, now)

    def passing(self, core: Core, waited: int) -> tuple[int, ...]:
        """Who starts first of two rows that are lost, the first having waited so long, and two that need not be.

        Four rows take 400 together, two 200; the mean latency is between 150 and 250.
        """
        nogain = lane_spec(linear(nodes=4, fixed=0, per_row=25), max_batch_size=4)
        ledger = looking(core, nogain, load=0.5, sla=210, now=-waited)
        ledger.add(row(0, -waited, sla=90))
        ledger.add(row(1, -waited, sla=90))
        for id in (2, 3):
            ledger.add(row(id, sla=210))
        task, now = step(ledger, 0)
        to_end(ledger, now)
        return task.opened

    def test_lost_rows_let_others_pass(self, core: Core) -> None:
        """The rows behind them can be in time, and start; not where the lost have waited for long."""
        assert self.passing(core, 1)[0] == 2
        assert self.passing(core, 2_000)[0] == 0

    def test_being_told_the_target_makes_fewer_rows_late(self) -> None:
        """Simulated, at half the capacity: of the same arrivals fewer miss 200 than where nobody knows of a target."""
        late = []
        for sla_ns in (200, None):
            result = served(spec(queue_capacity=10_000), requests_from(arrivals(spec(), 0.5, 3), "m", sla_ns=sla_ns))
            late.append(sum(latency_ns > 200 for latency_ns in result.latencies_ns.values()))
        assert late[0] < 0.95 * late[1]


class TestStarting:
    """When the processor is free."""

    @pytest.mark.parametrize(
        ("rows", "reason"), [(1, Reason.START_IDLE), (7, Reason.START_IDLE), (8, Reason.START_FULL)]
    )
    def test_all_that_wait_start_where_batching_pays(self, core: Core, rows: int, reason: Reason) -> None:
        """Up to a full batch, which says so; with or without knowing how fast rows come."""
        for load in (None, 0.3):
            ledger = looking(core, spec(), load=load)
            for id in range(rows):
                ledger.add(row(id))
            task, now = step(ledger, 0)
            assert (task.rows, task.reason, task.comparison) == (rows, reason, None)
            to_end(ledger, now)

    def test_one_at_a_time_where_batching_gains_nothing(self, core: Core) -> None:
        """100 for each row, however many: nobody waits for another's sake, at the start or half way."""
        ledger = looking(core, lane_spec(linear(nodes=4, fixed=0, per_row=25), max_batch_size=4), load=0.5)
        now = 0
        for id in range(3):
            ledger.add(row(id))
        while not ledger.scheduler.idle:
            task, now = step(ledger, now)
            assert task.rows == 1
            assert task.preempted is None
        ledger.finish(now)

    def test_rows_are_taken_by_signature(self, core: Core) -> None:
        """Only those of the head's start."""
        ledger = looking(core, spec(), load=0.3)
        for id, signature in enumerate("xyxy"):
            ledger.add(row(id, signature=signature))
        task, now = step(ledger, 0)
        assert task.opened == (0, 2)
        to_end(ledger, now)

    def test_workers_are_kept_busy(self, core: Core) -> None:
        """With two processors for a model of one node, a second batch starts beside the first."""
        one_node = lane_spec(linear(nodes=1), max_batch_size=4)
        policy = lookahead(one_node)
        for k in range(10):
            policy.arrived(row(0, 1_000 * k - 9_000))
        ledger = Ledger(core.scheduler(policy, one_node, processors=2))
        for id in range(6):
            ledger.add(row(id))
        tasks = [ledger.schedule(0), ledger.schedule(0)]
        assert [task and task.rows for task in tasks] == [4, 2]
        ledger.finish(10)
        assert ledger.scheduler.policy_error is None


class TestWaiting:
    """Nine tenths of the capacity of 2 nodes that take 45 + 5 b: the control waits for company."""

    def alone(self, core: Core, **options: Any) -> Ledger:
        """One row that has just come to a free processor, at 0."""
        busy = lane_spec(linear(nodes=2, fixed=45, per_row=5), max_batch_size=4)
        assert control(busy).at(0.9 * control(busy).capacity_per_ns).start(1) == 0
        ledger = looking(core, busy, load=0.9, **options)
        ledger.add(row(0, sla=options.get("sla")))
        return ledger

    def test_it_ends_with_silence(self, core: Core) -> None:
        """Nothing starts until a mean gap has passed without an arrival; then the row does not wait any longer."""
        ledger = self.alone(core)
        assert ledger.schedule(0) is None
        wake = ledger.scheduler.next_wakeup()
        assert wake is not None
        gap_ns = 130 / 4 / 0.9
        assert 0 < wake <= 1.2 * gap_ns
        assert ledger.schedule(wake - 1) is None
        task, now = step(ledger, wake)
        assert task.opened == (0,)
        to_end(ledger, now)

    def test_it_ends_with_company(self, core: Core) -> None:
        """Rows that come in time start with it, as soon as the control says they are enough."""
        ledger = self.alone(core)
        waiting = 1
        while ledger.schedule(waiting - 1) is None:
            ledger.add(row(waiting, waiting))
            waiting += 1
        (task,) = ledger.running
        assert 1 < task.rows == waiting <= 4
        ledger.finish(waiting)

    def test_draining_never_waits(self, core: Core) -> None:
        """No company can come."""
        ledger = self.alone(core)
        ledger.scheduler.drain()
        task, now = step(ledger, 0)
        assert task.opened == (0,)
        to_end(ledger, now)

    def test_a_deadline_ends_it(self, core: Core) -> None:
        """With a target of 120 it waits for another row as long as both could end in time: 110 before; no longer."""
        ledger = self.alone(core, sla=120)
        assert ledger.schedule(0) is None
        assert ledger.scheduler.next_wakeup() == 10
        task, now = step(ledger, 10)
        assert task.opened == (0,)
        to_end(ledger, now)

    def test_rows_that_run_alone_wait_for_nobody(self, core: Core) -> None:
        """Company would be of no use to a row that is retried."""
        ledger = self.alone(core)
        ledger.add(row(1))
        ledger.add(row(2))
        ledger.add(row(3))
        task = ledger.schedule(0)
        assert task is not None
        ledger.fail(task, 1)
        for id in (1, 2, 3):
            ledger.cancel(id, 1)
        task, now = step(ledger, 1)
        assert (task.opened, task.reason) == ((0,), Reason.START_ALONE)
        to_end(ledger, now)


class TestDropping:
    """Where late rows are dropped: as many answers in time as can be."""

    def test_a_row_that_the_batch_would_make_late_is_passed_over(self, core: Core) -> None:
        """The first of three could make it alone, not with another: the two behind it start, it is dropped."""
        ledger = looking(core, spec(late="drop", max_batch_size=2), load=0.3, sla=1_000)
        ledger.add(row(0, sla=110))
        for id in (1, 2):
            ledger.add(row(id, sla=1_000))
        task, now = step(ledger, 0)
        assert task.opened == (1, 2)
        to_end(ledger, now)
        assert ledger.left == {0: "dropped", 1: "finished", 2: "finished"}

    def test_in_a_crowd_batches_take_half_the_target(self, core: Core) -> None:
        """With a target of 250 two rows (120) start of seven; without a crowd, all that wait do."""
        for waiting, rows in ((7, 2), (2, 2), (1, 1)):
            ledger = looking(core, spec(late="drop"), load=0.3, sla=250)
            for id in range(waiting):
                ledger.add(row(id, sla=250))
            task, now = step(ledger, 0)
            assert task.rows == rows
            to_end(ledger, now)

    def test_a_crowd_does_not_preempt(self, core: Core) -> None:
        """More wait than a batch takes: what is in flight goes on, as it must be out of the way soon."""
        ledger, now = in_flight(core, 1, late="drop", sla=250)
        for id in range(1, 6):
            ledger.add(row(id, now, sla=250))
        task, now = step(ledger, now)
        assert (task.node, task.opened, task.comparison) == (1, (), None)
        to_end(ledger, now)


def arrivals(of: LaneSpec, load: float, seed: int, requests: int = 600) -> list[int]:
    """A Poisson stream at a share of the lane's capacity."""
    return poisson(load * control(of).capacity_per_ns * 1e9, requests, seed)


def served(of: LaneSpec, requests: list[Request], policy: Any = None) -> SimulationResult:
    """The trace under a policy (a fresh lookahead by default), which was never overruled and served everyone."""
    result = simulate([of], policy or lookahead(of), requests)
    assert result.scheduler.policy_error is None
    assert len(result.latencies_ns) == len(requests)
    return result


def mean_ns(result: SimulationResult) -> float:
    """Mean latency."""
    return sum(result.latencies_ns.values()) / len(result.latencies_ns)


class TestRank:
    """Simulated, against what one could have configured by hand."""

    @pytest.mark.parametrize("load", [0.15, 0.4, 0.8])
    @pytest.mark.parametrize(("fixed", "per_row"), [(90, 10), (50, 50)])
    def test_never_behind_the_best(self, fixed: int, per_row: int, load: float) -> None:
        """Serial, and graph batching of every maximum: at most 2 % above the best of them, in each of two streams."""
        of = lane_spec(linear(nodes=6, fixed=fixed, per_row=per_row), max_batch_size=8, queue_capacity=10_000)
        for seed in (1, 2):
            requests = requests_from(arrivals(of, load, seed), "m")
            others = [Serial(), *(GraphBatching(max_batch_size=size) for size in (2, 4, 8))]
            best = min(mean_ns(served(of, requests, policy)) for policy in others)
            assert mean_ns(served(of, requests)) <= 1.02 * best

    def test_well_ahead_where_catching_up_pays(self) -> None:
        """At a third of the capacity of a table of large fixed costs: 4 % below all of them."""
        of = lane_spec(linear(nodes=8), max_batch_size=8, queue_capacity=10_000)
        requests = requests_from(arrivals(of, 0.3, 1, 800), "m")
        result = served(of, requests)
        others = [Serial(), *(GraphBatching(max_batch_size=size) for size in (2, 4, 8))]
        assert mean_ns(result) < 0.96 * min(mean_ns(served(of, requests, policy)) for policy in others)
        assert result.preemptions > 100
        assert result.merges > 100

    @pytest.mark.parametrize("load", [0.2, 0.5, 0.9])
    def test_as_serial_where_batching_gains_nothing(self, load: float) -> None:
        """b rows take b times as long: no preemption, and no higher mean."""
        of = lane_spec(linear(nodes=4, fixed=0, per_row=25), max_batch_size=8, queue_capacity=10_000)
        requests = requests_from(arrivals(of, load, 4), "m")
        result = served(of, requests)
        assert mean_ns(result) <= mean_ns(served(of, requests, Serial()))
        assert result.preemptions == 0

    def test_uneven_nodes(self) -> None:
        """One node takes most of the time, and alone gains by batching: still not behind."""
        times = ((10, 40), (200, 240), (10, 40))
        table = LatencyTable("m", ("a", "b", "c"), (1, 4), times, times)
        of = lane_spec(table, max_batch_size=4, queue_capacity=10_000)
        for load in (0.3, 0.8):
            requests = requests_from(arrivals(of, load, 5), "m")
            others = [Serial(), *(GraphBatching(max_batch_size=size) for size in (2, 4))]
            best = min(mean_ns(served(of, requests, policy)) for policy in others)
            assert mean_ns(served(of, requests)) <= 1.02 * best


class Forgetful:
    """A lookahead that remembers arrivals and ends alone, so that every decision is made afresh."""

    needs_table = True

    def __init__(self, of: LaneSpec) -> None:
        self.of = of
        self.seen: list[Callable[[Lookahead], None]] = []

    def arrived(self, request: Request) -> None:
        """Remember it."""
        self.seen.append(lambda fresh: fresh.arrived(request))

    def completed(self, sub_batch: SubBatch, now: int) -> None:
        """Remember it."""
        ended = copy(sub_batch)
        self.seen.append(lambda fresh: fresh.completed(ended, now))

    def decide(self, view: View, now: int) -> Choice:
        """As somebody who was told everything and decides for the first time."""
        fresh: Lookahead = lookahead(self.of)
        for tell in self.seen:
            tell(fresh)
        return fresh.decide(view, now)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.85])
@pytest.mark.parametrize("sla", [None, 400])
def test_looking_again_without_news_would_change_nothing(load: float, sla: int | None) -> None:
    """On equal nodes, a policy that compares anew at every node has the same mean, to half a percent."""
    of = spec(queue_capacity=10_000)
    requests = requests_from(arrivals(of, load, 6, 150), "m", sla_ns=sla)
    again = served(of, requests, Forgetful(of))
    assert mean_ns(served(of, requests)) == pytest.approx(mean_ns(again), rel=0.005)


def test_it_is_shown_by_its_name() -> None:
    """In errors and listings."""
    assert repr(lookahead(spec())) == "Lookahead()"


def test_its_pace_is_that_of_the_nodes(core: Core) -> None:
    """One before any node has run; then what nodes take over what their table says."""
    spec = lane_spec(linear(nodes=2))
    policy = lookahead(spec)
    ledger = Ledger(core.scheduler(policy, spec))
    assert policy.pace == 1.0
    now = 0
    for id in range(200):
        ledger.add(row(id, now))
        for _ in range(2):
            task = ledger.schedule(now)
            assert task is not None
            took_ns = 2 * node_ns(ledger, task)
            now += took_ns
            policy.ran(ledger.scheduler.lane_of("m"), task.node, task.rows, took_ns)
            ledger.complete(task, now)
    assert policy.pace == pytest.approx(2.0, rel=0.01)
