"""Oracle: admission by exact tables to the nanosecond, who has a veto, padding, and a prediction that comes true.

Unless said otherwise a lane has 4 nodes that take 20 + 5 b ns each: 100 alone, 120 for two rows, 160 for four.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.policies import Choice, LazyBatching, Oracle, Start, View
from lazybatch.core.policies.oracle import late_rows, running
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason, Task
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import poisson
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, linear, row, run_node

TABLE = linear(nodes=4, fixed=20, per_row=5)


def oracle(core: Core, **options: Any) -> Ledger:
    """A scheduler with one lane of the module's table under Oracle."""
    return Ledger(core.scheduler(Oracle(), lane_spec(TABLE, **options)))


def step(ledger: Ledger, now: int, took: int = 25) -> Task:
    """Run one task from now on; returns it."""
    task = ledger.schedule(now)
    assert task is not None
    ledger.complete(task, now + took)
    return task


@pytest.mark.parametrize(
    ("sla", "started"), [(99, 4), (100, 1), (119, 1), (120, 2), (139, 2), (140, 3), (160, 4), (1000, 4)]
)
def test_an_idle_start_takes_what_the_table_allows(core: Core, sla: int, started: int) -> None:
    """Four rows with one deadline: as many as end by it together; a head that is lost starts them all."""
    ledger = oracle(core)
    for id in range(4):
        ledger.add(row(id, sla=sla))
    task = ledger.schedule(0)
    assert task is not None
    assert (task.rows, task.reason) == (started, Reason.START_LATE if sla < 100 else Reason.START_IDLE)


def test_without_targets_the_largest_batch_starts(core: Core) -> None:
    """No deadline, no limit but the model's maximum."""
    ledger = oracle(core, max_batch_size=3)
    for id in range(5):
        ledger.add(row(id))
    task = step(ledger, 0)
    assert (task.rows, task.reason) == (3, Reason.START_FULL)


@pytest.mark.parametrize(("sla", "preempts"), [(139, False), (140, True)])
def test_preemption_may_make_nobody_late(core: Core, sla: int, preempts: bool) -> None:
    """The newcomer catches up by 50 and both run three nodes of 30: the first row ends at 140 instead of 100."""
    ledger = oracle(core)
    ledger.add(row(0, sla=sla))
    first = step(ledger, 0)
    ledger.add(row(1, 25))
    second = step(ledger, 25)
    if preempts:
        assert (second.opened, second.preempted, second.reason) == ((1,), first.sub_batch, Reason.PREEMPT_SLACK)
    else:
        assert (second.sub_batch, second.node, second.reason) == (first.sub_batch, 1, Reason.CONTINUE)
    ledger.finish(50)


@pytest.mark.parametrize(("sla", "preempts"), [(114, False), (115, True)])
def test_the_newcomers_own_deadline_counts_too(core: Core, sla: int, preempts: bool) -> None:
    """It would end at 140 and came at 25; alone it would have made 114 as well."""
    ledger = oracle(core)
    ledger.add(row(0))
    step(ledger, 0)
    ledger.add(row(1, 25, sla=sla))
    assert bool(step(ledger, 25).opened) is preempts
    ledger.finish(50)


def test_lost_newcomers_veto_nothing(core: Core) -> None:
    """Behind a head with time, a row that could not make its deadline even alone joins."""
    ledger = oracle(core)
    ledger.add(row(0, sla=300))
    ledger.add(row(1, sla=50))
    assert step(ledger, 0).opened == (0, 1)


def test_a_row_that_is_late_without_newcomers_vetoes_nothing(core: Core) -> None:
    """After a slow node two rows end at 90 from now; alone one of them would need 75 and has 80: late all the same."""
    ledger = oracle(core)
    for id in range(2):
        ledger.add(row(id, sla=980))
    assert step(ledger, 0, took=900).rows == 2
    ledger.add(row(2, 900))
    assert step(ledger, 900).opened == (2,)
    ledger.finish(925)


@pytest.mark.parametrize(("sla", "opened"), [(159, (1,)), (160, (1, 2)), (180, (1, 2, 3))])
def test_as_many_newcomers_as_the_table_allows(core: Core, sla: int, opened: tuple[int, ...]) -> None:
    """k newcomers catch up in 20 + 5 k and 1 + k rows run three nodes of 25 + 5 k: 115 + 20 k from 25 on."""
    ledger = oracle(core)
    ledger.add(row(0, sla=sla))
    step(ledger, 0)
    for id in (1, 2, 3):
        ledger.add(row(id, 25))
    assert step(ledger, 25).opened == opened
    ledger.finish(50)


def test_nobody_is_asked_where_there_is_no_room(core: Core) -> None:
    """A full table goes on, whoever waits."""
    ledger = oracle(core, max_batch_size=2)
    for id in range(3):
        ledger.add(row(id))
    assert step(ledger, 0).rows == 2
    assert step(ledger, 25).reason is Reason.CONTINUE
    ledger.finish(50)


