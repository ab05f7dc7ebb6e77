"""Graph batching: windows, full batches, buckets, budgets, padding, draining; GraphB(0)."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.policies import GraphBatching
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason, Task
from lazybatch.errors import InvalidInput
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import poisson
from tests.core.conftest import Core
from tests.core.kit import Ledger, bare_spec, lane_spec, linear, row


def start(scheduler: Scheduler, now: int) -> tuple[tuple[int, ...], Reason] | None:
    """Which rows start now, and why; None for none."""
    task: Task | None = scheduler.schedule(now)
    if task is None:
        return None
    scheduler.complete(task, now)
    return task.opened, task.reason


def test_the_window_runs_from_the_oldest_arrival(core: Core) -> None:
    """A row that arrived at 3 starts at 13 under a window of 10, though the processor saw it only at 9."""
    scheduler = core.scheduler(GraphBatching(window_ns=10), bare_spec())
    scheduler.add(row(0, 3))
    assert start(scheduler, 9) is None
    assert scheduler.next_wakeup() == 13
    scheduler.add(row(1, 12))
    assert start(scheduler, 12) is None
    assert scheduler.next_wakeup() == 13, "a later arrival does not prolong the window"
    assert start(scheduler, 13) == ((0, 1), Reason.START_WINDOW)
    assert scheduler.counts.policy_failures == 0


def test_a_window_that_ended_while_the_processor_was_busy_is_over(core: Core) -> None:
    """The row has waited long enough; it does not wait a second time."""
    scheduler = core.scheduler(GraphBatching(window_ns=10), bare_spec())
    scheduler.add(row(0, 3))
    assert start(scheduler, 50) == ((0,), Reason.START_WINDOW)


def test_a_full_batch_starts_at_once(core: Core) -> None:
    """Four of four rows start inside their window; the fifth waits for its own."""
    scheduler = core.scheduler(GraphBatching(window_ns=100), bare_spec(max_batch_size=4))
    for id in range(5):
        scheduler.add(row(id, id))
    assert start(scheduler, 5) == ((0, 1, 2, 3), Reason.START_FULL)
    assert start(scheduler, 5) is None
    assert scheduler.next_wakeup() == 104


def test_its_own_maximum_can_be_smaller_than_the_models(core: Core) -> None:
    """max_batch_size of the policy caps the model's; a larger one does not raise it."""
    for maximum, opened in ((2, (0, 1)), (99, (0, 1, 2, 3))):
        scheduler = core.scheduler(GraphBatching(max_batch_size=maximum), bare_spec(max_batch_size=4))
        for id in range(6):
            scheduler.add(row(id, id))
        assert start(scheduler, 6) == (opened, Reason.START_FULL)


def test_graphb_zero_takes_all_that_wait_when_free(core: Core) -> None:
    """Work-conserving: one row or many, without any wait; the reason tells a full batch from a free processor."""
    scheduler = core.scheduler(GraphBatching(), bare_spec(max_batch_size=4))
    scheduler.add(row(0, 0))
    assert start(scheduler, 0) == ((0,), Reason.START_IDLE)
    for id in range(1, 6):
        scheduler.add(row(id, 1))
    assert start(scheduler, 1) == ((1, 2, 3, 4), Reason.START_FULL)
    assert start(scheduler, 1) == ((5,), Reason.START_IDLE)


def test_rows_of_other_signatures_do_not_make_a_batch_full(core: Core) -> None:
    """Four rows of four shapes under a maximum of four are four batches of one, none of them full."""
    for policy, reason in (
        (GraphBatching(), Reason.START_IDLE),
        (GraphBatching(window_ns=1), Reason.START_WINDOW),
        (GraphBatching(size_budget=9), Reason.START_IDLE),
    ):
        scheduler = core.scheduler(policy, bare_spec(max_batch_size=4))
        for id in range(4):
            scheduler.add(row(id, id, signature=id))
        assert [start(scheduler, 9) for _ in range(4)] == [((id,), reason) for id in range(4)]


def test_the_oldest_row_selects_the_bucket(core: Core) -> None:
    """A stream of short rows cannot starve a long one: when it is the oldest, its bucket is next."""
    scheduler = core.scheduler(GraphBatching(), bare_spec(max_batch_size=2))
    scheduler.add(row(0, 0, signature="short"))
    scheduler.add(row(1, 1, signature="long"))
    starts = []
    for now in range(2, 12):
        scheduler.add(row(now, now, signature="short"))
        started = start(scheduler, now)
        assert started is not None
        starts.append(started[0])
    assert starts[:3] == [(0, 2), (1,), (3, 4)]


def test_a_window_belongs_to_the_bucket_of_the_oldest_row(core: Core) -> None:
    """The bucket whose turn it is waits for its own window; a younger bucket does not shorten it."""
    scheduler = core.scheduler(GraphBatching(window_ns=10), bare_spec())
    scheduler.add(row(0, 0, signature="short"))
    scheduler.add(row(1, 4, signature="long"))
    assert start(scheduler, 4) is None
    assert scheduler.next_wakeup() == 10
    assert start(scheduler, 10) == ((0,), Reason.START_WINDOW)
    assert start(scheduler, 10) is None
    assert scheduler.next_wakeup() == 14


