"""Clocks: live ones wait, stepped ones jump."""

from __future__ import annotations

import time

import pytest

from lazybatch.engine.clock import MonotonicClock, SteppedClock
from lazybatch.engine.mailbox import Close, Mailbox
from lazybatch.errors import InvalidInput


def test_the_live_clock_reads_like_time_monotonic() -> None:
    """Deadlines are given as readings of `time.monotonic()`, so both must be one clock."""
    clock = MonotonicClock()
    before = time.monotonic()
    reading = clock.now_ns() / 1e9
    assert before <= reading <= time.monotonic()


def test_the_live_clock_waits_for_time_or_message() -> None:
    """A passed time is not waited for, a message ends any wait, and a time ends a wait without message."""
    clock, mailbox = MonotonicClock(), Mailbox()
    clock.wait(mailbox, clock.now_ns() - 1)
    until_ns = clock.now_ns() + 1_000_000
    clock.wait(mailbox, until_ns)
    assert clock.now_ns() >= until_ns
    mailbox.post(Close(True))
    clock.wait(mailbox, None)
    assert len(mailbox) == 1


def test_the_stepped_clock_stands_still_until_told() -> None:
    """It moves by `advance`, jumps when waited for, never goes back, and does not pass over a message."""
    clock, mailbox = SteppedClock(5), Mailbox()
    clock.advance(10)
    clock.advance_to(3)
    assert clock.now_ns() == 15
    clock.wait(mailbox, 40)
    clock.wait(mailbox, None)
    assert clock.now_ns() == 40
    mailbox.post(Close(True))
    clock.wait(mailbox, 90)
    assert clock.now_ns() == 40
    with pytest.raises(InvalidInput, match="-1"):
        clock.advance(-1)
