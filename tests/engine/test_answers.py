"""Answers: what each row is told, worked out from what the executor returned."""

from __future__ import annotations

from lazybatch.core.request import Request
from lazybatch.core.task import Reason, Task
from lazybatch.engine.answers import Ended, Finished
from lazybatch.engine.entry import Entry, Event, RequestFuture, State
from lazybatch.errors import DeadlineExceeded, ExecutionError
from lazybatch.executors.base import Row

TASK = Task("m", 0, 1, 3, 3, (), None, Reason.CONTINUE)


def entry(id: int) -> Entry:
    """A row."""
    return Entry(Request(id, "m", 10), Row(1), None, RequestFuture())


def test_results_holes_and_exceptions_are_told_apart() -> None:
    """A row with a result has completed, None included; one without, or with an exception, fails with the reason."""
    entries = [entry(id) for id in range(3)]
    finished = Finished(TASK, "last", entries, {0: None, 2: KeyError("row")})
    assert list(finished.ends()) == list(zip(entries, (Event.COMPLETE, Event.FAIL, Event.FAIL), strict=True))
    first, second, third = map(finished.answer, entries)
    assert first == (entries[0], State.COMPLETED, None, None)
    assert (second.state, third.state) == (State.FAILED, State.FAILED)
    assert isinstance(second.error, ExecutionError)
    assert "no result" in str(second.error)
    assert isinstance(third.error, ExecutionError)
    assert "node 'last'" in str(third.error)
    assert isinstance(third.error.__cause__, KeyError)


def test_an_ended_row_is_told_why_in_the_state_it_is_in() -> None:
    """The state is the entry's own, since whoever made the answer has moved it."""
    one = entry(0)
    one.move(Event.EXPIRE)
    error = DeadlineExceeded("late")
    ended = Ended(one, error)
    assert [ended.answer(entry) for entry in ended.entries] == [(one, State.EXPIRED, None, error)]
