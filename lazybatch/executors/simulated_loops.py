"""Loops without execution: which rows are done, where a trace says how many iterations each makes.

Owns: `TripCounter`, the part of a run that a real executor would find out by computing.
Must not know: the scheduler's own account of iterations (it follows tasks and completions), time, tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lazybatch.core.graph import NodeGraph
from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Task
from lazybatch.errors import InvalidInput


class TripCounter:
    """Follows the rows of all models with loops. A driver calls `opened`, `ran`, `settled` for every task in order.

    trips: by request, one number of iterations per loop of its graph; it may be left out where `Request.trips` says it.
    Raises `InvalidInput` for a request of which neither does, naming the loop, and for numbers below 1.
    """

    def __init__(
        self, graphs: Iterable[NodeGraph], requests: Iterable[Request], trips: Mapping[int, Sequence[int]]
    ) -> None:
        self._loops = {graph.model: {loop.stop: n for n, loop in enumerate(graph.loops)} for graph in graphs}
        self._left: dict[int, list[int]] = {}
        self._members: dict[int, list[int]] = {}
        for graph in graphs:
            for request in requests:
                if request.model == graph.model and graph.loops:
                    self._left[request.id] = _counts(graph, request, trips.get(request.id, ()))

    def opened(self, task: Task) -> None:
        """A sub-batch begins, or rows join one."""
        if task.joined is None:
            self._members[task.sub_batch] = list(task.opened)
        else:
            self._members[task.sub_batch] += task.opened

    def ends_body(self, task: Task) -> bool:
        """Whether the task's node is the last of a loop's body."""
        return task.node + 1 in self._loops[task.model]

    def ran(self, task: Task) -> list[int]:
        """The task's node has run; the rows that are done with the loop whose body ended with it."""
        loop = self._loops[task.model].get(task.node + 1)
        if loop is None:
            return []
        done: list[int] = []
        for request_id in self._members[task.sub_batch]:
            left = self._left[request_id]
            left[loop] -= 1
            if not left[loop]:
                done.append(request_id)
        return done

    def settled(self, task: Task, completion: Completion) -> None:
        """Follow what the task led to."""
        gone = {*completion.evicted, *completion.finished}
        if completion.split is not None:
            gone.update(completion.split.requests)
            self._members[completion.split.target] = list(completion.split.requests)
        if gone:
            stay = [request_id for request_id in self._members[task.sub_batch] if request_id not in gone]
            self._members[task.sub_batch] = stay
        self.merged(completion.merges)

    def merged(self, merges: Iterable[Merge]) -> None:
        """Sub-batches became one."""
        for merge in merges:
            self._members[merge.target] += self._members.pop(merge.source)


def _counts(graph: NodeGraph, request: Request, trips: Sequence[int]) -> list[int]:
    if trips and len(trips) != len(graph.loops):
        raise InvalidInput(f"request {request.id}: {len(trips)} numbers of trips for {len(graph.loops)} loops")
    counts: list[int] = []
    for number, loop in enumerate(graph.loops):
        count = trips[number] if trips else request.trips_in(number)
        if type(count) is not int or count < 1:
            raise InvalidInput(
                f"request {request.id}: the trace must say how many trips, at least 1, it makes in loop "
                f"{loop.name!r} of model {graph.model!r}, got {count!r}"
            )
        counts.append(count)
    return counts
