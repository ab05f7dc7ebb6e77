"""Watching: observers can break nothing, and what went wrong is said whatever it is."""

from __future__ import annotations

import pytest

from lazybatch.core.request import Request
from lazybatch.core.task import Reason, Task
from lazybatch.engine.watch import Watch, engine_error, node_error
from lazybatch.errors import ExecutionError
from lazybatch.metrics import Meter, Observer

TASK = Task("m", 0, 1, 3, 3, (), None, Reason.CONTINUE)


class Rude(Observer):
    """Raises what it is given, one after the other."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def opened(self, now_ns: int, task: Task) -> None:
        """Raise."""
        raise self.errors.pop(0)


def test_what_observers_raise_is_counted_and_the_latest_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Also what is no ordinary exception; the others are told."""
    first, second, meter = ValueError("first"), SystemExit("second"), Meter()
    watch = Watch([Rude(first, second), meter])
    watch.opened(1, TASK)
    assert watch.last_error is first
    watch.opened(2, TASK)
    assert watch.last_error is second
    assert watch.errors == 2
    assert meter.of("m").sub_batches == 2
    assert "an observer failed" in caplog.text


def test_somebody_is_interested_or_nobody() -> None:
    """The driver asks before it collects what only observers want."""
    assert (Watch([Rude()]).arrivals, Watch([Rude()]).ends) == (False, False)
    assert Watch([Meter()]).ends

    class Arrivals(Observer):
        """Overrides one hook."""

        def arrived(self, now_ns: int, request: Request) -> None:
            """Nothing."""

    assert Watch([Arrivals()]).arrivals


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        """Ends the program."""
        raise SystemExit("no text")


def test_errors_say_what_was_raised_if_it_can_be_said() -> None:
    """In words and as the cause; an exception that cannot be printed is named by its type."""
    cause = ValueError("too small")
    error = engine_error("model 'm'", cause)
    assert str(error) == "model 'm': ValueError: too small"
    assert error.__cause__ is cause
    mute = Mute()
    error = node_error(TASK, "last", mute)
    assert str(error) == "model 'm', node 'last': Mute (it cannot be printed)"
    assert error.__cause__ is mute


def test_what_an_executor_said_is_not_said_again() -> None:
    """Its own error is passed on, an object for each row; without a result the row is told that there is none."""
    said = ExecutionError("all of it")
    error = node_error(TASK, "last", said)
    assert error is not said
    assert str(error) == "all of it"
    assert "no result for this row" in str(node_error(TASK, "last", 3))
