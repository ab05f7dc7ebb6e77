"""Entries and futures: one life, one end."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError, wait

import pytest

from lazybatch.core.request import Request
from lazybatch.engine.entry import TRANSITIONS, Entry, Event, RequestFuture, State
from lazybatch.errors import InvariantError, LazyBatchError, SelfWait
from lazybatch.executors.base import Row


def entry(state: State = State.WAITING) -> Entry:
    """An entry that stands in ``state``."""
    made = Entry(Request(7, "m", 0), Row(1), None, RequestFuture())
    made.state = state
    return made


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_move_is_the_tables_or_changes_nothing(state: State, event: Event) -> None:
    """A legal move follows the table; after the end any event is late and ignored; everything else is a bug."""
    made = entry(state)
    if event in TRANSITIONS[state]:
        assert made.move(event)
        assert made.state is TRANSITIONS[state][event]
    elif made.ended:
        assert not made.move(event)
        assert made.state is state
    else:
        with pytest.raises(InvariantError, match="request 7"):
            made.move(event)
        assert made.state is state


def test_every_live_state_can_end_and_no_final_state_can_go_on() -> None:
    """Whatever a row is doing, failure, cancellation and expiry end it; what has ended stays so."""
    for state, moves in TRANSITIONS.items():
        if moves:
            assert {Event.FAIL, Event.CANCEL, Event.EXPIRE} <= set(moves), state
    final = {after for moves in TRANSITIONS.values() for after in moves.values() if not TRANSITIONS[after]}
    assert final == {State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED, State.DROPPED}


def test_cancel_asks_the_engine_once_and_wakes_waiters() -> None:
    """A won withdrawal cancels the future at once, also for `wait`; a second cancel only confirms."""
    asked = []
    future = RequestFuture()
    future.bind(lambda: asked.append(1) is None, lambda: True)
    assert future.cancel()
    assert future.cancel()
    assert len(asked) == 1
    assert wait([future], timeout=0).done == {future}
    with pytest.raises(CancelledError):
        future.result()


def test_cancel_that_comes_too_late_changes_nothing() -> None:
    """When the row has ended, the withdrawal loses and the result is delivered."""
    future = RequestFuture()
    future.bind(lambda: False, lambda: True)
    assert future.running()
    assert not future.cancel()
    future.deliver(3)
    assert not future.running()
    assert future.result() == 3
    assert not future.cancel()


def test_a_future_resolved_by_its_holder_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Callers who resolve our futures themselves get what they asked for, a line in the log, and harm nobody."""
    future = RequestFuture()
    future.set_result("theirs")
    future.deliver("ours")
    future.fail(LazyBatchError("ours"))
    assert future.result() == "theirs"
    assert len(caplog.records) == 2
    cancelled = RequestFuture()
    cancelled.bind(lambda: True, lambda: False)
    cancelled.set_result("theirs")
    assert not cancelled.cancel()


def test_callbacks_that_raise_stop_neither_each_other_nor_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """An Exception and even SystemExit in a callback are logged on the engine's own threads; the others still run."""
    called = []

    def rude(_: object) -> None:
        raise SystemExit(3)

    def wrong(_: object) -> None:
        raise ValueError("callback")

    future = RequestFuture(on_own_thread=lambda: True)
    future.add_done_callback(rude)
    future.add_done_callback(wrong)
    future.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR):
        future.deliver(1)
    assert called == [future]
    assert len(caplog.records) == 2


def test_a_callers_own_interrupt_reaches_the_caller() -> None:
    """On a thread that is not the engine's, what a callback raises beyond Exception is not swallowed."""
    future = RequestFuture(on_own_thread=lambda: False)
    future.set_result(1)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        future.add_done_callback(interrupt)


def test_waiting_on_an_own_thread_is_refused_unless_done() -> None:
    """`result` and `exception` on the engine's threads raise `SelfWait` while open, and answer once resolved."""
    here = threading.get_ident()
    future = RequestFuture(on_own_thread=lambda: threading.get_ident() == here)
    with pytest.raises(SelfWait):
        future.result()
    with pytest.raises(SelfWait):
        future.exception(timeout=1)
    future.deliver(5)
    assert future.result() == 5
    assert future.exception() is None
