"""Answers: what futures are resolved with.

Owns: `Answer` (one row), `Finished` (the rows of a sub-batch whose last node ran), `Ended` (a row that failed, was
cancelled or expired).
Must not know: which thread resolves futures, and when.

Both are made on the engine thread while the processor waits for the next node, so they keep what they were given;
what it means for each row is worked out by whoever needs it.
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
            result = self.results.get(entry.request.id, _MISSING)
            failed = result is _MISSING or isinstance(result, BaseException)
            yield entry, Event.FAIL if failed else Event.COMPLETE

    def answers(self) -> Iterable[Answer]:
        """What each row is told."""
        for entry, event in self.ends():
            result = self.results.get(entry.request.id, _MISSING)
            if event is Event.COMPLETE:
                yield Answer(entry, State.COMPLETED, result, None)
            else:
                yield Answer(entry, State.FAILED, None, node_error(self.task, self.node, result))


class Ended(NamedTuple):
    """A row that was ended with an error; it is in its final state already."""

    entry: Entry
    error: BaseException

    def answers(self) -> Iterable[Answer]:
        """What the row is told."""
        yield Answer(self.entry, self.entry.state, None, self.error)


Answers = Finished | Ended

_MISSING = object()
