"""The inference queue: requests that wait for their first node.

Owns: `InfQ`, a bounded queue in rows, ordered by priority with ageing, grouped by signature; `PriorityLevel`.
Must not know: sub-batches, policies, latencies.

Order: the request of the highest *effective level* comes first, then the oldest. The effective level is the request's
priority plus one for every `ageing_ns` it has waited, so nobody starves. Rows are taken for one sub-batch at a time,
all of one signature: that of the first request, and in the same order.

A level may limit the time its requests wait here: past it they are rejected, or demoted below every listed level.
Where late rows are dropped, a request is *hopeless* from the moment at which even a run alone would end after its
deadline. Rows that are being retried alone keep their place by arrival and are exempt from capacity, timeouts and
dropping.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge as merge_sorted
from itertools import islice
from typing import Literal

from lazybatch.core.deadlines import DeadlineOrder
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.errors import InvalidInput, InvariantError, Overloaded


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """How long requests of one priority may wait in the queue, and what happens then. None: as long as it takes."""

    queue_timeout_ns: int | None = None
    on_timeout: Literal["reject", "demote"] = "reject"

    def __post_init__(self) -> None:
        if self.queue_timeout_ns is not None and self.queue_timeout_ns <= 0:
            raise InvalidInput(f"queue timeout must be positive, got {self.queue_timeout_ns} ns")
        if self.on_timeout not in ("reject", "demote"):
            raise InvalidInput(f"on_timeout must be 'reject' or 'demote', got {self.on_timeout!r}")


@dataclass(frozen=True, slots=True)
class Alone:
    """The signature of a row that must run without mates: equal to no other row's."""

    request_id: int


def _arrival(request: Request) -> tuple[int, int]:
    return (request.arrival_ns, request.id)


