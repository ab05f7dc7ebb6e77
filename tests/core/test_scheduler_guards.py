"""The scheduler guards itself: what it decided can be asked for, and its own invariants can fail."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.policies import GraphBatching, Start
from lazybatch.core.policies.base import Comparison, Stay
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason
from lazybatch.errors import InvariantError
from tests.core.conftest import Core
from tests.core.kit import Asked, bare_spec, row, run, waiting_ids


def test_what_was_compared_is_in_the_task(core: Core) -> None:
    """A policy's two costs reach the driver and the log: for a start, and for going on although rows wait."""
    compared = Comparison(5.0, 4.0, 1, 0)
    scheduler = core.scheduler(
        Asked(lambda view, now: Start(view.lanes[0], 1, Reason.START_IDLE, comparison=compared)),
        bare_spec(nodes=2, max_batch_size=4),
    )
    for id in range(2):
        scheduler.add(row(id))
    task = run(scheduler, 0)
    assert task.comparison == compared
    scheduler.complete(task, 1)
    scheduler._guarded.policy = Asked(Stay(Reason.STAY_CHEAPER, compared._replace(start_cost=6.0)))
    task = run(scheduler, 1)
    assert (task.node, task.reason, task.comparison) == (1, Reason.STAY_CHEAPER, Comparison(5.0, 6.0, 1, 0))
    assert [decision.task.comparison for decision in scheduler.decisions] == [compared, task.comparison]
    assert scheduler.policy_error is None


def _in_flight(scheduler: Scheduler) -> SubBatch:
    return scheduler.stack[0]


def _stop_running(scheduler: Scheduler) -> None:
    _in_flight(scheduler).running = False


def _miscount_waiting(scheduler: Scheduler) -> None:
    scheduler._waiting = 7


def _miscount(scheduler: Scheduler) -> None:
    scheduler.counts.added += 1


def _overfill(scheduler: Scheduler) -> None:
    scheduler.lanes[0].rows_max = 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_stop_running, "1 tasks counted as running"),
        (_miscount_waiting, "7 rows counted as waiting"),
        (_miscount, "with 3 requests inside"),
        (_overfill, "2 rows of model 'm' in flight"),
    ],
)
def test_validate_notices_damage(damage: Any, message: str) -> None:
    """Each invariant can fail: a check that never fires proves nothing."""
    scheduler = Scheduler([bare_spec(max_batch_size=2)], GraphBatching())
    for id in range(3):
        scheduler.add(row(id))
    run(scheduler, 0)
    assert waiting_ids(scheduler.lanes[0]) == [2]
    scheduler.validate()
    damage(scheduler)
    with pytest.raises(InvariantError, match=message):
        scheduler.validate()
