"""The mailbox: the only way into the engine thread.

Owns: `Mailbox` and the messages that clients, timers and workers post.
Must not know: the scheduler; what a message leads to.

Messages are handled in the order they were posted, so a withdrawal posted before an arrival frees its place first.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from lazybatch.core.request import Request
from lazybatch.core.task import Task
from lazybatch.engine.entry import Entry
from lazybatch.metrics import Outcome


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of one call, admitted together."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A row that has ended where it was (cancelled, expired, or strayed): it must leave queue or sub-batch."""

    entry: Entry
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows that were not admitted; posted only where observers want to know."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A worker finished a task. results: by request id after the last node. error: what was raised, if anything.

    generation: the engine's count of scheduler resets when the task was handed out.
    """

    task: Task
    generation: int
    start_ns: int
    end_ns: int
    results: dict[int, Any] | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Close:
    """No further row will come. drain: run what was accepted; else end it at the next node boundary."""

    drain: bool


Message = Arrived | Withdrawn | Refused | Ran | Close


class Mailbox:
    """A queue of messages with one reader.

    `post` never blocks and may be called from anywhere, finalizers and signal handlers included: `SimpleQueue.put` is
    re-entrant, so a garbage collection in the middle of a post may post as well.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._ahead: Message | None = None
        self.post = self._queue.put

    def __len__(self) -> int:
        """Messages that `next` would return without waiting, to the reader's knowledge."""
        return self._queue.qsize() + (self._ahead is not None)

    def next(self) -> Message:
        """The oldest message; call only when there is one."""
        message, self._ahead = self._ahead, None
        return self._queue.get() if message is None else message

    def wait(self, timeout_s: float | None) -> None:
        """Return once a message is there, or after the timeout in seconds (None: as long as it takes)."""
        if self._ahead is None:
            with suppress(Empty):
                self._ahead = self._queue.get(timeout=timeout_s)
