"""Watching the engine, and saying what went wrong in it.

Owns: `Watch` (observers that can break nothing), and the errors rows end with when a node or the scheduler failed.
Must not know: what the engine does about either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lazybatch.core.task import Task
from lazybatch.engine.entry import Entry
from lazybatch.errors import ExecutionError
from lazybatch.metrics import Observers, Outcome
from lazybatch.words import said

_log = logging.getLogger("lazybatch.engine")


class Watch(Observers):
    """Observers whose hooks may raise anything, SystemExit included: it is logged, and everyone else goes on."""

    def _call(self, hooks: Sequence[Callable[..., None]], *arguments: Any) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except BaseException as error:
                self.errors += 1
                self.last_error = error
                _log.error("an observer failed in %r", hook, exc_info=True)

    @property
    def arrivals(self) -> bool:
        """Whether anybody wants to know of arrivals."""
        return bool(self._arrived)

    @property
    def ends(self) -> bool:
        """Whether anybody wants to know how rows end."""
        return bool(self._exited)

    def ended(self, entry: Entry, now_ns: int, outcome: Outcome) -> None:
        """A row has ended."""
        self.exited(now_ns, entry.request, outcome, entry.first_dispatch_ns)


def node_error(task: Task, node: str, cause: object) -> ExecutionError:
    """Why a row has no result: what its node raised, or that the executor gave none. One object per row."""
    if not isinstance(cause, BaseException):
        return ExecutionError(f"model {task.model!r}: the executor returned no result for this row")
    if isinstance(cause, ExecutionError):  # the executor has said it all
        error = ExecutionError(*cause.args)
        error.__cause__ = cause.__cause__
        return error
    return engine_error(f"model {task.model!r}, node {node!r}", cause)


def engine_error(what: str, cause: BaseException) -> ExecutionError:
    """An error with its cause, in words and as ``__cause__``."""
    error = ExecutionError(f"{what}: {said(cause)}")
    error.__cause__ = cause
    return error
