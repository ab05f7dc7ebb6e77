"""Streams: the steps of a row in a loop, one by one as they are made.

Owns: `Stream` and its asyncio twin `AsyncStream`.
Must not know: the engine, models; how a row is handed in.

Steps come from one of the engine's threads, which only puts them down: a consumer that is slow, or never comes back,
holds up nobody. What piles up is at most what the row collects on its way. What the engine holds on to is the inbox and
not the stream, so a stream that nobody keeps any more is closed, and its row leaves at the next node boundary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from lazybatch.engine.entry import RequestFuture

Step = dict[str, Any]
Sink = Callable[[Mapping[str, Any]], object]
Submit = Callable[[Sink], RequestFuture]
"""Hands the row in, given where its steps go."""


class _Row:
    """The row behind a stream: its future, and whether anybody still wants to hear of it.

    future: yields the row's result, as of `LazyBatcher.submit`.
    """

    future: RequestFuture
    _closed = False
    _over = False

    def close(self) -> None:
        """Stop: no further step comes, and the row is withdrawn unless it is done. Idempotent, from any thread."""
        self._closed = True
        self.future.cancel()

    def __del__(self) -> None:
        if hasattr(self, "future"):
            self.close()

    def _error(self) -> BaseException | None:
        """Called after the last step: what ended the row, None for its result or when the stream was closed."""
        self._over = True
        if self._closed:
            return None
        return CancelledError() if self.future.cancelled() else self.future.exception()


class Stream(_Row, Iterator[Step]):
    """The steps of one row: per iteration, what it collected, arrays by name; waits for the next one.

    After the last step the iterator ends, and ``future.result()`` is the row's result; or the error the row ended with
    is raised. A row that is run again because a mate of its batch failed repeats no step; where it makes another one
    than was heard in its place, as a model with random numbers may, the stream ends there with an `ExecutionError`.
    For one thread at a time: of several that read at once each gets some of the steps, and all of them the end.

    Leaving a ``with`` block, `close`, or letting go of the stream withdraws the row. Raises `SelfWait` where it would
    have to wait on one of the batcher's own threads, and `ShuttingDown` in a forked child, to which no further step
    comes.
    """

    def __init__(self, submit: Submit) -> None:
        self._arrived: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        put = self._arrived.put
        self.future = submit(put)
        self.future.add_done_callback(lambda _: put(None))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        if self._closed or self._over:
            raise StopIteration
        step: Mapping[str, Any] | None = None
        empty = self._arrived.empty()
        if empty:
            self.future.refuse_self_wait()
        if not (empty and self.future.left_behind):
            step = self._arrived.get()
            if step is None:
                self._arrived.put(None)  # for whoever else waits
        if step is not None and not self._closed:
            return dict(step)
        error = self._error()
        if error is not None:
            raise error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class _Inbox:
    """Steps that have arrived, None behind the last one; and whoever waits for the next."""

    def __init__(self) -> None:
        self.steps: deque[Mapping[str, Any] | None] = deque()
        self.waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, step: Mapping[str, Any] | None) -> None:
        """From any thread."""
        self.steps.append(step)
        waiting = self.waiting
        if waiting is not None:
            loop, waiter = waiting
            with suppress(RuntimeError):  # the event loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, waiter)

    async def next(self) -> Mapping[str, Any] | None:
        """The next one; for one task at a time."""
        while not self.steps:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.waiting = (loop, waiter)
            try:
                if not self.steps:  # from here on whoever puts one sees that somebody waits
                    await waiter
            finally:
                self.waiting = None
        return self.steps.popleft()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncStream(_Row, AsyncIterator[Step]):
    """`Stream` for asyncio, from any event loop, one task at a time.

    Cancelling the task that waits for a step withdraws the row, as leaving an ``async with`` block does, `aclose`, or
    letting go of the stream.
    """

    def __init__(self, submit: Submit) -> None:
        inbox = self._inbox = _Inbox()
        self.future = submit(inbox.put)
        self.future.add_done_callback(lambda _: inbox.put(None))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        if self._closed or self._over:
            raise StopAsyncIteration
        self.future.refuse_self_wait()
        step: Mapping[str, Any] | None = None
        try:
            if self._inbox.steps or not self.future.left_behind:
                step = await self._inbox.next()
        except asyncio.CancelledError:
            self.close()
            raise
        if step is not None and not self._closed:
            return dict(step)
        error = self._error()
        if error is not None:
            raise asyncio.CancelledError if isinstance(error, CancelledError) else error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """See `close`; it waits for nothing."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
