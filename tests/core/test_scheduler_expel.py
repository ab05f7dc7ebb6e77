"""Newcomers that could not be gathered: they leave the loop they were let into, and whom they were to join goes on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from lazybatch.core.infq import Alone
from lazybatch.core.policies import Continuous
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Task
from tests.core.conftest import Core
from tests.core.kit import row
from tests.core.loop_kit import loop_spec


def joining(core: Core, **options: Any) -> tuple[Scheduler, Task]:
    """Rows 0 and 1 have an iteration of a loop behind them; the task is to let 2 and 3 in."""
    scheduler = core.scheduler(Continuous(), loop_spec(1, (0, 1)), **options)
    for id in (0, 1):
        scheduler.add(row(id))
    first = scheduler.schedule(0)
    assert first is not None
    scheduler.complete(first, 10)
    for id in (2, 3):
        scheduler.add(row(id))
    task = scheduler.schedule(10)
    assert task is not None
    assert (task.opened, task.joined is not None, task.rows) == ((2, 3), True, 4)
    return scheduler, task


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("withdrawn", [(), (0,), (3,), (1, 2), (0, 1), (2, 3), (0, 1, 2, 3)])
def test_those_inside_go_on(core: Core, isolate: bool, withdrawn: Collection[int]) -> None:
    """Whoever is withdrawn meanwhile is gone; newcomers wait to run alone, or have failed; the others stand where they
    stood, with their iterations, and finish."""
    scheduler, task = joining(core, isolate_failures=isolate)
    for id in withdrawn:
        scheduler.cancel(id, 11)
    failure = scheduler.expel(task, 12)
    scheduler.validate()
    newcomers = tuple(id for id in (2, 3) if id not in withdrawn)
    inside = [id for id in (0, 1) if id not in withdrawn]
    assert set(failure.evicted) == set(withdrawn)
    assert (failure.retried, failure.failed) == ((newcomers, ()) if isolate else ((), newcomers))
    assert [entry.ids() for entry in scheduler.stack] == ([tuple(inside)] if inside else [])
    for entry in scheduler.stack:
        assert entry.progress is not None
        assert entry.progress.iterations() == dict.fromkeys(inside, 1)
    waiting = list(scheduler.lanes[0].queue)
    assert {request.id for request in waiting} == set(failure.retried)
    assert all(type(request.signature) is Alone for request in waiting)
    now = 12
    while (following := scheduler.schedule(now)) is not None:
        assert not following.opened or following.rows == 1
        ids = [entry.ids() for entry in scheduler.stack if entry.running]
        scheduler.complete(following, now + 1, ids[0])
        now += 1
    assert scheduler.idle
    assert scheduler.counts.finished == len(inside) + len(failure.retried)
    assert scheduler.counts.failed == len(failure.failed)
