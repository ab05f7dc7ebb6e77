"""Sub-batches on their way through a chain of nodes, whatever runs the nodes and wherever the rows lie.

Owns: `ChainExecutor`: which sub-batch stands at which node, and the order of calls that `Executor` promises.
Must not know: any runtime, memory, the scheduler, time.

Where rows go round (`Cycle`), a sub-batch behind the last node goes `again`; who makes how many iterations is its
owner's affair (`LoopStage`), whose `Tally` follows the rows wherever they move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from numpy.typing import NDArray

from lazybatch.errors import InvalidInput, InvariantError
from lazybatch.executors.base import MemoryPlan, Row
from lazybatch.executors.columns import Column, Columns
from lazybatch.executors.cycle import Cycle, Growth
from lazybatch.executors.rows import Kept, rows_of
from lazybatch.executors.tally import Tally
from lazybatch.partition.pieces import Kind, Partition

_AT_ONCE = nullcontext()
_REHEARSAL = -1
"""Sub-batch and request of a planning run; schedulers count from 0."""


class Moving(Protocol):
    """Rows that move together. rows: executed rows, padding included; the requests' rows come first.

    tally: how far each is, where they go round; else None.
    """

    requests: list[int]
    rows: int
    cursor: int
    tally: Tally | None

    @property
    def signature(self) -> Hashable:
        """Rows of different signatures never join."""


StateT = TypeVar("StateT", bound=Moving)
P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol[StateT]):
    """Where the rows of sub-batches lie. capacity: rows that memory is laid out for."""

    capacity: int

    def begin(self, requests: Sequence[int], columns: Columns, signature: Hashable, rows: int) -> StateT:
        """A new sub-batch with its inputs; ``rows`` beyond the requests repeat the last one."""

    def append(self, large: StateT, small: StateT, total: int, without: Collection[str] = ()) -> None:
        """Put the rows of ``small`` behind those of ``large``, which then executes ``total`` rows.

        without: tensors whose content in ``small`` nobody needs.
        """

    def keep(self, state: StateT, kept: Kept) -> None:
        """Keep these rows, at these places."""

    def scatter(self, state: StateT, name: str) -> list[Any]:
        """One output, per request."""

    def peek(self, state: StateT, name: str, like: str | None = None) -> NDArray[Any]:
        """A tensor with the requests' rows on the first axis, to be read before anything else happens.

        like: the tensor whose rows lie as this one's do, where nothing is proven of its own.
        """

    def end(self, state: StateT) -> None:
        """Take back what a sub-batch held."""

    def clear(self) -> None:
        """Free everything."""


class LoopStore(Store[StateT], Protocol):
    """A store of rows that go round."""

    def again(self, state: StateT) -> None:
        """Behind the last node: what is carried is now the first node's input."""

    def in_place(self, name: str) -> bool:
        """Whether this carried input and the output that it is next share their memory."""

    def feed(self, state: StateT, name: str, values: NDArray[Any]) -> None:
        """Write an input of all requests' rows, one per entry of the first axis."""

    def blank(self, state: StateT, name: str, rows: NDArray[Any]) -> None:
        """Fill these rows (flags) of an input that grows with zeros."""

    def extend(
        self, state: StateT, name: str, growth: Growth, rows: NDArray[Any] | None, positions: NDArray[Any]
    ) -> None:
        """Write the slice of each of these rows (indexes; None: all) at its own position, in place."""


def rows_capacity(partition: Partition, max_batch_size: int) -> int:
    """Rows of the largest sub-batch. Raises `InvalidInput` for a ``max_batch_size`` below 1."""
    if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
        raise InvalidInput(f"max_batch_size must be a positive integer, got {max_batch_size!r}")
    return max_batch_size if partition.joinable else 1