@pytest.mark.parametrize(("sla", "preempts"), [(109, False), (110, True)])
def test_another_model_preempts_if_nobody_is_late_by_it(core: Core, sla: int, preempts: bool) -> None:
    """At 25 the running row has 75 to go, the other model's row takes 10: 85 must fit before the deadline."""
    ledger = Ledger(core.scheduler(Oracle(), lane_spec(TABLE), lane_spec(linear("quick", 1, 9, 1))))
    ledger.add(row(0, sla=sla))
    step(ledger, 0)
    ledger.add(row(1, 25, model="quick"))
    second = ledger.schedule(25)
    assert second is not None
    assert second.model == ("quick" if preempts else "m")
    ledger.complete(second, 35)
    ledger.finish(35)


@pytest.mark.parametrize(("sla", "rows"), [(159, 1), (160, 2)])
def test_padding_is_part_of_the_prediction(core: Core, sla: int, rows: int) -> None:
    """Two rows run as four: 160."""
    ledger = oracle(core, max_batch_size=4, allowed_sizes=(1, 4))
    for id in range(2):
        ledger.add(row(id, sla=sla))
    assert step(ledger, 0).rows == rows
    ledger.finish(25)


def test_what_runs_elsewhere_takes_no_time_here(core: Core) -> None:
    """On two processors a row starts beside a running one: 100 is enough."""
    spec = lane_spec(linear(nodes=1))
    ledger = Ledger(core.scheduler(Oracle(), spec, processors=2))
    ledger.add(row(0, sla=100))
    assert ledger.schedule(0) is not None
    ledger.add(row(1, sla=100))
    ledger.add(row(2, sla=100))
    task = ledger.schedule(0)
    assert task is not None
    assert (task.opened, task.reason) == ((1,), Reason.START_IDLE)
    ledger.finish(0)


def test_it_makes_more_rows_on_time_than_equation_two() -> None:
    """Simulated, where batching pays and the target allows batches: fewer violations and a lower mean latency."""
    spec = lane_spec(linear(nodes=4, fixed=90, per_row=10), queue_capacity=100_000)
    requests = requests_from(poisson(1e9 / 200, 2_000, seed=1), "m", sla_ns=1_500)
    exact, charged = (simulate([spec], policy, requests) for policy in (Oracle(), LazyBatching()))
    assert exact.violations < charged.violations
    assert sum(exact.latencies_ns.values()) < sum(charged.latencies_ns.values())


class Scripted:
    """Starts rows where a script says so, as often as there is room; then only what is needed to go on."""

    needs_table = True

    def __init__(self, script: list[tuple[int, int]]) -> None:
        self.script = script

    def decide(self, view: View, now: int) -> Choice:
        """The next line of the script, if it can be done."""
        lane_number, rows = self.script.pop(0) if self.script else (0, 0)
        lane = view.lanes[lane_number % len(view.lanes)]
        room = min(rows, lane.rows_max - lane.table.rows)
        if len(lane.queue) and room > 0:
            return Start(lane, room, Reason.PREEMPT_SLACK)
        if view.active is not None:
            return None
        return Start(next(lane for lane in view.lanes if len(lane.queue)), 1, Reason.START_IDLE)


@settings(max_examples=80, deadline=None)
@given(
    script=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=12),
    slas=st.lists(st.integers(0, 400), min_size=16, max_size=16),
    signatures=st.lists(st.sampled_from("xxxy"), min_size=16, max_size=16),
    sizes=st.sampled_from([(), (1, 2, 4), (1, 4), (2, 4)]),
)
def test_the_prediction_comes_true(
    script: list[tuple[int, int]], slas: list[int], signatures: list[str], sizes: tuple[int, ...]
) -> None:
    """Any stack of two models, run to its end without newcomers, makes exactly the predicted number of rows late."""
    specs = [lane_spec(linear(model, 3, 5, 3), max_batch_size=4, allowed_sizes=sizes) for model in "ab"]
    scheduler = Scheduler(specs, Scripted(script))
    for id, (sla, signature) in enumerate(zip(slas, signatures, strict=True)):
        scheduler.add(row(id, model="ab"[id % 2], sla=sla, signature=signature))
    deadlines_ns = {request.id: request.deadline_ns for lane in scheduler.lanes for request in lane.queue}
    now = 0
    while not scheduler.idle and (script or scheduler.active is None):
        now, _ = run_node(scheduler, now)
    stack = [running(scheduler.lane_of(entry.model), entry) for entry in scheduler.stack]
    predicted = late_rows(stack, now)
    late = 0
    while scheduler.active is not None:
        now, finished = run_node(scheduler, now)
        late += sum(now > deadlines_ns[id] for id in finished)
    assert predicted == late
