"""LazyBatching: Eq. 2 to the nanosecond, progress, lost rows, overload, other models, other signatures.

Unless said otherwise a lane has 4 nodes that take 25 ns each alone: SingleInputExecTime is 100.
"""

from __future__ import annotations

import pytest

from lazybatch.core.policies import GraphBatching, LazyBatching, Serial
from lazybatch.core.task import Reason, Task
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import poisson
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, linear, row

TABLE = linear(nodes=4, fixed=20, per_row=5)


def lazy(core: Core, **options: object) -> Ledger:
    """A scheduler with one lane of the module's table under LazyBatching."""
    return Ledger(core.scheduler(LazyBatching(), lane_spec(TABLE, **options)))


def step(ledger: Ledger, now: int) -> Task:
    """Run one task from now on; returns it."""
    task = ledger.schedule(now)
    assert task is not None
    ledger.complete(task, now + 25)
    return task


@pytest.mark.parametrize(("sla", "started"), [(99, 4), (100, 1), (199, 1), (200, 2), (299, 2), (300, 3), (1000, 4)])
def test_an_idle_start_takes_what_equation_two_allows(core: Core, sla: int, started: int) -> None:
    """Four rows of 100 with one deadline: k start if k x 100 fits; a head that is lost starts them all."""
    ledger = lazy(core)
    for id in range(4):
        ledger.add(row(id, sla=sla))
    task = ledger.schedule(0)
    assert task is not None
    assert task.rows == started
    assert task.reason is (Reason.START_LATE if sla < 100 else Reason.START_IDLE)


def test_the_tightest_deadline_of_the_batch_counts(core: Core) -> None:
    """300 would allow three rows; the second row's 250 allows two."""
    ledger = lazy(core)
    for id, sla in enumerate((300, 250, 300)):
        ledger.add(row(id, sla=sla))
    assert step(ledger, 0).opened == (0, 1)


def test_a_row_whose_own_deadline_would_break_stays_behind(core: Core) -> None:
    """The second row meets 150 alone but not behind the first (200), so only the first starts."""
    ledger = lazy(core)
    ledger.add(row(0, sla=1000))
    ledger.add(row(1, sla=150))
    assert step(ledger, 0).opened == (0,)


def test_without_targets_the_largest_batch_starts(core: Core) -> None:
    """No SLA, no limit but the model's maximum."""
    ledger = lazy(core, max_batch_size=3)
    for id in range(5):
        ledger.add(row(id))
    task = step(ledger, 0)
    assert (task.rows, task.reason) == (3, Reason.START_FULL)


def test_a_free_processor_starts_at_least_one_row(core: Core) -> None:
    """Two rows that would spoil each other: one of them starts."""
    ledger = lazy(core)
    for id in range(2):
        ledger.add(row(id, sla=101))
    assert step(ledger, 0).opened == (0,)


@pytest.mark.parametrize(("sla", "preempts"), [(199, False), (200, True)])
def test_preemption_needs_slack_for_everyone(core: Core, sla: int, preempts: bool) -> None:
    """At 25 the running row has 75 to go, the newcomer 100: 175 must fit before the first row's deadline."""
    ledger = lazy(core)
    ledger.add(row(0, sla=sla))
    first = step(ledger, 0)
    ledger.add(row(1, 25))
    second = step(ledger, 25)
    if preempts:
        assert (second.opened, second.preempted, second.reason) == ((1,), first.sub_batch, Reason.PREEMPT_SLACK)
    else:
        assert (second.sub_batch, second.node, second.reason) == (first.sub_batch, 1, Reason.CONTINUE)
    ledger.finish(50)


@pytest.mark.parametrize(("sla", "preempts"), [(174, False), (175, True)])
def test_the_newcomers_own_deadline_counts_too(core: Core, sla: int, preempts: bool) -> None:
    """It is charged with what is in flight: 75 + 100 from its arrival at 25."""
    ledger = lazy(core)
    ledger.add(row(0))
    step(ledger, 0)
    ledger.add(row(1, 25, sla=sla))
    assert bool(step(ledger, 25).opened) is preempts
    ledger.finish(50)


def test_progress_is_credited(core: Core) -> None:
    """A row with one node to go is charged 25, not 100: at 75, a deadline of 200 allows a newcomer."""
    ledger = lazy(core)
    ledger.add(row(0, sla=200))
    for now in (0, 25, 50):
        step(ledger, now)
    ledger.add(row(1, 75))
    assert step(ledger, 75).opened == (1,)
    ledger.finish(100)