def test_size_budget_counts_tokens_not_rows(core: Core) -> None:
    """Sizes 3, 3, 3 under a budget of 8: two rows start, full before the window; the third waits."""
    scheduler = core.scheduler(GraphBatching(window_ns=100, size_budget=8), bare_spec())
    for id in range(2):
        scheduler.add(row(id, id, size=3))
    assert start(scheduler, 2) is None
    scheduler.add(row(2, 2, size=3))
    assert start(scheduler, 2) == ((0, 1), Reason.START_FULL)
    assert start(scheduler, 2) is None


def test_a_row_larger_than_the_budget_runs_alone(core: Core) -> None:
    """It can never fit, so it goes by itself instead of waiting for ever."""
    scheduler = core.scheduler(GraphBatching(size_budget=8), bare_spec())
    scheduler.add(row(0, 0, size=50))
    scheduler.add(row(1, 0, size=1))
    assert start(scheduler, 0) == ((0,), Reason.START_FULL)
    assert start(scheduler, 0) == ((1,), Reason.START_IDLE)


def test_allowed_sizes_pad_what_the_window_collected(core: Core) -> None:
    """Three rows where 1, 4 and 8 may run are executed as four."""
    scheduler = core.scheduler(GraphBatching(window_ns=10), bare_spec(max_batch_size=8, allowed_sizes=(1, 4, 8)))
    for id in range(3):
        scheduler.add(row(id))
    task = scheduler.schedule(10)
    assert task is not None
    assert (task.rows, task.padded_rows, task.reason) == (3, 4, Reason.START_WINDOW)


def test_draining_flushes_windows(core: Core) -> None:
    """No further row can come, so none is waited for."""
    scheduler = core.scheduler(GraphBatching(window_ns=1000), bare_spec())
    scheduler.add(row(0))
    assert start(scheduler, 0) is None
    scheduler.drain()
    assert start(scheduler, 0) == ((0,), Reason.START_DRAIN)


def test_rows_that_cannot_join_do_not_wait_for_company(core: Core) -> None:
    """A model whose rows cannot join gains nothing from a window."""
    scheduler = core.scheduler(GraphBatching(window_ns=1000), bare_spec(joinable=False))
    for id in range(2):
        scheduler.add(row(id))
    assert start(scheduler, 0) == ((0,), Reason.START_ALONE)
    assert start(scheduler, 0) == ((1,), Reason.START_ALONE)


def test_it_never_preempts(core: Core) -> None:
    """Between two nodes the running batch goes on, whatever waits."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec(nodes=2)))
    ledger.add(row(0))
    first = ledger.schedule(0)
    assert first is not None
    ledger.add(row(1, priority=9))
    ledger.complete(first, 1)
    second = ledger.schedule(1)
    assert second is not None
    assert (second.sub_batch, second.reason) == (first.sub_batch, Reason.CONTINUE)
    ledger.finish(1)


def test_the_first_lane_that_is_ready_starts(core: Core) -> None:
    """A model whose oldest row still waits for its window does not hold up another whose batch is full."""
    scheduler = core.scheduler(GraphBatching(window_ns=10), bare_spec("a"), bare_spec("b", max_batch_size=2))
    scheduler.add(row(0, 0, model="a"))
    assert start(scheduler, 1) is None
    for id in (1, 2):
        scheduler.add(row(id, 2, model="b"))
    assert start(scheduler, 2) == ((1, 2), Reason.START_FULL)
    scheduler.add(row(3, 3, model="b"))
    assert start(scheduler, 3) is None
    assert scheduler.next_wakeup() == 10, "the first of the windows"


@pytest.mark.parametrize("window_ns", [0, 300])
def test_batches_grow_with_load(window_ns: int) -> None:
    """Simulated: mean rows per batch never fall as the offered load rises from a tenth of batch-1 capacity to 4x."""
    spec = lane_spec(linear(fixed=90, per_row=10), queue_capacity=10_000)
    means = []
    for load in (0.1, 0.5, 1.0, 2.0, 4.0):
        arrivals = poisson(load * 1e9 / 100, 4_000, seed=1)
        means.append(simulate([spec], GraphBatching(window_ns), requests_from(arrivals, "m")).mean_batch)
    assert means == sorted(means)
    assert means[0] < 2 < means[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_ns": -1}, "window_ns must be a whole number of at least 0, got -1"),
        ({"max_batch_size": 0}, "max_batch_size must be a whole number of at least 1, got 0"),
        ({"window_ns": "5"}, "window_ns must be a whole number of at least 0, got '5'"),
        ({"size_budget": 0}, "size_budget must be a whole number of at least 1, got 0"),
    ],
)
def test_absurd_options_are_refused(options: dict[str, Any], message: str) -> None:
    """Each names the option and what was expected."""
    with pytest.raises(InvalidInput, match=message):
        GraphBatching(**options)


def test_rows_that_the_batch_would_make_late_are_passed_over_where_they_are_dropped(core: Core) -> None:
    """Two rows take 110, and the first two of four have less: the others start. Served late, the first ones would."""
    for late, opened in (("drop", (2, 3)), ("serve", (0, 1))):
        scheduler = core.scheduler(GraphBatching(), lane_spec(max_batch_size=2, late=late))
        for id, sla in enumerate((105, 109, 200, 200)):
            scheduler.add(row(id, sla=sla))
        assert start(scheduler, 0) == (opened, Reason.START_FULL)
