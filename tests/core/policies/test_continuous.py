"""Continuous batching: everybody joins at every step of a loop, one step between two joins, models in turn."""

from __future__ import annotations

import pytest

from lazybatch.core.policies import Cellular, Continuous
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason, Task
from tests.core.kit import lane_spec, linear, row
from tests.core.loop_kit import loop_spec


def turn(scheduler: Scheduler, now: int) -> Task:
    """Run the next task."""
    task = scheduler.schedule(now)
    assert task is not None
    scheduler.complete(task, now + 1)
    scheduler.validate()
    return task


def test_joins_only_at_the_first_node_of_a_loop() -> None:
    """A newcomer that comes while the body's first node runs waits until the body is through."""
    scheduler = Scheduler([loop_spec(3, (1, 3))], Continuous())
    scheduler.add(row(0))
    turn(scheduler, 0)
    turn(scheduler, 1)
    scheduler.add(row(1))
    assert turn(scheduler, 2).node == 2
    task = turn(scheduler, 3)
    assert (task.opened, task.preempted, task.reason) == ((1,), 0, Reason.JOIN_STEP)


def test_a_step_runs_between_two_joins() -> None:
    """Newcomers of newcomers wait for one iteration, or arrivals could hold up the loop for good."""
    scheduler = Scheduler([loop_spec(2, (1, 2))], Continuous())
    opened = []
    for now in range(7):
        scheduler.add(row(now))
        opened.append(turn(scheduler, now).opened)
    assert opened == [(0,), (1,), (), (2, 3), (), (4, 5), ()]


def test_rows_in_flight_stay_within_the_maximum() -> None:
    """Freed places are taken at once; without a free place nobody joins."""
    scheduler = Scheduler([loop_spec(2, (1, 2), max_batch_size=2)], Continuous())
    for id in range(3):
        scheduler.add(row(id))
    assert turn(scheduler, 0).opened == (0, 1)
    task = scheduler.schedule(1)
    assert task is not None
    assert scheduler.complete(task, 2, [1]).finished == (1,)
    assert turn(scheduler, 2).opened == (2,)


def test_only_rows_that_can_join_do() -> None:
    """Another signature at the head of the queue waits until the loop has drained; nobody overtakes it."""
    scheduler = Scheduler([loop_spec(1, (0, 1))], Continuous())
    scheduler.add(row(0, signature="x"))
    turn(scheduler, 0)
    scheduler.add(row(1, signature="y"))
    scheduler.add(row(2, signature="x"))
    task = scheduler.schedule(1)
    assert task is not None
    assert task.opened == ()
    scheduler.complete(task, 2, [0])
    assert turn(scheduler, 2).opened == (1,)


def test_another_model_has_its_turn() -> None:
    """While the most urgent row is another model's, nobody joins the running loop, so that it comes to its end."""
    scheduler = Scheduler([loop_spec(2, (1, 2), model="a"), lane_spec(linear("b"))], Continuous())
    scheduler.add(row(0, model="a"))
    turn(scheduler, 0)
    scheduler.add(row(1, 1, model="b"))
    scheduler.add(row(2, 2, model="a"))
    task = scheduler.schedule(3)
    assert task is not None
    assert task.opened == ()
    scheduler.complete(task, 4, [0])
    assert turn(scheduler, 4).opened == (1,)
    assert turn(scheduler, 5).opened == (2,)
    scheduler.add(row(3, 5, model="b"))
    assert turn(scheduler, 6).opened == (), "nothing of its own model waits"


@pytest.mark.parametrize(("policy", "joined"), [(Continuous(), (1,)), (Cellular(), ())], ids=repr)
def test_cellular_joins_where_only_loops_lie_before(policy: Continuous, joined: tuple[int, ...]) -> None:
    """A chain in front of the loop has weights of its own: there, cellular batching is graph batching."""
    scheduler = Scheduler([loop_spec(2, (1, 2))], policy)
    scheduler.add(row(0))
    turn(scheduler, 0)
    scheduler.add(row(1))
    assert turn(scheduler, 1).opened == joined


def test_cellular_joins_the_second_of_two_loops() -> None:
    """An encoder loop and a decoder loop: newcomers run the former's cells and join in the latter."""
    scheduler = Scheduler([loop_spec(2, (0, 1), (1, 2))], Cellular())
    scheduler.add(row(0))
    task = scheduler.schedule(0)
    assert task is not None
    scheduler.complete(task, 1, [0])
    scheduler.add(row(1))
    task = scheduler.schedule(1)
    assert task is not None
    assert (task.opened, task.node, task.preempted) == ((1,), 0, 0)
    assert [merge.target for merge in scheduler.complete(task, 2, [1]).merges] == [0]