def test_as_many_newcomers_as_slack_allows(core: Core) -> None:
    """75 to go and 225 left: one of three newcomers may come; with 275, two."""
    for sla, opened in ((250, (1,)), (300, (1, 2))):
        ledger = lazy(core)
        ledger.add(row(0, sla=sla))
        step(ledger, 0)
        for id in (1, 2, 3):
            ledger.add(row(id, 25))
        assert step(ledger, 25).opened == opened
        ledger.finish(50)


def test_every_row_in_flight_is_asked_not_only_the_oldest(core: Core) -> None:
    """The second sub-batch has the tight deadline; a third row is kept out by it."""
    ledger = lazy(core)
    ledger.add(row(0))
    step(ledger, 0)
    step(ledger, 25)
    ledger.add(row(1, 50, sla=160))
    assert step(ledger, 50).opened == (1,)
    ledger.add(row(2, 75))
    assert step(ledger, 75).opened == (), "50 + 75 + 100 from 75 on is past 210"
    ledger.finish(100)


@pytest.mark.parametrize(("sla", "preempts"), [(274, False), (275, True)])
def test_every_row_in_flight_is_charged(core: Core, sla: int, preempts: bool) -> None:
    """Two rows with 75 to go each and a newcomer of 100, from 25 on: 250 must fit."""
    ledger = lazy(core)
    for id in range(2):
        ledger.add(row(id, sla=sla))
    assert step(ledger, 0).rows == 2
    ledger.add(row(2, 25))
    assert bool(step(ledger, 25).opened) is preempts
    ledger.finish(50)


def test_lost_rows_in_flight_veto_nothing(core: Core) -> None:
    """A running row that cannot make its deadline any more does not keep others out."""
    ledger = lazy(core)
    ledger.add(row(0, sla=90))
    assert step(ledger, 0).reason is Reason.START_LATE
    ledger.add(row(1, 25))
    assert step(ledger, 25).opened == (1,)
    ledger.finish(50)


def test_lost_followers_veto_nothing(core: Core) -> None:
    """Behind a head with time, a lost row is charged but its deadline is ignored."""
    ledger = lazy(core)
    ledger.add(row(0, sla=300))
    ledger.add(row(1, sla=50))
    ledger.add(row(2, sla=300))
    assert step(ledger, 0).opened == (0, 1, 2)


def test_a_lost_head_preempts_nobody(core: Core) -> None:
    """Overload: what runs is completed, then the largest batch starts, unchecked."""
    ledger = lazy(core, max_batch_size=3)
    ledger.add(row(0))
    step(ledger, 0)
    for id in range(1, 5):
        ledger.add(row(id, 25, sla=99))
    for now in (25, 50, 75):
        assert step(ledger, now).reason is Reason.CONTINUE
    task = step(ledger, 100)
    assert (task.rows, task.reason) == (3, Reason.START_LATE)


def test_rows_in_flight_never_exceed_the_maximum(core: Core) -> None:
    """Two in flight of three: one newcomer comes, a further one waits."""
    ledger = lazy(core, max_batch_size=3)
    for id in range(2):
        ledger.add(row(id))
    step(ledger, 0)
    for id in (2, 3):
        ledger.add(row(id, 25))
    assert step(ledger, 25).opened == (2,)
    assert step(ledger, 50).reason is Reason.CONTINUE
    ledger.finish(75)


def test_rows_parked_below_the_top_take_room_too(core: Core) -> None:
    """Two rows in two sub-batches fill a maximum of two, though the top has but one."""
    ledger = lazy(core, max_batch_size=2)
    ledger.add(row(0))
    step(ledger, 0)
    step(ledger, 25)
    ledger.add(row(1, 50))
    assert step(ledger, 50).opened == (1,)
    ledger.add(row(2, 75))
    assert step(ledger, 75).reason is Reason.CONTINUE
    assert ledger.scheduler.counts.policy_failures == 0
    ledger.finish(100)


def test_a_head_of_another_signature_lets_the_table_drain(core: Core) -> None:
    """It cannot merge with what is in flight, and rows behind it that could do not slip past: its turn comes next."""
    ledger = lazy(core)
    ledger.add(row(0, signature="x"))
    step(ledger, 0)
    ledger.add(row(1, 25, signature="y"))
    ledger.add(row(2, 25, signature="x"))
    for now in (25, 50, 75):
        assert step(ledger, now).reason is Reason.CONTINUE
    assert step(ledger, 100).opened == (1,)
    ledger.finish(125)


