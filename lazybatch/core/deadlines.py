"""Waiting requests by deadline, whatever order they came in.

Owns: `DeadlineOrder`, which finds the waiting request of the earliest deadline in logarithmic time.
Must not know: in which order requests are taken, what happens to those whose deadline passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.errors import InvariantError

_COMPACT_MIN = 64


class DeadlineOrder:
    """A heap over those of the ``live`` requests (by id; kept by the owner) that were added and have a deadline.

    Requests leave by leaving ``live``, or by standing there with another deadline or signature. Their places in the
    heap are cleared when they come to the top, or when they outnumber the living.
    """

    __slots__ = ("_added", "_heap", "_live")

    def __init__(self, live: Mapping[int, Request]) -> None:
        self._live = live
        self._added = 0
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        """Places in the heap, those of requests that have left included."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Follow a request that is live now; one whose deadline never comes need not be followed."""
        if request.deadline_ns >= UNBOUNDED_NS:
            return
        if len(self._heap) >= _COMPACT_MIN + 2 * len(self._live):
            self._heap = [entry for entry in self._heap if self._follows(entry[2])]
            heapify(self._heap)
        self._added += 1  # requests themselves cannot be compared
        heappush(self._heap, (request.deadline_ns, self._added, request))

    def earliest(self) -> Request | None:
        """The live request with the earliest deadline; None when none has any."""
        while self._heap:
            request = self._heap[0][2]
            if self._follows(request):
                return self._live[request.id]
            heappop(self._heap)
        return None

    def _follows(self, request: Request) -> bool:
        """Whether it is still here: the same row, even if its priority has changed."""
        found = self._live.get(request.id)
        return found is request or (
            found is not None and found.deadline_ns == request.deadline_ns and found.signature == request.signature
        )

    def validate(self, followed: Iterable[Request]) -> None:
        """Check that every bounded one of these requests is in the heap. Raises `InvariantError`."""
        bounded = {request.id for request in followed if request.deadline_ns < UNBOUNDED_NS}
        missing = bounded - {request.id for _, _, request in self._heap if self._follows(request)}
        if missing:
            raise InvariantError(f"deadlines: requests {sorted(missing)} would never be found")
        for place in range(1, len(self._heap)):
            if self._heap[place][:2] < self._heap[(place - 1) // 2][:2]:
                raise InvariantError(f"deadlines: place {place} of the heap is out of order")
