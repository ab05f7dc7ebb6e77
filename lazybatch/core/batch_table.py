"""The BatchTable: a stack of sub-batches of one model, as in the paper's Fig. 10.

Owns: `SubBatch` and `BatchTable`: push, advance, merge, pop, evict, and the invariants of the stack.
Must not know: why anything is pushed (policies), when (drivers), how rows are stored (executors).

The top entry is the active sub-batch. After each node its cursor advances; when the two topmost entries stand at the
same node, with equal signatures and room for both, they merge into the lower one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from lazybatch.core.progress import Progress
from lazybatch.core.request import Request
from lazybatch.core.task import Merge
from lazybatch.errors import InvariantError


class SubBatch:
    """Requests that move together. Owned and changed by the scheduler only.

    cursor: index of the node to run next. deadlines_ns: the rows' deadlines, ascending. dispatched_ns: when the
    processor became free for the node that ran last, or it was decided on, if nothing had run just before.
    padded_rows: rows executed when more than the live rows (allowed sizes), else None; a padded sub-batch never merges.
    doomed: ids cancelled while a node runs; they leave at its end. progress: of its rows where it stands in a loop.
    """

    __slots__ = (
        "cursor",
        "deadlines_ns",
        "dispatched_ns",
        "doomed",
        "id",
        "model",
        "padded_rows",
        "progress",
        "requests",
        "running",
        "signature",
        "started_ns",
    )

    def __init__(
        self, id: int, model: str, requests: list[Request], padded_rows: int | None = None, started_ns: int = 0
    ) -> None:
        self.id = id
        self.model = model
        self.requests = requests
        self.signature = requests[0].signature
        self.deadlines_ns = sorted(request.deadline_ns for request in requests)
        self.padded_rows = padded_rows
        self.cursor = 0
        self.started_ns = self.dispatched_ns = started_ns
        self.running = False
        self.doomed: set[int] = set()
        self.progress: Progress | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return f"SubBatch({self.id}, node {self.cursor}, requests {self.ids()})"

    def ids(self) -> tuple[int, ...]:
        """Request ids, in row order of the scheduler (an executor keeps its own order)."""
        return tuple([request.id for request in self.requests])  # a list is built faster than a generator is run

    def absorb(self, other: SubBatch) -> None:
        """Take over the rows of another sub-batch at the same cursor."""
        self.requests = self.requests + other.requests
        self.deadlines_ns = sorted(self.deadlines_ns + other.deadlines_ns)  # two sorted runs: linear, and in C

    def evict(self, ids: set[int]) -> tuple[int, ...]:
        """Drop these requests; returns the ids dropped, in row order."""
        gone = [request for request in self.requests if request.id in ids]
        self.requests = [request for request in self.requests if request.id not in ids]
        deadlines_ns = self.deadlines_ns
        for request in gone:
            del deadlines_ns[bisect_left(deadlines_ns, request.deadline_ns)]
        return tuple([request.id for request in gone])


class BatchTable:
    """The stack of one model's sub-batches; index 0 is the bottom.

    sizes: the only numbers of rows that may result from a merge; empty for any up to ``max_rows``.
    """

    __slots__ = ("_entries", "_max_rows", "_nodes", "_sizes", "rows")

    def __init__(self, nodes: int, max_rows: int, sizes: tuple[int, ...] = ()) -> None:
        self._entries: list[SubBatch] = []
        self._nodes = nodes
        self._max_rows = max_rows
        self._sizes = sizes
        self.rows = 0
        """Rows in all entries together."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SubBatch]:
        return iter(self._entries)

    @property
    def top(self) -> SubBatch | None:
        """The active sub-batch; None when the stack is empty."""
        return self._entries[-1] if self._entries else None

    def push(self, entry: SubBatch) -> None:
        """Put a new sub-batch on top, at its first node."""
        self._entries.append(entry)
        self.rows += len(entry)

    def remove(self, entry: SubBatch) -> None:
        """Take an entry out, wherever it stands: it is done, failed or empty."""
        self._entries.remove(entry)
        self.rows -= len(entry)

    def evict(self, entry: SubBatch, ids: set[int]) -> tuple[int, ...]:
        """Drop requests from an entry; an entry left empty is removed."""
        gone = entry.evict(ids)
        self.rows -= len(gone)
        if not entry.requests:
            self._entries.remove(entry)
        return gone

    def mergeable(self, lower: SubBatch, upper: SubBatch) -> bool:
        """Whether two entries stand at the same node, may share it, and fit into one sub-batch."""
        rows = len(lower.requests) + len(upper.requests)
        return (
            lower.cursor == upper.cursor
            and not (lower.running or upper.running)
            and lower.signature == upper.signature
            and lower.padded_rows is None
            and upper.padded_rows is None
            and rows <= self._max_rows
            and (not self._sizes or rows in self._sizes)
        )

    def merge(self) -> tuple[Merge, ...]:
        """Merge the two topmost entries into the lower one, as often as they meet; returns what was merged."""
        entries = self._entries
        merged: list[Merge] = []
        while len(entries) > 1 and self.mergeable(entries[-2], entries[-1]):
            upper = entries.pop()
            lower = entries[-1]
            lower.absorb(upper)
            merged.append(Merge(lower.model, lower.id, upper.id))
        return tuple(merged)

    def validate(self) -> None:
        """Check every invariant of the stack. Raises `InvariantError`."""
        entries = self._entries
        ids = [request.id for entry in entries for request in entry.requests]
        if len(set(ids)) != len(ids):
            raise InvariantError(f"batch table: a request is in two sub-batches: {entries}")
        if self.rows != len(ids):
            raise InvariantError(f"batch table: counted {self.rows} rows, found {len(ids)}")
        for entry in entries:
            if not entry.requests:
                raise InvariantError(f"batch table: empty entry {entry}")
            if len(entry) > self._max_rows:
                raise InvariantError(f"batch table: {entry} has more than {self._max_rows} rows")
            if not 0 <= entry.cursor < self._nodes:
                raise InvariantError(f"batch table: {entry} stands outside 0..{self._nodes - 1}")
            if any(request.signature != entry.signature for request in entry.requests):
                raise InvariantError(f"batch table: {entry} mixes signatures")
            if entry.deadlines_ns != sorted(request.deadline_ns for request in entry.requests):
                raise InvariantError(f"batch table: {entry} has wrong deadlines")
            if entry.doomed and not entry.running:
                raise InvariantError(f"batch table: {entry} is parked with cancelled rows")
        if len(entries) > 1 and self.mergeable(entries[-2], entries[-1]):
            raise InvariantError(f"batch table: {entries[-2]} and {entries[-1]} meet but are not merged")