def test_rows_that_must_run_alone_do(core: Core) -> None:
    """Rows of a model that cannot join, and rows that are retried, start one at a time and are never joined."""
    ledger = lazy(core, joinable=False)
    for id in range(2):
        ledger.add(row(id))
    first = step(ledger, 0)
    assert (first.opened, first.reason) == ((0,), Reason.START_ALONE)
    assert step(ledger, 25).reason is Reason.CONTINUE

    retried = lazy(core)
    for id in range(2):
        retried.add(row(id))
    task = retried.schedule(0)
    assert task is not None
    retried.fail(task, 25)
    assert step(retried, 25).reason is Reason.START_ALONE
    assert step(retried, 50).reason is Reason.CONTINUE
    retried.finish(75)


def test_only_newcomers_that_can_merge_preempt_where_sizes_are_fixed(core: Core) -> None:
    """With sizes 1, 2 and 4 and two rows in flight: one newcomer would make 3 and waits, two make 4 and come."""
    for newcomers, opened in (((2,), ()), ((2, 3), (2, 3)), ((2, 3, 4), (2, 3))):
        ledger = lazy(core, max_batch_size=4, allowed_sizes=(1, 2, 4))
        for id in range(2):
            ledger.add(row(id))
        step(ledger, 0)
        for id in newcomers:
            ledger.add(row(id, 25))
        assert step(ledger, 25).opened == opened
        ledger.finish(50)


def test_nobody_preempts_a_padded_sub_batch(core: Core) -> None:
    """It never merges, so catching up with it would gain nothing."""
    ledger = lazy(core, max_batch_size=4, allowed_sizes=(1, 4))
    for id in range(2):
        ledger.add(row(id))
    assert step(ledger, 0).padded_rows == 4
    ledger.add(row(2, 25))
    assert step(ledger, 25).reason is Reason.CONTINUE
    ledger.finish(50)


@pytest.mark.parametrize(("sla", "preempts"), [(109, False), (110, True)])
def test_another_model_preempts_with_slack_only(core: Core, sla: int, preempts: bool) -> None:
    """At 25 the running row has 75 to go, the other model's row takes 10: 85 must fit before the deadline."""
    ledger = Ledger(
        core.scheduler(LazyBatching(), lane_spec(TABLE, max_batch_size=1), lane_spec(linear("quick", 1, 9, 1)))
    )
    ledger.add(row(0, sla=sla))
    first = step(ledger, 0)
    ledger.add(row(1, 25, model="quick"))
    second = ledger.schedule(25)
    assert second is not None
    assert second.model == ("quick" if preempts else "m")
    assert second.preempted == (first.sub_batch if preempts else None)
    ledger.complete(second, 35)
    ledger.finish(35)


def test_a_model_that_may_not_start_does_not_block_another(core: Core) -> None:
    """The most urgent lane has no room; the next one is asked."""
    ledger = Ledger(
        core.scheduler(LazyBatching(), lane_spec(TABLE, max_batch_size=1), lane_spec(linear("quick", 1, 9, 1)))
    )
    ledger.add(row(0))
    step(ledger, 0)
    ledger.add(row(1, 1))
    ledger.add(row(2, 2, model="quick"))
    assert step(ledger, 25).opened == (2,)
    ledger.finish(50)


def test_overload_recovers() -> None:
    """Simulated, 1.5x the capacity at batch 1, a quarter of that at 16: throughput keeps up, serial's does not.

    Eq. 2 alone would never start two rows (2 x 400 does not fit into 700), so this rests on how late rows are served.
    """
    spec = lane_spec(linear(nodes=4, fixed=90, per_row=10), queue_capacity=100_000)
    offered = 1.5 * 1e9 / 400
    requests = requests_from(poisson(offered, 4_000, seed=3), "m", sla_ns=700)
    lazily = simulate([spec], LazyBatching(), requests)
    assert lazily.throughput_rps > 0.98 * offered
    assert lazily.scheduler.counts.policy_failures == 0
    assert simulate([spec], Serial(), requests).throughput_rps < 0.7 * offered


def test_a_burst_of_late_rows_is_worked_off() -> None:
    """Simulated: after 500 rows at once the queue empties, and rows that come later are on time again."""
    spec = lane_spec(linear(nodes=4, fixed=90, per_row=10), queue_capacity=100_000)
    quiet = [200_000 + 2_000 * k for k in range(50)]
    requests = requests_from([0] * 500 + quiet, "m", sla_ns=1_000)
    result = simulate([spec], LazyBatching(), requests)
    assert len(result.latencies_ns) == 550
    assert not [id for id in result.late if id >= 500]
    batched = simulate([spec], GraphBatching(), requests)
    assert result.latencies_ns[499] <= 1.2 * batched.latencies_ns[499]
