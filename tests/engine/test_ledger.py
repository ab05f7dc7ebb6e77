"""The ledger: whatever happens, in whatever order, the books balance."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Reason, Task
from lazybatch.engine.entry import TRANSITIONS, Entry, Event, RequestFuture
from lazybatch.engine.ledger import REJECTIONS, Ledger
from lazybatch.executors.base import Row
from tests.engine.kit import accounts

MODELS = ("a", "b")


def entry(id: int, model: str = "a", deadline_ns: int = 50) -> Entry:
    """A row that arrived at 10."""
    return Entry(Request(id, model, 10, deadline_ns), Row(1), None, RequestFuture())


@given(st.lists(st.tuples(st.sampled_from(MODELS), st.lists(st.sampled_from(list(Event)), max_size=6)), max_size=20))
def test_the_books_balance_at_every_moment(lives: list[tuple[str, list[Event]]]) -> None:
    """Any number of rows, any legal or late events: accepted = queued + in flight + ended, in total and per model."""
    ledger = Ledger(MODELS)
    for id, (model, events) in enumerate(lives):
        one = entry(id, model)
        ledger.admit([one])
        accounts(ledger.snapshot(), drained=False)
        for event in events:
            if one.ended or event in TRANSITIONS[one.state]:
                ended = one.ended
                assert ledger.move(one, event, 20) == (not ended)
                accounts(ledger.snapshot(), drained=False)
        assert (one.request.id in ledger.live) == (not one.ended)
    assert ledger.snapshot().accepted == len(lives)


def test_only_the_first_end_counts() -> None:
    """Two that end a row at once: one wins, and the row is counted once."""
    ledger = Ledger(["a"])
    one = entry(1)
    ledger.admit([one])
    assert ledger.move(one, Event.CANCEL, 20)
    assert not ledger.move(one, Event.EXPIRE, 21)
    stats = ledger.snapshot()
    assert (stats.cancelled, stats.expired) == (1, 0)


def test_waiting_counts_what_takes_a_place_in_the_queue() -> None:
    """Rows leave the capacity when they start or end; rows to be retried do not take a second place."""
    ledger = Ledger(["a"])
    first, second, third = (entry(id) for id in range(3))
    ledger.admit([first, second, third])
    assert ledger.waiting("a") == 3
    ledger.move(first, Event.START, 20)
    ledger.move(second, Event.CANCEL, 20)
    assert ledger.waiting("a") == 1
    ledger.move(first, Event.RETRY, 30)
    assert ledger.waiting("a") == 1
    stats = ledger.snapshot()
    assert (stats.queued, stats.in_flight, stats.retried) == (2, 0, 1)


def test_times_reasons_and_padding_are_kept_apart() -> None:
    """Queue wait ends with the first node, service begins there; dispatches, padding and reasons are per node run."""
    ledger = Ledger(MODELS)
    one, late = entry(1), entry(2, deadline_ns=30)
    ledger.admit([one, late])
    task = Task("a", 0, 0, 2, 4, (1, 2), None, Reason.START_FULL)
    ledger.opened(task, [one, late], 25)
    ledger.dispatched(task, 25, 40, False)
    ledger.dispatched(task._replace(node=1, opened=(), reason=Reason.CONTINUE), 40, 45, False)
    ledger.merged(Merge("a", 0, 1), 45)
    ledger.move(one, Event.COMPLETE, 45)
    ledger.move(late, Event.COMPLETE, 45)
    stats = ledger.snapshot()
    assert (stats.queue_wait.count, stats.queue_wait.low, stats.queue_wait.high) == (2, 15, 15)
    assert (stats.service.low, stats.latency.low) == (20, 35)
    assert (stats.batches, stats.dispatches, stats.mean_rows, stats.padding_rows) == (1, 2, 2.0, 4)
    assert dict(stats.reasons) == {Reason.START_FULL.value: 1, Reason.CONTINUE.value: 1}
    assert (stats.merges, stats.preemptions, stats.violations) == (1, 0, 1)
    assert stats.models["b"].dispatches == 0
    accounts(stats)


def test_rejections_are_counted_by_cause() -> None:
    """Rows that were never admitted show up under why, and nowhere else."""
    ledger = Ledger(["a"])
    for rows, cause in enumerate(REJECTIONS, start=1):
        ledger.reject("a", rows, cause)
    stats = ledger.snapshot()
    assert dict(stats.rejected) == {"overloaded": 1, "deadline": 2, "shutting_down": 3, "invalid": 4}
    assert stats.accepted == 0
    accounts(stats)


def test_a_snapshot_is_plain_data() -> None:
    """`as_dict` is JSON values, with the models once, and does not change later."""
    ledger = Ledger(MODELS)
    before = ledger.snapshot()
    ledger.admit([entry(1)])
    plain = before.as_dict()
    assert plain["accepted"] == 0
    assert plain["queue_wait"]["p99_ms"] is None
    assert set(plain["models"]) == set(MODELS)
    assert "models" not in plain["models"]["a"]


def test_a_finalizer_may_cancel_inside_a_locked_section() -> None:
    """Garbage collection may run while the lock is held and cancel a row: the lock is re-entrant."""
    ledger = Ledger(["a"])
    one = entry(1)
    ledger.admit([one])

    class Leaving:
        def __del__(self) -> None:
            ledger.move(one, Event.CANCEL, 20)

    cycle: list[object] = [Leaving()]
    cycle.append(cycle)
    del cycle
    with ledger.lock:
        gc.collect()
    assert ledger.snapshot().cancelled == 1
