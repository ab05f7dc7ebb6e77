"""Clocks: where the engine gets `now` from, and how it waits.

Owns: `Clock`, `MonotonicClock` (live), `SteppedClock` (moves only when told).
Must not know: the scheduler, requests.
"""

from __future__ import annotations

import time
from typing import Protocol

from lazybatch.engine.mailbox import Mailbox
from lazybatch.errors import InvalidInput


class Clock(Protocol):
    """Integer nanoseconds, and a wait that a message ends."""

    def now_ns(self) -> int:
        """The current reading; never goes back."""

    def wait(self, mailbox: Mailbox, until_ns: int | None) -> None:
        """Return once a message is there, or the clock reads at least ``until_ns`` (None: only for a message)."""


class MonotonicClock:
    """The clock of `time.monotonic()`."""

    now_ns = staticmethod(time.monotonic_ns)

    def wait(self, mailbox: Mailbox, until_ns: int | None) -> None:
        """Sleep until a message comes or ``until_ns`` has passed."""
        if until_ns is None:
            mailbox.wait(None)
            return
        left_ns = until_ns - self.now_ns()
        if left_ns > 0:
            # The operating system's wait ends at or after the timeout; bounded because the platform's is.
            mailbox.wait(min(left_ns / 1e9, 86_400.0))


class SteppedClock:
    """A clock that stands still until `advance`; for replaying a trace without a thread."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The current reading."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass. Raises `InvalidInput` for a negative duration."""
        if duration_ns < 0:
            raise InvalidInput(f"a clock cannot go back, asked for {duration_ns} ns")
        self._now_ns += duration_ns

    def advance_to(self, time_ns: int) -> None:
        """Let time pass until the clock reads at least ``time_ns``."""
        self._now_ns = max(self._now_ns, time_ns)

    def wait(self, mailbox: Mailbox, until_ns: int | None) -> None:
        """Jump to ``until_ns`` unless a message is there; without either there is nothing to wait for."""
        if until_ns is not None and not len(mailbox):
            self.advance_to(until_ns)
