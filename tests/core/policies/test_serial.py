"""Serial: one request at a time, to completion."""

from __future__ import annotations

from lazybatch.core.policies import Serial
from lazybatch.core.task import Reason
from tests.core.conftest import Core
from tests.core.kit import Ledger, bare_spec, row


def order_of_starts(ledger: Ledger, now: int) -> list[int]:
    """Ids in the order in which they start, running everything to the end; each must run alone."""
    ledger.finish(now)
    tasks = [decision.task for decision in ledger.scheduler.decisions if decision.task.opened]
    assert all(len(task.opened) == 1 for task in tasks)
    return [task.opened[0] for task in tasks]


def test_one_at_a_time_to_completion(core: Core) -> None:
    """A newcomer waits until the running request has passed its last node, whatever its priority."""
    ledger = Ledger(core.scheduler(Serial(), bare_spec(nodes=2)))
    ledger.add(row(0))
    first = ledger.schedule(0)
    assert first is not None
    assert first.reason is Reason.START_SERIAL
    ledger.add(row(1, 1, priority=9))
    ledger.complete(first, 1)
    second = ledger.schedule(1)
    assert second is not None
    assert (second.sub_batch, second.node) == (first.sub_batch, 1)
    ledger.finish(1)
    assert ledger.scheduler.counts.policy_failures == 0


def test_the_most_urgent_of_all_models_is_next(core: Core) -> None:
    """Priority first, then arrival, across models."""
    ledger = Ledger(core.scheduler(Serial(), bare_spec("a"), bare_spec("b")))
    for id, (model, at, priority) in enumerate([("a", 2, 0), ("b", 1, 0), ("a", 5, 3), ("b", 4, 3)]):
        ledger.add(row(id, at, model=model, priority=priority))
    assert order_of_starts(ledger, 5) == [3, 2, 1, 0]
