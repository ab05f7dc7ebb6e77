"""An executor that computes nothing and takes the time a latency table says.

Owns: `SimulatedModel` and `SimulatedExecutor`: rows come back as they went in, and a clock is moved, not waited for.
Must not know: any framework, real time.

It holds its caller to the contract of `executors.base`: nodes in order, merges only at equal nodes, nothing used
after its end. A driver that breaks it gets an `InvariantError` at the call that did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvariantError
from lazybatch.executors.base import MemoryPlan, Row


class SimulatedModel:
    """A model that is only a latency table.

    advance: called with the nanoseconds every node run takes (for example a stepped clock's ``advance``).
    signature_of, size_of: how a row's signature and size follow from its inputs; by default all rows may join.
    """

    def __init__(
        self,
        table: LatencyTable,
        advance: Callable[[int], None],
        *,
        signature_of: Callable[[Any], Any] = lambda _: None,
        size_of: Callable[[Any], int] = lambda _: 1,
    ) -> None:
        self.table = table
        self.name = table.model
        self.graph = NodeGraph.chain(table.model, table.nodes)
        self.joinable = True
        self.reason: str | None = None
        self.fingerprint = str(table.provenance.get("fingerprint", f"simulated:{table.model}"))
        self._advance = advance
        self._signature_of = signature_of
        self._size_of = size_of

    def admit(self, inputs: Any) -> Row:
        """Any object is a row."""
        return Row(inputs, self._signature_of(inputs), self._size_of(inputs))

    def executor(self, *, max_batch_size: int) -> SimulatedExecutor:
        """An executor with its own sub-batches."""
        return SimulatedExecutor(self.table, max_batch_size, self._advance)


class SimulatedExecutor:
    """Echoes rows after the table's time; see the module's text."""

    def __init__(self, table: LatencyTable, rows_max: int, advance: Callable[[int], None]) -> None:
        self._times_ns = table.dense_ns(rows_max)
        self._advance = advance
        self._open: dict[int, _Open] = {}

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """See `Executor.open`."""
        if sub_batch in self._open or not 1 <= len(rows) <= padded_rows:
            raise InvariantError(f"open: sub-batch {sub_batch} with {len(rows)} of {padded_rows} rows")
        if len({row.signature for row in rows.values()}) != 1:
            raise InvariantError(f"open: sub-batch {sub_batch} mixes signatures")
        self._open[sub_batch] = _Open(dict(rows), padded_rows - len(rows))

    def run(self, sub_batch: int, node: int) -> None:
        """See `Executor.run`; moves the clock by the table's time."""
        entry = self._entry(sub_batch)
        if node != entry.node:
            raise InvariantError(f"run: sub-batch {sub_batch} stands at node {entry.node}, asked for {node}")
        self._advance(self._times_ns[node][len(entry.rows) + entry.padding])
        entry.node += 1

    def merge(self, target: int, source: int) -> None:
        """See `Executor.merge`."""
        into, gone = self._entry(target), self._entry(source)
        if into.node != gone.node or into.padding or gone.padding or into.signature != gone.signature:
            raise InvariantError(f"merge: sub-batches {target} at node {into.node} and {source} at node {gone.node}")
        into.rows.update(gone.rows)
        del self._open[source]

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """See `Executor.evict`."""
        entry = self._entry(sub_batch)
        for request in requests:
            if entry.rows.pop(request, None) is None or not entry.rows:
                raise InvariantError(f"evict: request {request} of sub-batch {sub_batch}")
            if entry.padding:
                entry.padding += 1

    def close(self, sub_batch: int) -> dict[int, Any]:
        """See `Executor.close`: every row's own inputs."""
        entry = self._entry(sub_batch)
        if entry.node != len(self._times_ns):
            raise InvariantError(f"close: sub-batch {sub_batch} stands at node {entry.node} of {len(self._times_ns)}")
        del self._open[sub_batch]
        return {request: row.values for request, row in entry.rows.items()}

    def discard(self, sub_batch: int) -> None:
        """See `Executor.discard`."""
        self._entry(sub_batch)
        del self._open[sub_batch]

    def memory(self) -> MemoryPlan:
        """Nothing is allocated."""
        return MemoryPlan(0, 0, 0)

    def shutdown(self) -> None:
        """See `Executor.shutdown`: nothing may be left open."""
        if self._open:
            raise InvariantError(f"shutdown: sub-batches {sorted(self._open)} are still open")

    def _entry(self, sub_batch: int) -> _Open:
        try:
            return self._open[sub_batch]
        except KeyError:
            raise InvariantError(f"sub-batch {sub_batch} is not open") from None


class _Open:
    """A sub-batch under way."""

    __slots__ = ("node", "padding", "rows", "signature")

    def __init__(self, rows: dict[int, Row], padding: int) -> None:
        self.rows = rows
        self.padding = padding
        self.signature = next(iter(rows.values())).signature
        self.node = 0
