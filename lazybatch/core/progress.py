"""How far the rows of a sub-batch are in a loop.

Owns: `Progress`: the iterations of each row, and when a row's last one is over.
Must not know: stacks, policies, what an iteration computes.

The sub-batch counts its own steps, one per iteration of the body; a row remembers at which step it came in and, where
its trips are known or limited, at which it leaves. So a step costs the same however many rows make it, and merging two
sub-batches shifts the rows of one onto the steps of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lazybatch.core.request import Request
from lazybatch.errors import InvariantError


class Progress:
    """Rows of one sub-batch inside one loop.

    started_ns: when the rows left the queue. loop: the loop's number. steps: iterations the sub-batch has counted; a
    row's own are those since it came in.
    ended: rows that are done and wait for the others, under policies that run whole batches.
    """

    __slots__ = ("_entered", "_leaves", "_started_ns", "ended", "loop", "steps")

    def __init__(self, loop: int, trips_max: int | None, requests: Collection[Request], started_ns: int = 0) -> None:
        self.loop = loop
        self.steps = 0
        self.ended: set[int] = set()
        ids = [request.id for request in requests]
        self._entered = dict.fromkeys(ids, 0)
        self._started_ns = dict.fromkeys(ids, started_ns)
        # step -> rows that leave there at the latest; those that are gone before are passed over then.
        self._leaves: dict[int, list[int]] = {}
        for request in requests:
            trips = request.trips_in(loop) or trips_max
            if trips is not None:
                self._leaves.setdefault(trips, []).append(request.id)

    def iteration(self, request_id: int) -> int:
        """Iterations a row has behind it in this loop."""
        return self.steps - self._entered[request_id]

    def iterations(self) -> dict[int, int]:
        """By row, the iterations it has behind it."""
        steps = self.steps
        return {request_id: steps - entered for request_id, entered in self._entered.items()}

    def means(self) -> tuple[float, float]:
        """Over the rows: when they started, and how many iterations they have behind them."""
        rows = len(self._entered)
        return sum(self._started_ns.values()) / rows, self.steps - sum(self._entered.values()) / rows

    def waited_ns(self, now: int, before_ns: int, body_ns: int) -> int:
        """The longest that any row has been in flight beyond its own way: to the loop, and its iterations in it."""
        steps, started_ns = self.steps, self._started_ns
        own_ns = [started_ns[id] + (steps - entered) * body_ns for id, entered in self._entered.items()]
        return now - before_ns - min(own_ns)

    def last(self) -> int:
        """Iterations until the last of the rows has left whose trips are known or limited; 0 where there is none."""
        return max(self._leaves, default=self.steps) - self.steps

    def step(self, done: Collection[int]) -> set[int]:
        """One more iteration is over; which rows end with it: those found to be done, and those whose last it was."""
        self.steps += 1
        leaving = self._leaves.pop(self.steps, ())
        if not (leaving or done):
            return set()
        inside = self._entered
        over = {request_id for request_id in leaving if request_id in inside}
        over.update([request_id for request_id in done if request_id in inside])
        return over - self.ended if self.ended else over

    def leave(self, ids: Iterable[int]) -> None:
        """Rows are gone: out of the loop, or withdrawn."""
        for request_id in ids:
            del self._entered[request_id]
            del self._started_ns[request_id]
        self.ended.difference_update(ids)

    def absorb(self, other: Progress) -> None:
        """Take over the rows of another sub-batch that stands at the same node of this loop."""
        shift = self.steps - other.steps
        for request_id, entered in other._entered.items():
            self._entered[request_id] = entered + shift
        self._started_ns |= other._started_ns
        for step, ids in other._leaves.items():
            self._leaves.setdefault(step + shift, []).extend(ids)
        self.ended |= other.ended

    def validate(self, requests: Collection[Request], trips_max: int | None) -> None:
        """Check that these are the rows, and that each still has to leave when it should. Raises `InvariantError`."""
        if set(self._entered) != {request.id for request in requests}:
            raise InvariantError(f"progress: of rows {sorted(self._entered)}, but the sub-batch is {requests}")
        if not self.ended <= set(self._entered):
            raise InvariantError(f"progress: rows {sorted(self.ended - set(self._entered))} ended that are not inside")
        leaves = {request_id: step for step, ids in self._leaves.items() for request_id in ids}
        for request in requests:
            trips = request.trips_in(self.loop) or trips_max
            step = None if trips is None else self._entered[request.id] + trips
            if self.iteration(request.id) < 0 or (leaves.get(request.id) != step and request.id not in self.ended):
                raise InvariantError(f"progress: row {request.id} leaves at {leaves.get(request.id)}, not at {step}")
