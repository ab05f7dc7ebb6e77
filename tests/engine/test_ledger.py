"""The ledger: whatever happens, in whatever order, the books balance."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Reason, Task
from lazybatch.engine.answers import Finished
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


def test_what_is_noted_is_in_the_books_for_whoever_asks() -> None:
    """Starts and ends reported by the engine thread show at once in capacity, state, moves and snapshots."""
    ledger = Ledger(["a"])
    first, second, third = (entry(id) for id in range(3))
    ledger.admit([first, second, third])
    task = Task("a", 0, 0, 2, 2, (0, 1), None, Reason.START_IDLE)
    ledger.opened(task, [first, second], 20)
    assert ledger.waiting("a") == 1
    assert ledger.running(first)
    assert ledger.move(second, Event.CANCEL, 25)
    ledger.dispatched(task, 20, 30, False)
    ledger.finished(Finished(task, "n", [first, second], {0: "x", 1: "y"}), 30)
    assert not ledger.running(first)
    assert not ledger.move(first, Event.CANCEL, 31)
    assert ledger.open_entries() == [third]
    stats = ledger.snapshot()
    assert (stats.completed, stats.cancelled, stats.queued, stats.dispatches) == (1, 1, 1, 1)
    accounts(stats, drained=False)


def test_an_interrupted_note_is_entered_again() -> None:
    """A Ctrl-C in a caller that happens to keep the books loses no row: the next caller does it."""
    ledger = Ledger(["a"])
    first, second = entry(0), entry(1)
    ledger.admit([first, second])
    task = Task("a", 0, 0, 2, 2, (0, 1), None, Reason.START_IDLE)

    class Interrupting(dict[int, str]):
        times = 1

        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            if key == 1 and self.times:
                self.times -= 1
                raise KeyboardInterrupt
            return super().get(key, default)

    ledger.opened(task, [first, second], 20)
    ledger.finished(Finished(task, "n", [first, second], Interrupting({0: "x", 1: "y"})), 30)
    with pytest.raises(KeyboardInterrupt):
        ledger.snapshot()
    stats = ledger.snapshot()
    assert stats.completed == 2
    accounts(stats)


def test_a_note_that_cannot_be_entered_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours must not come out of a caller's submit: it is logged, and later notes are entered."""
    ledger = Ledger(["a"])
    one = entry(0)
    ledger.admit([one])
    task = Task("a", 0, 0, 1, 1, (0,), None, Reason.START_IDLE)
    ledger.finished(Finished(task, "n", [one], {0: "never started"}), 15)
    ledger.opened(task, [one], 20)
    assert ledger.running(one)
    assert "waiting: 'complete' cannot happen" in caplog.text


def test_many_notes_are_entered_by_whoever_makes_them() -> None:
    """Notes are bounded although nobody asks."""
    ledger = Ledger(["a"])
    task = Task("a", 0, 0, 1, 1, (0,), None, Reason.START_IDLE)
    for time_ns in range(10_000):
        ledger.dispatched(task, time_ns, time_ns + 1, False)
    assert len(ledger._notes) < 5_000
    assert ledger.snapshot().dispatches == 10_000


def test_a_finalizer_in_the_middle_of_a_note_comes_first() -> None:
    """A cancellation from inside a note wins over the rest of it, and the books balance."""
    ledger = Ledger(["a"])
    first, second = entry(0), entry(1)
    ledger.admit([first, second])
    task = Task("a", 0, 0, 2, 2, (0, 1), None, Reason.START_IDLE)

    class Cancelling(dict[int, str]):
        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            if key == 0:
                ledger.move(second, Event.CANCEL, 30)
            return super().get(key, default)

    ledger.opened(task, [first, second], 20)
    ledger.finished(Finished(task, "n", [first, second], Cancelling({0: "x", 1: "y"})), 30)
    stats = ledger.snapshot()
    assert (stats.completed, stats.cancelled) == (1, 1)
    accounts(stats)
