"""Entries: the engine's record of one accepted row, and the future its caller holds.

Owns: `State`, `Event`, `TRANSITIONS` (the life of a row as a table), `Entry`, `RequestFuture`.
Must not know: the scheduler, threads other than by the two callables a future is given.

An entry ends exactly once: whoever moves it into a final state, and nobody else, resolves its future. A future stays
"pending" for `concurrent.futures` all its life, so that it can be cancelled while its row is being executed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from enum import StrEnum
from functools import partial
from typing import Any

from lazybatch.core.request import Request
from lazybatch.engine.listening import Listener
from lazybatch.errors import InvariantError, SelfWait
from lazybatch.executors.base import Row

_log = logging.getLogger("lazybatch.engine")


class State(StrEnum):
    """Where a row is in its life."""

    WAITING = "waiting"
    """In the mailbox or the queue; takes a place of the queue's capacity."""
    RUNNING = "running"
    """In a sub-batch, running or parked."""
    RETRYING = "retrying"
    """Back in the queue after its sub-batch failed, to run alone; takes no place of the capacity."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DROPPED = "dropped"
    """Ended while it waited, because it could no longer make its deadline."""


# Looking a member up on its class costs as much as everything else in a test of an entry's state.
_WAITING, _RUNNING, _RETRYING = State.WAITING, State.RUNNING, State.RETRYING


class Event(StrEnum):
    """What can happen to a row."""

    START = "start"
    RETRY = "retry"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    DROP = "drop"


_ENDS = {Event.FAIL: State.FAILED, Event.CANCEL: State.CANCELLED, Event.EXPIRE: State.EXPIRED}

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.WAITING: {Event.START: State.RUNNING, Event.DROP: State.DROPPED, **_ENDS},
    State.RETRYING: {Event.START: State.RUNNING, **_ENDS},
    State.RUNNING: {Event.RETRY: State.RETRYING, Event.COMPLETE: State.COMPLETED, **_ENDS},
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
    State.EXPIRED: {},
    State.DROPPED: {},
}
"""Final states have no way out. An event that comes after the end lost a race, which is ordinary, and changes nothing;
any other move that is not in the table is a bug."""


class RequestFuture(Future[Any]):
    """The future of one row.

    `cancel` works while the row waits and while it runs: the future is cancelled at once, and the row leaves its
    sub-batch at the next node boundary. Callbacks run on the thread that resolves the future, usually one of the
    engine's own: keep them short. There `result` and `exception` raise `SelfWait` instead of waiting for themselves;
    `concurrent.futures.wait` and `as_completed` know nothing of it and would wait for ever.

    on_own_thread: whether that is the thread that asks; raises where waiting would be in vain for another reason.
    left_behind: whether this is a copy in a forked child that nobody was going to resolve, and which has failed.
    """

    def __init__(self, on_own_thread: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.left_behind = False
        self._withdraw: Callable[[], bool] | None = None
        self._started: Callable[[], bool] | None = None
        self._on_own_thread = on_own_thread

    def bind(self, withdraw: Callable[[], bool], started: Callable[[], bool]) -> None:
        """Attach the row: how it is withdrawn (True if it had not ended before), and whether it is in a sub-batch."""
        self._withdraw = withdraw
        self._started = started

    def cancel(self) -> bool:
        """Withdraw the row; whether the future is cancelled now."""
        withdraw = self._withdraw
        if withdraw is not None and withdraw():
            self._settle(self._cancel_now)
        return self.cancelled()

    def _cancel_now(self) -> None:
        if super().cancel():
            self.set_running_or_notify_cancel()

    def running(self) -> bool:
        """Whether the row is in a sub-batch now; it can still be cancelled."""
        started = self._started
        return started is not None and not self.done() and started()

    def result(self, timeout: float | None = None) -> Any:
        """See `concurrent.futures.Future.result`; raises `SelfWait` on the batcher's own threads."""
        self.refuse_self_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `concurrent.futures.Future.exception`; raises `SelfWait` on the batcher's own threads."""
        self.refuse_self_wait()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """See `concurrent.futures.Future.add_done_callback`; what a callback raises is logged and goes no further."""
        super().add_done_callback(partial(self._call_back, fn))

    def _call_back(self, fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
        try:
            fn(future)
        except BaseException as error:
            # An Exception is logged by concurrent.futures, which goes on. SystemExit and the like would keep the other
            # callbacks from being called, and end the engine thread.
            if isinstance(error, Exception) or self._on_own_thread is None or not self._on_own_thread():
                raise
            _log.error("exception calling callback for %r", future, exc_info=True)

    def refuse_self_wait(self) -> None:
        """Raise `SelfWait` on one of the batcher's own threads, unless the result is there."""
        on_own_thread = self._on_own_thread
        if on_own_thread is not None and not self.done() and on_own_thread():
            raise SelfWait("waiting for a result on one of the batcher's own threads would wait for ever")

    def leave_behind(self, error: BaseException) -> None:
        """In a forked child: nobody will resolve this future there, so it fails with this error, unless it is done.

        Whoever waits for it, or is to be called back, belongs to the parent, and so does whoever holds its lock.
        """
        if self._state in ("PENDING", "RUNNING"):  # asked without the lock
            super().__init__()
            self.left_behind = True
            self.fail(error)

    def _settle(self, resolve: Callable[..., object], *arguments: Any) -> None:
        try:
            resolve(*arguments)
        except InvalidStateError:
            _log.error("%r was resolved from outside", self, exc_info=True)
        finally:
            # A future may be kept for long; the engine and its models must not be kept with it.
            self._withdraw = self._started = self._on_own_thread = None

    def deliver(self, result: Any) -> None:
        """Resolve with a result; for whoever ended the entry."""
        self._settle(self.set_result, result)

    def fail(self, error: BaseException) -> None:
        """Resolve with an exception; for whoever ended the entry."""
        self._settle(self.set_exception, error)


class Entry:
    """One accepted row. `state` changes only under the ledger's lock; `row` belongs to the engine thread.

    limit_ns: hard limit, None for none. first_dispatch_ns: when its first node first started, None before that.
    listener: who hears its steps, None for nobody.
    """

    __slots__ = ("__weakref__", "first_dispatch_ns", "future", "limit_ns", "listener", "request", "row", "state")

    def __init__(self, request: Request, row: Row, limit_ns: int | None, future: RequestFuture) -> None:
        self.request = request
        self.row: Row | None = row
        self.limit_ns = limit_ns
        self.future = future
        self.state = State.WAITING
        self.first_dispatch_ns: int | None = None
        self.listener: Listener | None = None

    @property
    def ended(self) -> bool:
        """Whether the row is in a final state."""
        return not TRANSITIONS[self.state]

    @property
    def running(self) -> bool:
        """Whether the row is in a sub-batch."""
        return self.state is _RUNNING

    @property
    def waiting(self) -> bool:
        """Whether the row waits for its first node, or to be retried."""
        return self.state is _WAITING or self.state is _RETRYING

    def move(self, event: Event) -> bool:
        """Apply an event; False, and no change, when the row had already ended. Raises `InvariantError` if illegal."""
        moves = TRANSITIONS[self.state]
        if not moves:
            return False
        if event not in moves:
            raise InvariantError(f"request {self.request.id} is {self.state.value}: {event.value!r} cannot happen")
        self.state = moves[event]
        return True
