"""The BatchTable of a graph with loops: rows come back to a loop's first node, leave it one by one, and meet anywhere.

Owns: `LoopTable`: what differs from `BatchTable` where there are loops, and `Leavers`.
Must not know: policies, drivers, how rows are stored.

* After the last node of a loop's body the rows that are done leave; the others stand at its first node again.
* Sub-batches merge wherever they stand at the same node, also when others lie between them in the stack. Their
  iterations need not be equal, unless the loop says so.
* Whoever has left the last loop lies above those still in it, and goes first: nobody waits behind a loop that others
  keep alive. Where another loop follows, those who leave wait below for those who are behind, to run it together:
  newcomers catch up, as everywhere. They do not wait for ever, because nobody finishes meanwhile whose place others
  could take.
* Numbers of rows change all the time, so batches are not padded to allowed sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from typing import NamedTuple

from lazybatch.core.batch_table import BatchTable, SubBatch
from lazybatch.core.graph import NodeGraph
from lazybatch.core.progress import Progress
from lazybatch.core.request import Request
from lazybatch.core.task import Merge
from lazybatch.errors import InvariantError


class Leavers(NamedTuple):
    """Rows that left a loop while others of their sub-batch stay, and those that ended without being done.

    cursor: where the leavers stand.
    """

    requests: tuple[Request, ...] = ()
    cursor: int = 0
    truncated: tuple[int, ...] = ()


_NOBODY = Leavers()


class LoopTable(BatchTable):
    """The stack of one model whose graph has loops.

    whole: rows that are done keep their places until all of their sub-batch are (batches run as a whole).
    """

    __slots__ = ("_graph", "_loop_at", "_loop_behind", "_whole")

    def __init__(self, graph: NodeGraph, max_rows: int, *, whole: bool = False) -> None:
        super().__init__(len(graph), max_rows)
        self._graph = graph
        self._whole = whole
        self._loop_at = [
            next((number for number, loop in enumerate(graph.loops) if loop.first <= node < loop.stop), None)
            for node in range(len(graph) + 1)
        ]
        # By the node behind a loop: its number and its first node.
        self._loop_behind = {loop.stop: (number, loop.first) for number, loop in enumerate(graph.loops)}

    def push(self, entry: SubBatch) -> None:
        """Put a new sub-batch on top, wherever it stands: at the first node, or behind the loop its rows left."""
        super().push(entry)
        self._stand(entry, entry.cursor)

    def push_below(self, entry: SubBatch, upper: SubBatch) -> None:
        """Put a new sub-batch directly below another one."""
        self.push(entry)
        self._entries.insert(self._entries.index(upper), self._entries.pop())

    def waits(self, cursor: int) -> bool:
        """Whether rows that come to this node from a loop wait for the others of it: another loop follows."""
        return cursor <= self._graph.loops[-1].first

    def stays_below(self, entry: SubBatch, between: Iterable[SubBatch]) -> bool:
        """Whether an entry that merges with one above these stays below them: some have left the last loop."""
        stop = self._graph.loops[-1].stop
        return entry.cursor < stop and any(other.cursor >= stop for other in between)

    def _stand(self, entry: SubBatch, cursor: int) -> None:
        """The entry stands at a node it comes to from outside; at the first one of a loop its iterations begin."""
        entry.cursor = cursor
        number = self._loop_at[cursor]
        if number is None:
            entry.progress = None
        elif entry.progress is None or entry.progress.loop != number:
            entry.progress = Progress(number, self._graph.loops[number].trips_max, entry.requests, entry.started_ns)

    def advance(self, entry: SubBatch, done: Collection[int]) -> Leavers:
        """The entry's node ran: move it on. ``done``: rows found to be done with the loop whose body ends here.

        When all rows leave the loop they stay together and the entry stands behind it. When only some do, those are
        taken out of the entry and returned; the others stand at the loop's first node.
        """
        cursor = entry.cursor + 1
        behind = self._loop_behind.get(cursor)
        if behind is None:
            self._stand(entry, cursor)
            return _NOBODY
        number, first = behind
        progress = entry.progress
        assert progress is not None, "it stands in the loop"
        over = ids = progress.step(done)
        if not (over or progress.ended):
            entry.cursor = first
            return _NOBODY
        if self._whole:
            progress.ended |= over
            ids = progress.ended if len(progress.ended) == len(entry.requests) else set()
        truncated: tuple[int, ...] = ()
        if not over.issubset(done):  # the others' trips are known, or the loop's maximum ended them
            ended = [request for request in entry.requests if request.id in over and request.id not in done]
            truncated = tuple([request.id for request in ended if request.trips_in(number) is None])
        if len(ids) == len(entry.requests):
            self._stand(entry, cursor)
            return Leavers(truncated=truncated) if truncated else _NOBODY
        entry.cursor = first
        if not ids:
            return Leavers(truncated=truncated) if truncated else _NOBODY
        leaving = [request for request in entry.requests if request.id in ids]
        self.evict(entry, ids)
        return Leavers(tuple(leaving), cursor, truncated)

    def evict(self, entry: SubBatch, ids: set[int]) -> tuple[int, ...]:
        """Drop requests from an entry; an entry left empty is removed."""
        gone = super().evict(entry, ids)
        if entry.progress is not None:
            entry.progress.leave(gone)
        return gone

    def mergeable(self, lower: SubBatch, upper: SubBatch) -> bool:
        """Whether two entries stand at the same node, may share it, and fit into one sub-batch."""
        return (
            lower.cursor == upper.cursor
            and not (lower.running or upper.running)
            and lower.signature == upper.signature
            and len(lower.requests) + len(upper.requests) <= self._max_rows
            and (
                lower.progress is None
                or upper.progress is None
                or not self._graph.loops[lower.progress.loop].same_iteration
                or lower.progress.steps == upper.progress.steps
            )
        )

    def _meeting(self) -> tuple[SubBatch, SubBatch] | None:
        """The two topmost entries that may merge, the lower one first."""
        if len(self._entries) == 2:  # the ordinary case, and a loop waits for it
            lower, upper = self._entries
            return (lower, upper) if self.mergeable(lower, upper) else None
        for upper, lower in combinations(reversed(self._entries), 2):
            if self.mergeable(lower, upper):
                return lower, upper
        return None

    def merge(self) -> tuple[Merge, ...]:
        """Merge entries into lower ones, as long as any meet; returns what was merged.

        The merged entry takes the upper one's place, but where others between them go first it stays below.
        """
        merged: list[Merge] = []
        entries = self._entries
        while (meeting := self._meeting()) is not None:
            lower, upper = meeting
            below, above = entries.index(lower), entries.index(upper)
            del entries[above]
            if above - below > 1 and not self.stays_below(lower, entries[below + 1 : above]):
                entries.insert(above - 1, entries.pop(below))
            lower.absorb(upper)
            if lower.progress is not None and upper.progress is not None:
                lower.progress.absorb(upper.progress)
            merged.append(Merge(lower.model, lower.id, upper.id))
        return tuple(merged)

    def meets_below(self) -> bool:
        """Whether the top entry may merge with the one directly below it."""
        return len(self._entries) > 1 and self.mergeable(self._entries[-2], self._entries[-1])

    def validate(self) -> None:
        """Check every invariant of the stack. Raises `InvariantError`."""
        super().validate()
        meeting = self._meeting()
        if meeting is not None:
            raise InvariantError(f"batch table: {meeting[0]} and {meeting[1]} meet but are not merged")
        for entry in self._entries:
            number, progress = self._loop_at[entry.cursor], entry.progress
            if (None if progress is None else progress.loop) != number:
                raise InvariantError(f"batch table: {entry} stands in loop {number}, its progress is of another")
            if progress is not None:
                loop = self._graph.loops[progress.loop]
                progress.validate(entry.requests, loop.trips_max)
                if loop.same_iteration and len(set(progress.iterations().values())) > 1:
                    raise InvariantError(f"batch table: {entry} mixes iterations of loop {loop.name!r}")
