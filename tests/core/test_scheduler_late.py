"""Late rows: served by default; dropped, where that is chosen, from the moment they are hopeless.

Unless said otherwise a lane has 2 nodes that take 100 each alone: a row with a deadline of 1,000 is hopeless at 801.
"""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.policies import GraphBatching, LazyBatching, Serial
from lazybatch.core.task import Expired, Reason
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, linear, row, waiting_ids


def dropping(core: Core, policy: Any = None, **options: Any) -> Ledger:
    """A scheduler with one lane that drops late rows."""
    lane = lane_spec(linear(nodes=2), **{"late": "drop", **options})
    return Ledger(core.scheduler(policy or GraphBatching(), lane))


def test_the_driver_is_woken_when_a_row_becomes_hopeless(core: Core) -> None:
    """While a window of 5,000 is waited for, the wake-up is the moment after the last chance; then the row is gone."""
    ledger = dropping(core, GraphBatching(window_ns=5_000))
    ledger.add(row(0, sla=1_000))
    ledger.add(row(1, sla=3_000))
    assert ledger.schedule(0) is None
    assert ledger.scheduler.next_wakeup() == 801
    assert ledger.scheduler.expire(800) == ()
    ledger.expire(801)
    assert ledger.left == {0: "dropped"}
    assert ledger.schedule(801) is None
    assert ledger.scheduler.next_wakeup() == 2_801
    ledger.finish(801)


def test_late_rows_are_served_unless_they_are_to_be_dropped(core: Core) -> None:
    """Hopeless on arrival, the row runs; there is no time at which anything would be dropped."""
    ledger = dropping(core, late="serve")
    ledger.add(row(0, sla=1))
    assert ledger.scheduler.expire(0) == ()
    assert ledger.scheduler.next_wakeup() is None
    ledger.finish(0)
    assert ledger.left == {0: "finished"}


def test_a_row_that_is_hopeless_on_arrival_is_admitted_and_goes_at_once(core: Core) -> None:
    """Nothing is raised: it enters, and leaves at the next look at the queue, whoever else waits."""
    ledger = dropping(core)
    ledger.add(row(0, sla=199))
    ledger.add(row(1, sla=200))
    ledger.expire(0)
    assert ledger.left == {0: "dropped"}
    ledger.finish(0)
    assert ledger.left[1] == "finished"


def test_deadlines_need_not_come_in_order_of_arrival(core: Core) -> None:
    """Each row goes at its own time, from the middle of the queue too; the others keep their places."""
    ledger = dropping(core, Serial())
    for id, sla in enumerate((1_000, 400, None, 700)):
        ledger.add(row(id, sla=sla))
    assert ledger.scheduler.expire(501) == (Expired(1, True), Expired(3, True))
    assert waiting_ids(ledger.scheduler.lanes[0]) == [0, 2]
    ledger.left |= {1: "dropped", 3: "dropped"}
    assert [ledger.scheduler.counts.dropped, ledger.scheduler.queued()] == [2, 2]
    ledger.finish(501)


def test_rows_in_flight_are_never_dropped(core: Core) -> None:
    """A row that started in time ends late when its node is slow, running or parked."""
    ledger = dropping(core, LazyBatching())
    ledger.add(row(0, sla=1_000))
    task = ledger.schedule(700)
    assert task is not None
    ledger.expire(5_000)
    ledger.complete(task, 5_000)
    ledger.expire(5_001)
    ledger.finish(5_001)
    assert ledger.left == {0: "finished"}


def test_retried_rows_are_never_dropped(core: Core) -> None:
    """After a failure both rows run again, alone, however late."""
    ledger = dropping(core)
    for id in range(2):
        ledger.add(row(id, sla=1_000))
    task = ledger.schedule(0)
    assert task is not None
    ledger.fail(task, 5_000)
    ledger.expire(5_000)
    assert ledger.scheduler.next_wakeup() is None
    ledger.finish(5_000)
    assert ledger.left == {0: "finished", 1: "finished"}


def test_each_model_has_its_own_rule(core: Core) -> None:
    """Of two models that are late one drops, the other serves."""
    lanes = [lane_spec(linear(model, nodes=2), late=late) for model, late in (("a", "drop"), ("b", "serve"))]
    ledger = Ledger(core.scheduler(GraphBatching(), *lanes))
    for id, model in enumerate("ab"):
        ledger.add(row(id, model=model, sla=10))
    ledger.expire(0)
    ledger.finish(0)
    assert ledger.left == {0: "dropped", 1: "finished"}


@pytest.mark.parametrize("moment", [800, 801])
def test_the_last_chance_is_still_one(core: Core, moment: int) -> None:
    """A row that starts alone at 800 ends at 1,000, which is on time."""
    ledger = dropping(core, LazyBatching())
    ledger.add(row(0, sla=1_000))
    ledger.expire(moment)
    task = ledger.schedule(moment)
    assert (task is not None) == (moment == 800)
    if task is not None:
        assert task.reason is Reason.START_IDLE
    ledger.finish(moment)