class InfQ:
    """A bounded queue of requests of one model.

    alone_ns: how long a row takes alone, for the deadlines at which it is hopeless; None: late rows are kept.
    """

    __slots__ = (
        "_ageing_ns",
        "_alone_ns",
        "_capacity",
        "_deadlines",
        "_demoted_level",
        "_groups",
        "_levels",
        "_live",
        "_retried",
        "_sole",
        "changes",
        "due_ns",
        "least_sla_ns",
    )

    def __init__(
        self,
        capacity: int,
        *,
        levels: Mapping[int, PriorityLevel] | None = None,
        ageing_ns: int | None = None,
        alone_ns: int | None = None,
    ) -> None:
        if capacity < 1:
            raise InvalidInput(f"queue capacity must be at least 1 row, got {capacity}")
        if ageing_ns is not None and ageing_ns <= 0:
            raise InvalidInput(f"ageing must be a positive time, got {ageing_ns} ns")
        self._capacity = capacity
        self._levels = dict(levels or {})
        self._ageing_ns = ageing_ns
        self._demoted_level = min(0, *self._levels, 0) - 1
        self._live: dict[int, Request] = {}
        self._retried = 0
        self._alone_ns = alone_ns
        self._deadlines = DeadlineOrder(self._live)
        self.due_ns = UNBOUNDED_NS
        """Before this time neither `expire` nor `drop` has anything to do."""
        self.least_sla_ns = UNBOUNDED_NS
        """No waiting row's deadline is closer to its arrival."""
        # (level, signature) -> its requests in order of arrival; no empty groups.
        self._groups: dict[tuple[int, Hashable], deque[Request]] = {}
        self._sole: deque[Request] | None = None  # the only group, where there is but one
        self.changes = 0
        """Goes up whenever a row comes, goes or changes its place."""

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live.values())

    @property
    def uniform(self) -> bool:
        """Whether all rows are of one level and signature, to the queue's knowledge."""
        return self._sole is not None

    @property
    def capacity(self) -> int:
        """Rows that may wait."""
        return self._capacity

    def push(self, request: Request) -> None:
        """Queue one row. Raises `Overloaded` when full; nothing changes then."""
        if len(self._live) - self._retried >= self._capacity:
            raise Overloaded(f"model {request.model!r}: the queue holds its maximum of {self._capacity} rows")
        self._append(request)
        if self._alone_ns is not None:
            self._deadlines.add(request)
            self.due_ns = min(self.due_ns, request.deadline_ns - self._alone_ns + 1)
        if self._levels and (end_ns := self._timeout_ns(request)) is not None:
            self.due_ns = min(self.due_ns, end_ns)

    def requeue_alone(self, request: Request) -> None:
        """Put a row back that must now run without mates. Never refused: it was admitted before."""
        self._append(replace(request, signature=Alone(request.id)))
        self._retried += 1

    def _append(self, request: Request) -> None:
        sla_ns = request.deadline_ns - request.arrival_ns
        if sla_ns < self.least_sla_ns or not self._live:
            self.least_sla_ns = sla_ns
        self.changes += 1
        self._live[request.id] = request
        key = (request.priority, request.signature)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = deque((request,))
            self._regroup()
        elif group[-1].arrival_ns < request.arrival_ns or _arrival(group[-1]) < _arrival(request):
            group.append(request)
        else:  # demoted, or stamped by its caller's thread before a request that was posted earlier
            insort(group, request, key=_arrival)

    def _regroup(self) -> None:
        """A group has been added or removed."""
        self._sole = next(iter(self._groups.values())) if len(self._groups) == 1 else None

    def _fronts(self) -> Iterator[Request]:
        return (group[0] for group in self._groups.values())

    def level(self, request: Request, now: int) -> int:
        """Its priority, raised by ageing; also of one that has left the queue and is in flight."""
        if self._ageing_ns is None:
            return request.priority
        return request.priority + max(0, now - request.arrival_ns) // self._ageing_ns

    def _urgency(self, request: Request, now: int) -> tuple[int, int, int]:
        """Sort key: smaller is more urgent."""
        return (-self.level(request, now), request.arrival_ns, request.id)

    def urgency(self, now: int) -> tuple[int, int, int] | None:
        """Sort key of the first request, to compare queues of several models; None when empty."""
        head = self.head(now)
        if head is None or self._ageing_ns is not None:
            return None if head is None else self._urgency(head, now)
        return (-head.priority, head.arrival_ns, head.id)

    def head(self, now: int) -> Request | None:
        """The request that comes first; None when empty."""
        sole = self._sole
        if sole is not None:
            return sole[0]
        return min(self._fronts(), key=lambda request: self._urgency(request, now), default=None)

    def _compatible(self, now: int) -> Iterator[Request]:
        """Live requests of the head's signature, in the order they would be taken."""
        head = self.head(now)
        if head is None:
            return
        if self._sole is not None:
            yield from self._sole
        else:
            groups = [group for (_, signature), group in self._groups.items() if signature == head.signature]
            yield from merge_sorted(*groups, key=lambda request: self._urgency(request, now))

    def peek(self, now: int, rows: int, size_budget: int | None = None, skip: int = 0) -> list[Request]:
        """The rows a `take` with the same arguments would remove: at most ``rows`` of the head's signature.

        size_budget caps the sum of their sizes; the first row is always included. skip: rows to pass over first.
        """
        sole = self._sole
        if size_budget is None and sole is not None:
            return list(islice(sole, skip, skip + rows))
        found: list[Request] = []
        total = 0
        for request in islice(self._compatible(now), skip, None):
            total += request.size
            if len(found) == rows or (found and size_budget is not None and total > size_budget):
                break
            found.append(request)
        return found

    def take(self, now: int, rows: int, size_budget: int | None = None, skip: int = 0) -> list[Request]:
        """Remove and return rows of one signature; those passed over keep their places. See `peek`."""
        taken = self.peek(now, rows, size_budget, skip)
        group = self._sole
        if group is None or not taken:
            for request in taken:
                self._forget(request)
            return taken
        self.changes += 1  # the ordinary case, and a batch waits for it: they follow one another
        if skip:
            group.rotate(-skip)
        for request in taken:
            group.popleft()
            del self._live[request.id]
        if skip:
            group.rotate(skip)
        if not group:
            self._groups.clear()
            self._sole = None
        if type(taken[0].signature) is Alone:
            self._retried -= 1
        return taken

    def oldest_arrival_ns(self, now: int) -> int | None:
        """Earliest arrival among the rows of the head's signature: the start of a batching window."""
        head = self.head(now)
        if head is None or self._sole is not None:
            return None if head is None else head.arrival_ns
        return min(front.arrival_ns for front in self._fronts() if front.signature == head.signature)

    def _forget(self, request: Request) -> None:
        self.changes += 1
        del self._live[request.id]
        key = (request.priority, request.signature)
        group = self._groups[key]
        if group[0] is request:
            group.popleft()
        else:
            del group[bisect_left(group, _arrival(request), key=_arrival)]
        if not group:
            del self._groups[key]
            self._regroup()
        if type(request.signature) is Alone:
            self._retried -= 1

    def remove(self, request_id: int) -> bool:
        """Take one request out wherever it stands; whether it was there."""
        request = self._live.get(request_id)
        if request is None:
            return False
        self._forget(request)
        return True

    def _timeout_ns(self, request: Request) -> int | None:
        level = self._levels.get(request.priority)
        if level is None or level.queue_timeout_ns is None or type(request.signature) is Alone:
            return None
        return request.arrival_ns + level.queue_timeout_ns

    def expire(self, now: int) -> list[Request]:
        """Apply the levels' timeouts: demote or remove what waited too long; returns what was removed."""
        rejected: list[Request] = []
        if not self._levels:
            return rejected
        for group in list(self._groups.values()):
            while group and (end_ns := self._timeout_ns(group[0])) is not None and end_ns <= now:
                front = group[0]
                self._forget(front)
                if self._levels[front.priority].on_timeout == "reject":
                    rejected.append(front)
                else:
                    self._append(replace(front, priority=self._demoted_level))
        self._find_due()
        return rejected

    def drop(self, now: int) -> list[Request]:
        """Remove what is hopeless by now; returns it, the earliest deadlines first."""
        hopeless: list[Request] = []
        while (end_ns := self._hopeless_ns()) is not None and end_ns <= now:
            request = self._deadlines.earliest()
            assert request is not None, "it is what becomes hopeless next"
            self._forget(request)
            hopeless.append(request)
        self._find_due()
        return hopeless

    def _find_due(self) -> None:
        end_ns = self.next_timeout_ns()
        self.due_ns = UNBOUNDED_NS if end_ns is None else end_ns

    def _hopeless_ns(self) -> int | None:
        """When the next row becomes hopeless: one nanosecond after its last chance to start alone."""
        if self._alone_ns is None or (request := self._deadlines.earliest()) is None:
            return None
        return request.deadline_ns - self._alone_ns + 1

    def next_timeout_ns(self) -> int | None:
        """The next time at which `expire` or `drop` would do something; None for never."""
        ends = [self._hopeless_ns()]
        if self._levels:
            ends += [self._timeout_ns(front) for front in self._fronts()]
        return min((end_ns for end_ns in ends if end_ns is not None), default=None)

    def validate(self) -> None:
        """Check every invariant. Raises `InvariantError`."""
        queued = [r.id for group in self._groups.values() for r in group]
        if sorted(queued) != sorted(self._live):
            raise InvariantError(f"queue: live rows {sorted(self._live)} but grouped rows {sorted(queued)}")
        retried = sum(type(r.signature) is Alone for r in self._live.values())
        if retried != self._retried:
            raise InvariantError(f"queue: {retried} retried rows, counted {self._retried}")
        if len(self._live) - retried > self._capacity:
            raise InvariantError(f"queue: {len(self._live) - retried} rows, capacity {self._capacity}")
        end_ns = self.next_timeout_ns()
        if end_ns is not None and end_ns < self.due_ns:
            raise InvariantError(f"queue: something is due at {end_ns}, not only at {self.due_ns}")
        if self._alone_ns is not None:
            self._deadlines.validate([request for request in self if type(request.signature) is not Alone])
        if self._sole is not (next(iter(self._groups.values())) if len(self._groups) == 1 else None):
            raise InvariantError(f"queue: {len(self._groups)} groups, but the only one is {self._sole}")
        if any(request.deadline_ns - request.arrival_ns < self.least_sla_ns for request in self):
            raise InvariantError(f"queue: a deadline is closer to its row's arrival than {self.least_sla_ns} ns")
        for (level, signature), group in self._groups.items():
            if list(group) != sorted(group, key=_arrival):
                raise InvariantError(f"queue: group {(level, signature)} is not in order of arrival")
            if any(r.priority != level or r.signature != signature for r in group):
                raise InvariantError(f"queue: a request stands in the wrong group {(level, signature)}")
