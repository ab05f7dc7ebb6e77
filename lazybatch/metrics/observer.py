"""The hooks both drivers call.

Owns: `Observer` (the hooks), `Observers` (the fan-out a driver calls), `Outcome`.
Must not know: the scheduler, the clock, threads, executors, tensors; what observers make of what they see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Task


class Outcome(StrEnum):
    """How a request ended. Every request that arrived ends in exactly one of these."""

    COMPLETED = "completed"
    """It has a result (also when it came after the deadline)."""
    FAILED = "failed"
    """A node or the callable raised for this row."""
    CANCELLED = "cancelled"
    """The caller withdrew it, or shutdown did."""
    EXPIRED = "expired"
    """Its time limit, or the queue timeout of its priority level, passed first."""
    DROPPED = "dropped"
    """It could no longer make its deadline while it waited, and its model drops such rows."""
    REJECTED = "rejected"
    """The queue was full: it was never admitted."""


class Observer:
    """Base class of everything that watches a run; override the hooks you need.

    Contract. Hooks run on the driver's thread, between two nodes, one at a time: they need no lock and must be quick
    (microseconds; put I/O behind a buffer), because every request in flight waits for them. A hook must not call
    back into the driver. An exception in a hook is counted by `Observers` and stops neither the other observers nor
    the run. Arguments are immutable and may be kept.

    Order for one request: `arrived`, then `opened` (in ``task.opened``), any number of `dispatched`, then `exited`.
    Where a loop comes first in a graph, newcomers may join a sub-batch there: `opened` with ``task.joined`` set.
    A request that ends in the queue is never opened. A rejected one is reported by `exited` alone. A request whose
    batch failed and which is run again alone is opened a second time.
    """

    def arrived(self, now_ns: int, request: Request) -> None:
        """A request was admitted to the queue. ``request.arrival_ns`` is when its caller submitted it (<= now)."""

    def opened(self, now_ns: int, task: Task) -> None:
        """A sub-batch begins with the requests ``task.opened``; its first node is about to run.

        Where ``task.joined`` is set they join sub-batch ``task.sub_batch`` instead, and no `merged` follows.
        """

    def preempted(self, now_ns: int, task: Task) -> None:
        """Sub-batch ``task.preempted`` was parked for ``task.sub_batch``, for the reason ``task.reason``."""

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """One node ran on one sub-batch from start to end; called after it ended. ``failed``: it raised."""

    def refused(self, now_ns: int, task: Task) -> None:
        """The newcomers ``task.opened`` could not be gathered: they wait again, or end, and no node ran.

        Said instead of `dispatched`; the sub-batch they were to join goes on without them.
        """

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """One iteration of a loop is over: after `dispatched` of its last node, before all that follows from it.

        completion: who leaves the loop now, finished or split off as a sub-batch of their own; who was truncated. Where
        neither is said of anybody, all stay, or all leave together for the nodes behind the loop.
        """

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Two sub-batches standing at the same node became one: ``merge.source`` lives on in ``merge.target``."""

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """A request ended. ``first_dispatch_ns``: when its first node started, None if it never left the queue."""


class Observers:
    """The fan-out a driver calls: the same hooks, passed on to those observers that override them.

    ``errors`` counts exceptions raised by hooks, ``last_error`` keeps the latest of them; neither stops the run.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        observers = tuple(observers)
        self.errors = 0
        self.last_error: BaseException | None = None
        self._count = len(observers)
        self._arrived = _overridden(observers, "arrived")
        self._opened = _overridden(observers, "opened")
        self._preempted = _overridden(observers, "preempted")
        self._dispatched = _overridden(observers, "dispatched")
        self._refused = _overridden(observers, "refused")
        self._stepped = _overridden(observers, "stepped")
        self._merged = _overridden(observers, "merged")
        self._exited = _overridden(observers, "exited")

    def __len__(self) -> int:
        return self._count

    def _call(self, hooks: Sequence[Callable[..., None]], *arguments: Any) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except Exception as error:
                self.errors += 1
                self.last_error = error

    def arrived(self, now_ns: int, request: Request) -> None:
        """See `Observer.arrived`."""
        self._call(self._arrived, now_ns, request)

    def opened(self, now_ns: int, task: Task) -> None:
        """See `Observer.opened`."""
        self._call(self._opened, now_ns, task)

    def preempted(self, now_ns: int, task: Task) -> None:
        """See `Observer.preempted`."""
        self._call(self._preempted, now_ns, task)

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`."""
        self._call(self._dispatched, start_ns, end_ns, task, failed)

    def refused(self, now_ns: int, task: Task) -> None:
        """See `Observer.refused`."""
        self._call(self._refused, now_ns, task)

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """See `Observer.stepped`."""
        self._call(self._stepped, now_ns, task, completion)

    def merged(self, now_ns: int, merge: Merge) -> None:
        """See `Observer.merged`."""
        self._call(self._merged, now_ns, merge)

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """See `Observer.exited`."""
        self._call(self._exited, now_ns, request, outcome, first_dispatch_ns)


def _overridden(observers: Iterable[Observer], hook: str) -> tuple[Callable[..., None], ...]:
    return tuple(getattr(one, hook) for one in observers if getattr(type(one), hook) is not getattr(Observer, hook))
