"""Open-loop load: requests come when the schedule says, whether or not the server keeps up.

Owns: `Offer`, `Call`, `offer`: submitting at given times and noting how each request ended.
Must not know: what the requests mean, the policy, the models' files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from lazybatch.api import LazyBatcher
from lazybatch.errors import LazyBatchError, Overloaded


@dataclass(frozen=True, slots=True)
class Offer:
    """One request of a schedule: when it comes (ns from the start), for which model, with which row."""

    at_ns: int
    model: str
    row: Any


@dataclass(slots=True)
class Call:
    """What became of an offer. submit_ns, done_ns: monotonic clock; done_ns is None until it ended.

    lag_ns: how much later than scheduled it was submitted. error: the exception it ended with, if it did.
    """

    offer: Offer
    submit_ns: int
    lag_ns: int
    done_ns: int | None = None
    result: Any = None
    error: BaseException | None = None

    @property
    def latency_ns(self) -> int | None:
        """From the caller's submit to its result; None without one."""
        return None if self.error is not None or self.done_ns is None else self.done_ns - self.submit_ns

    @property
    def rejected(self) -> bool:
        """Whether the queue had no room for it."""
        return isinstance(self.error, Overloaded)


def offer(batcher: LazyBatcher, schedule: Sequence[Offer], *, timeout_s: float = 120.0) -> list[Call]:
    """Submit a schedule, in order of time, and wait until every request has ended.

    Raises `TimeoutError` when some have not, ``timeout_s`` after the last submit.
    """
    calls: list[Call] = []
    left = threading.Semaphore(0)
    start_ns = time.perf_counter_ns()
    for one in schedule:
        wait_ns = start_ns + one.at_ns - time.perf_counter_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        submit_ns = time.perf_counter_ns()
        call = Call(one, submit_ns, submit_ns - start_ns - one.at_ns)
        calls.append(call)
        try:
            future = batcher.submit(one.row, model=one.model)
        except LazyBatchError as error:
            call.error, call.done_ns = error, time.perf_counter_ns()
            left.release()
            continue
        future.add_done_callback(partial(_note, call, left))
    until_s = time.monotonic() + timeout_s
    for _ in calls:
        if not left.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise TimeoutError(f"some of {len(calls)} requests had not ended after {timeout_s:.0f} s")
    return calls


def _note(call: Call, left: threading.Semaphore, ended: Future[Any]) -> None:
    """Runs on one of the engine's threads: notes the end and leaves."""
    call.done_ns = time.perf_counter_ns()
    if ended.cancelled():
        call.error = LazyBatchError("cancelled")
    else:
        call.error = ended.exception()
        if call.error is None:
            call.result = ended.result()
    left.release()
