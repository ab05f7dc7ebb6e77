"""Answers: what futures are resolved with.

Owns: `Answer` (one row), `Finished` (the rows of a sub-batch whose last node ran), `Ended` (a row that failed, was
cancelled or expired).
Must not know: which thread resolves futures, and when.

Both are made on the engine thread while the processor waits for the next node, so they keep what they were given;
what it means for each row is worked out by whoever needs it, row by row, so that one row's trouble stays its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lazybatch.core.task import Task
from lazybatch.engine.entry import Entry, Event, State
from lazybatch.engine.watch import node_error


class Answer(NamedTuple):
    """What a row's future is resolved with: a result, or the error where there is one.

    state: the final state the engine thread ended the row in. When the books say another one, somebody was faster.
    """

    entry: Entry
    state: State
    result: Any
    error: BaseException | None


class Finished(NamedTuple):
    """Rows whose last node, ``node``, ran in ``task``, and what the executor returned for them by request id.

    A row without result, or with an exception for a result, has failed.
    """

    task: Task
    node: str
    entries: Sequence[Entry]
    results: Mapping[int, Any]

    def ends(self) -> Iterable[tuple[Entry, Event]]:
        """How each row ends."""
        for entry in self.entries:
            yield entry, Event.FAIL if _failed(self._result(entry)) else Event.COMPLETE

    def answer(self, entry: Entry) -> Answer:
        """What a row is told."""
        result = self._result(entry)
        if _failed(result):
            return Answer(entry, State.FAILED, None, node_error(self.task, self.node, result))
        return Answer(entry, State.COMPLETED, result, None)

    def _result(self, entry: Entry) -> Any:
        return self.results.get(entry.request.id, _MISSING)


class Ended(NamedTuple):
    """A row that was ended with an error; it is in its final state already."""

    entry: Entry
    error: BaseException

    @property
    def entries(self) -> Sequence[Entry]:
        """The one row."""
        return (self.entry,)

    def answer(self, entry: Entry) -> Answer:
        """What the row is told."""
        return Answer(entry, entry.state, None, self.error)


Answers = Finished | Ended

_MISSING = object()


def _failed(result: Any) -> bool:
    # By its type: a result may be a proxy, whose ``__class__`` is computed and may raise.
    return result is _MISSING or issubclass(type(result), BaseException)
