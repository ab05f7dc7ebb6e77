"""Timers: limits are kept, and entries that ended early cost nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from weakref import ref

import pytest

from lazybatch.core.request import Request
from lazybatch.engine.clock import MonotonicClock, SteppedClock
from lazybatch.engine.entry import Entry, Event, RequestFuture
from lazybatch.engine.timers import Timers
from lazybatch.executors.base import Row

HELD: list[Entry] = []
"""Timers do not keep entries, the ledger does."""


@pytest.fixture(autouse=True)
def ledger() -> Iterator[None]:
    """Entries live for one test."""
    yield
    HELD.clear()


def entry(id: int, limit_ns: int) -> Entry:
    """An entry with a limit."""
    HELD.append(Entry(Request(id, "m", 0), Row(1), limit_ns, RequestFuture()))
    return HELD[-1]


def thread_of(body: Callable[[], None], role: str) -> threading.Thread:
    """What the engine starts threads with."""
    thread = threading.Thread(target=body, name=role, daemon=True)
    thread.start()
    return thread


def test_due_entries_expire_in_order_of_their_limits() -> None:
    """`fire` expires what is due, earliest first, once, and leaves the rest."""
    expired: list[int] = []
    timers = Timers(SteppedClock(), lambda one: expired.append(one.request.id), None)
    for id, limit_ns in ((1, 30), (2, 10), (3, 20), (4, 99)):
        timers.add(entry(id, limit_ns))
    assert timers.next_ns() == 10
    timers.fire(9)
    assert expired == []
    timers.fire(30)
    timers.fire(30)
    assert expired == [2, 3, 1]
    assert timers.next_ns() == 99


def test_entries_that_ended_before_are_not_expired() -> None:
    """A row that has its answer is left alone."""
    expired: list[int] = []
    timers = Timers(SteppedClock(), lambda one: expired.append(one.request.id), None)
    done = entry(1, 10)
    timers.add(done)
    done.move(Event.CANCEL)
    timers.fire(100)
    assert expired == []
    assert timers.next_ns() is None


def test_entries_that_ended_do_not_pile_up() -> None:
    """Ten thousand fast rows with a far limit leave a heap of bounded size behind, not ten thousand rows."""
    timers = Timers(SteppedClock(), lambda _: None, None)
    for id in range(10_000):
        one = entry(id, 10**15)
        timers.add(one)
        one.move(Event.CANCEL)
    assert len(timers) <= 128


def test_results_are_not_kept_until_the_limit() -> None:
    """The answer of a fast row with a far limit goes when its caller lets go of it."""
    timers = Timers(SteppedClock(), lambda _: None, None)
    one = entry(1, 10**15)
    timers.add(one)
    one.move(Event.CANCEL)
    kept = ref(one.future)
    HELD.clear()
    del one
    gc.collect()
    assert kept() is None
    timers.fire(10**15)


def test_an_expiry_that_raises_does_not_keep_others_from_expiring(caplog: pytest.LogCaptureFixture) -> None:
    """Every due entry gets its turn."""
    expired: list[int] = []

    def expire(one: Entry) -> None:
        expired.append(one.request.id)
        raise RuntimeError("first")

    timers = Timers(SteppedClock(), expire, None)
    timers.add(entry(1, 1))
    timers.add(entry(2, 2))
    timers.fire(5)
    assert expired == [1, 2]
    assert "expiring request 1 failed" in caplog.text


def test_the_thread_wakes_for_an_earlier_limit_added_later() -> None:
    """Waiting for a limit an hour away does not delay one that is due now; stop ends the thread."""
    clock, due = MonotonicClock(), threading.Event()
    threads: list[threading.Thread] = []

    def start(body: Callable[[], None], role: str) -> threading.Thread:
        threads.append(thread_of(body, role))
        return threads[-1]

    timers = Timers(clock, lambda _: due.set(), start)
    timers.add(entry(1, clock.now_ns() + 3_600 * 10**9))
    timers.add(entry(2, clock.now_ns()))
    assert due.wait(30)
    timers.stop()
    threads[0].join(30)
    assert not threads[0].is_alive()
    assert len(threads) == 1
    timers.add(entry(3, 0))
    assert len(threads) == 1


def test_without_a_thread_to_be_had_the_next_limit_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    """Adding raises nothing, since the row has been admitted; what was added before is kept once there is a thread."""
    clock, due, refused = MonotonicClock(), threading.Event(), list[str]()
    threads: list[threading.Thread] = []

    def start(body: Callable[[], None], role: str) -> threading.Thread:
        if not refused:
            refused.append(role)
            raise RuntimeError("can't start new thread")
        threads.append(thread_of(body, role))
        return threads[-1]

    timers = Timers(clock, lambda one: due.set() if one.request.id == 1 else None, start)
    timers.add(entry(1, clock.now_ns()))
    assert "no thread for time limits" in caplog.text
    timers.add(entry(2, clock.now_ns() + 3_600 * 10**9))
    assert due.wait(30)
    timers.stop()
    threads[0].join(30)
    assert not threads[0].is_alive()