class ChainExecutor(Generic[StateT]):
    """An `Executor` but for how one node is run (`_advance`); see the module's text.

    cycle: how rows go round, where they do; the store was made for the same.
    """

    def __init__(self, partition: Partition, store: Store[StateT], cycle: Cycle | None = None) -> None:
        self._partition = partition
        self._store = store
        self._grown = frozenset() if cycle is None else frozenset(cycle.grown)
        self._live: dict[int, StateT] = {}

    def _advance(self, state: StateT, node: int) -> None:
        """Run one node on all rows. Raises `ExecutionError` naming the node."""
        raise NotImplementedError

    def ordered(self) -> AbstractContextManager[Any]:
        """What is asked of the store inside happens in the order in which nodes run."""
        return _AT_ONCE

    def in_order(self, call: Callable[P, T]) -> Callable[P, T]:
        """The same call, made inside `ordered` where that makes a difference."""
        if type(self).ordered is ChainExecutor.ordered:
            return call

        def made_in_order(*arguments: P.args, **named: P.kwargs) -> T:
            with self.ordered():
                return call(*arguments, **named)

        return made_in_order

    def prepare(self, signature: Hashable) -> None:
        """Have memory for the maximum batch of rows of this signature, which ran before, really there."""

    def watch(self, on: bool) -> None:
        """Whether to note, from now on, how much memory rows take; for where it is not known beforehand."""

    def memory(self) -> MemoryPlan:
        """What is planned so far."""
        raise NotImplementedError

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Gather rows. Padding repeats the last row; it is dropped at the first merge or eviction."""
        if not rows:
            raise InvariantError(f"sub-batch {sub_batch} opened without rows")
        given = list(rows.values())
        columns = {name: Column.of([row.values[name] for row in given]) for name in self._partition.inputs}
        self.enter(sub_batch, list(rows), columns, given[0].signature, padded_rows)

    def enter(
        self, sub_batch: int, requests: Sequence[int], columns: Columns, signature: Hashable, padded_rows: int
    ) -> None:
        """`open` with all inputs of the rows, of equal shapes, as columns."""
        count = len(requests)
        if sub_batch in self._live or padded_rows < count:
            raise InvariantError(f"sub-batch {sub_batch} opened twice, or with {count} of {padded_rows} rows")
        self._check_room(sub_batch, padded_rows)
        self._live[sub_batch] = self._store.begin(requests, columns, signature, padded_rows)

    def run(self, sub_batch: int, node: int) -> None:
        """Run one node on all rows. Raises `ExecutionError` naming the node."""
        self.advance(self._live[sub_batch], node)

    def advance(self, state: StateT, node: int) -> None:
        """`run`, for whoever knows the rows."""
        if node != state.cursor:
            raise InvariantError(f"rows {state.requests} stand at node {state.cursor}, not {node}")
        self._advance(state, node)
        state.cursor = node + 1

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches: the rows of the smaller side move behind those of the larger."""
        one, other = self._live[target], self._live[source]
        if one.cursor != other.cursor or one.signature != other.signature or not self._partition.joinable:
            raise InvariantError(f"sub-batches {target} and {source} do not stand at the same node with equal shapes")
        large, small = (other, one) if len(other.requests) > len(one.requests) else (one, other)
        total = len(large.requests) + len(small.requests)
        self._check_room(target, total)
        fresh = small.tally is not None and small.tally.all_fresh  # what grows is filled with zeros before they run
        self._store.append(large, small, total, self._grown if fresh else ())
        large.requests.extend(small.requests)
        if large.tally is not None and small.tally is not None:
            large.tally.append(small.tally)
        del self._live[source]
        self._live[target] = large
        self._store.end(small)

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Remove rows; the last rows move into the holes."""
        state = self._live[sub_batch]
        gone = rows_of(requests, state.requests)
        if gone is None or len(gone) == len(state.requests):
            raise InvariantError(f"sub-batch {sub_batch} does not hold more than the requests {sorted(requests)}")
        kept = Kept.without(len(state.requests), gone)
        self._store.keep(state, kept)
        for place, origin in kept.moved.items():
            state.requests[place] = state.requests[origin]
        del state.requests[kept.rows :]
        if state.tally is not None:
            state.tally.remove(gone, kept)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Results by request: a dict of arrays of their own. See `Partition` for what has a batch axis."""
        results = self.take(sub_batch, self._partition.outputs)
        self.discard(sub_batch)
        return dict(results)

    def take(self, sub_batch: int, names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """After the last node: these outputs by request, as `close` gives them."""
        state = self._live[sub_batch]
        count = len(self._partition.pieces)
        if state.cursor != count:
            raise InvariantError(f"sub-batch {sub_batch} closed at node {state.cursor} of {count}")
        results: dict[int, dict[str, Any]] = {request: {} for request in state.requests}
        for name in names:
            for request, value in zip(state.requests, self._store.scatter(state, name), strict=True):
                results[request][name] = value
        return results

    def block(self, sub_batch: int, name: str) -> NDArray[Any] | None:
        """After the last node: a view of an output with the requests' rows on the first axis, to be read at once; None
        where it does not consist of rows."""
        boundary = self._partition.boundaries[name]
        if boundary.kind is not Kind.ROWS or boundary.axis is None or not self._partition.joinable:
            return None
        return self._store.peek(self._live[sub_batch], name)

    def state(self, sub_batch: int) -> StateT:
        """The rows of a sub-batch, for whoever leads them round."""
        return self._live[sub_batch]

    def find(self, sub_batch: int) -> StateT | None:
        """The rows of a sub-batch; None where there is none of that number."""
        return self._live.get(sub_batch)

    @property
    def store(self) -> LoopStore[StateT]:
        """Where rows lie, for whoever leads them round."""
        return self._store  # type: ignore[return-value]

    def again(self, state: StateT) -> None:
        """Behind the last node, back to the first: what is carried is its input there. Raises `ExecutionError`."""
        if state.cursor != len(self._partition.pieces):
            raise InvariantError(f"rows {state.requests} are not behind the last node, but at node {state.cursor}")
        self._store.again(state)  # type: ignore[attr-defined]
        state.cursor = 0

    def discard(self, sub_batch: int) -> None:
        """End a sub-batch without results, however far it got."""
        state = self._live.pop(sub_batch, None)
        if state is not None:
            self._store.end(state)

    def shutdown(self) -> None:
        """Free what sub-batches held; what runs the nodes belongs to the model."""
        self._live.clear()
        self._store.clear()

    def _rehearse(self, row: Row, rows: int) -> dict[int, Any]:
        """Run all nodes on copies of one row."""
        self.open(_REHEARSAL, dict.fromkeys(range(rows), row), rows)
        try:
            for node in range(len(self._partition.pieces)):
                self.run(_REHEARSAL, node)
            return self.close(_REHEARSAL)
        finally:
            self.discard(_REHEARSAL)

    def _check_room(self, sub_batch: int, rows: int) -> None:
        if rows > self._store.capacity:
            raise InvariantError(f"sub-batch {sub_batch} has {rows} rows; {self._store.capacity} were planned for")
