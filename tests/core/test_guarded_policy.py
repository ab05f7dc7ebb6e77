"""The guarded policy: whatever a policy answers, or raises, something that can be done is decided."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.lane import Lane
from lazybatch.core.policies import GraphBatching, Serial, Start, Wait
from lazybatch.core.policies.base import Stay
from lazybatch.core.task import Reason
from lazybatch.errors import InvalidInput
from tests.core.conftest import Core
from tests.core.kit import Asked, bare_spec, row, run, waiting_ids


def foreign(view: Any, now: int) -> Start:
    """A start in a lane of nobody's."""
    lane = Lane(bare_spec(max_batch_size=4))
    lane.queue.push(row(0))
    return Start(lane, 1, Reason.START_IDLE)


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("broken"),
        None,
        "start, please",
        Stay(),
        Wait(until_ns=5),
        Wait(until_ns=4),
        lambda view, now: Start(view.lanes[0], 0, Reason.START_IDLE),
        lambda view, now: Start(view.lanes[0], 5, Reason.START_IDLE),
        lambda view, now: Start(view.lanes[0], None, Reason.START_IDLE),
        lambda view, now: Start(view.lanes[1], 1, Reason.START_IDLE),
        lambda view, now: Start(view.lanes[0], 1, Reason.START_IDLE, skip=-1),
        lambda view, now: Start(view.lanes[0], 1, Reason.START_IDLE, skip=2),
        foreign,
    ],
    ids=[
        "raises",
        "go on",
        "nonsense",
        "stay",
        "wait till now",
        "wait till then",
        "0 rows",
        "5 of 4",
        "None",
        "empty",
        "skips backwards",
        "skips all",
        "alien",
    ],
)
def test_a_policy_that_cannot_decide_is_overruled(core: Core, answer: Any) -> None:
    """On a free processor: GraphB(0) starts what waits, and the failure is counted."""
    scheduler = core.scheduler(Asked(answer), bare_spec(max_batch_size=4), bare_spec("b"))
    for id in range(2):
        scheduler.add(row(id))
    task = run(scheduler, 5)
    assert (task.opened, task.reason, task.comparison) == ((0, 1), Reason.START_IDLE, None)
    assert scheduler.counts.policy_failures == 1
    error = scheduler.policy_error
    assert (
        error is answer
        or (type(error) is InvalidInput and "chose what cannot be done" in str(error))
        or (type(error) is TypeError)
    ), "the cause can be asked for"


def test_rows_can_be_passed_over(core: Core) -> None:
    """A start behind the first row leaves it waiting; passing over all rows that could be taken is overruled."""
    scheduler = core.scheduler(
        Asked(lambda view, now: Start(view.lanes[0], 2, Reason.START_IDLE, skip=1)), bare_spec(max_batch_size=4)
    )
    for id, signature in enumerate("xxyx"):
        scheduler.add(row(id, signature=signature))
    task = run(scheduler, 5)
    assert task.opened == (1, 3)
    assert waiting_ids(scheduler.lanes[0]) == [0, 2]
    assert scheduler.counts.policy_failures == 0
    scheduler.complete(task, 6)
    assert run(scheduler, 6).opened == (0,), "one row of the head's signature is left, it cannot be passed over"
    assert scheduler.counts.policy_failures == 1


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("broken"),
        "go on, please",
        Wait(),
        Wait(until_ns=100),
        lambda view, now: Start(view.lanes[0], 3, Reason.PREEMPT_SLACK),
    ],
    ids=["raises", "nonsense", "waits", "waits until", "no room"],
)
def test_a_policy_that_cannot_decide_does_not_stop_what_runs(core: Core, answer: Any) -> None:
    """With a sub-batch under way: it goes on, nobody is parked for nothing, rows in flight stay within the maximum."""
    scheduler = core.scheduler(GraphBatching(), bare_spec(nodes=2, max_batch_size=4))
    for id in range(2):
        scheduler.add(row(id))
    scheduler.complete(run(scheduler, 0), 1)
    for id in range(2, 6):
        scheduler.add(row(id, 1))
    scheduler._guarded.policy = Asked(answer)
    task = run(scheduler, 1)
    assert (task.node, task.reason) == (1, Reason.CONTINUE)
    assert scheduler.counts.policy_failures == 1


def test_a_policy_that_cannot_cope_with_news_stops_nothing(core: Core) -> None:
    """Hooks that raise are counted; rows are admitted and finish all the same."""

    class Deaf(Serial):
        def arrived(self, request: object) -> None:
            raise RuntimeError("arrived")

        def ran(self, lane: object, node: int, rows: int, took_ns: int) -> None:
            raise RuntimeError("ran")

        def completed(self, sub_batch: object, now: int) -> None:
            raise RuntimeError("completed")

    scheduler = core.scheduler(Deaf(), bare_spec())
    scheduler.add(row(0))
    assert scheduler.complete(run(scheduler, 0), 1).finished == (0,)
    assert scheduler.counts.policy_failures == 3


def test_waiting_for_news_that_cannot_come_is_overruled(core: Core) -> None:
    """While draining, no arrival will ever end a wait without a time: what waits is started instead."""
    scheduler = core.scheduler(Asked(Wait()), bare_spec())
    scheduler.add(row(0))
    scheduler.drain()
    assert run(scheduler, 0).opened == (0,)
    assert scheduler.counts.policy_failures == 1


def test_waiting_for_a_running_task_is_fine_while_draining(core: Core) -> None:
    """With another processor at work its end is news."""
    scheduler = core.scheduler(Serial(), bare_spec(), processors=2)
    for id in range(2):
        scheduler.add(row(id))
    run(scheduler, 0)
    scheduler._guarded.policy = Asked(Wait())
    scheduler.drain()
    assert scheduler.schedule(0) is None
    assert scheduler.counts.policy_failures == 0
