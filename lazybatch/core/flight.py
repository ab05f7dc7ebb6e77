"""What is in flight: the sub-batches of every model in one stack, and where each request is.

Owns: `Flight`: the stack over all lanes in step with the lanes' own tables, the sub-batches by number, and the place of
every request inside.
Must not know: policies, reasons, the clock, how many processors there are, how rows that left are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.request import Request
from lazybatch.core.task import Merge
from lazybatch.errors import InvariantError


class Flight:
    """Every sub-batch there is. Owned and changed by the scheduler only.

    stack: in the order in which they were preempted; the last is the active one. sub_batches: the same by number.
    located: every request inside, with its lane and its sub-batch (None while it waits in the lane's queue).
    """

    __slots__ = ("_next", "located", "stack", "sub_batches")

    def __init__(self) -> None:
        self.stack: list[SubBatch] = []
        self.sub_batches: dict[int, SubBatch] = {}
        self.located: dict[int, tuple[Lane, SubBatch | None]] = {}
        self._next = 0

    def open(
        self, lane: Lane, requests: list[Request], cursor: int, started_ns: int, origin: SubBatch | None = None
    ) -> SubBatch:
        """A new sub-batch on top of everything; but where its rows wait for those they left, it lies below these.

        origin: what the rows were part of until now, where they left a loop that others stay in.
        """
        entry = SubBatch(self._next, lane.model, requests, lane.padded_rows(len(requests)), started_ns)
        entry.cursor = cursor
        self._next += 1
        self.sub_batches[entry.id] = entry
        table = lane.table
        if origin is not None and isinstance(table, LoopTable) and table.waits(cursor):
            table.push_below(entry, origin)
            self.stack.insert(self.stack.index(origin), entry)
        else:
            table.push(entry)
            self.stack.append(entry)
        located, place = self.located, (lane, entry)
        for request in requests:
            located[request.id] = place
        return entry

    def merge(self, lane: Lane) -> tuple[Merge, ...]:
        """Merge what meets in the lane's stack; the merged sub-batch takes the place of the newer one.

        But rows of the same model that lie between the two stay above where they have left the last loop.
        """
        if len(lane.table) < 2:
            return ()
        merges = lane.table.merge()
        stack = self.stack
        for merge in merges:
            source, target = self.sub_batches.pop(merge.source), self.sub_batches[merge.target]
            lower, upper = stack.index(target), stack.index(source)
            between = [entry for entry in stack[lower + 1 : upper] if entry.model == lane.model]
            if between and isinstance(lane.table, LoopTable) and lane.table.stays_below(target, between):
                del stack[upper]
            else:
                stack[upper] = target
                del stack[lower]
            located, place = self.located, (lane, target)
            for request in source.requests:
                located[request.id] = place
        return merges

    def evict(self, lane: Lane, entry: SubBatch, ids: set[int]) -> tuple[int, ...]:
        """These requests leave their sub-batch and are gone; so is the sub-batch when none is left. Says which did."""
        gone = lane.table.evict(entry, ids)
        self.leave(gone)
        if not entry.requests:
            self._forget(entry)
        return gone

    def leave(self, ids: Iterable[int]) -> None:
        """These requests are no longer inside."""
        for request_id in ids:
            del self.located[request_id]

    def remove(self, lane: Lane, entry: SubBatch) -> None:
        """A sub-batch is over. What becomes of its requests is for the caller to say."""
        lane.table.remove(entry)
        self._forget(entry)

    def _forget(self, entry: SubBatch) -> None:
        self.stack.remove(entry)
        del self.sub_batches[entry.id]

    def validate(self, lanes: Sequence[Lane]) -> None:
        """Check that the stack, the lanes' tables and queues, and both indices agree. Raises `InvariantError`."""
        tabled = [entry for lane in lanes for entry in lane.table]
        if {entry.id for entry in tabled} != {entry.id for entry in self.stack} or len(tabled) != len(self.stack):
            raise InvariantError(f"scheduler: stack {self.stack} but tables {tabled}")
        if tabled != [entry for lane in lanes for entry in self.stack if entry.model == lane.model]:
            raise InvariantError(f"scheduler: stack {self.stack} in another order than tables {tabled}")
        if {entry.id: entry for entry in tabled} != self.sub_batches:
            raise InvariantError(f"scheduler: tables {tabled} but index {self.sub_batches}")
        located = {request.id: entry for entry in tabled for request in entry.requests}
        located_queued = {request.id for lane in lanes for request in lane.queue}
        if set(located) & located_queued or set(located) | located_queued != set(self.located):
            raise InvariantError("scheduler: a request is in two places, or in none")
        if any(self.located[request_id][1] is not entry for request_id, entry in located.items()):
            raise InvariantError("scheduler: a request is located in the wrong sub-batch")
