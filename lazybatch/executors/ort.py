"""Runs the nodes of an ONNX model on sub-batches that can be parked, merged and thinned out.

Owns: `OrtExecutor`: where every row of every sub-batch lies, and what is run on it.
Must not know: the scheduler, threads, time, how the model was cut.

A sub-batch holds one `BufferSet`. Nodes read and write it in place: a dispatch is one call on a binding made before,
for this node, number of rows and set. Parking is doing nothing; merging copies the rows of the smaller side behind
those of the larger, in the buffers that are alive at that cursor; which request is which row is known here only.

Tensors take their shapes from the first run of a signature, with outputs allocated by ONNX Runtime. From then on
outputs are bound. Tensors without a proven form, strings, and everything on a device other than the CPU are not
bound but handed from node to node as values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput, InvariantError
from lazybatch.executors.base import MemoryPlan, Row
from lazybatch.executors.buffers import BufferPool, BufferSet
from lazybatch.executors.layout import Layout
from lazybatch.executors.ort_piece import ONNX_TYPES, OrtPiece, Place, copy_out, shape_of, to_python
from lazybatch.executors.resident import resident_bytes
from lazybatch.executors.rows import by_row, survivors, take_rows
from lazybatch.executors.slots import assign_slots
from lazybatch.partition.pieces import Boundary, Kind, Partition

FRAMES_MAX = 256
"""Prepared (signature, rows) combinations per buffer set; the least recently used go first."""
LAYOUTS_MAX = 4096
"""Signatures whose shapes are remembered."""

SETS_PLANNED = 2
"""Buffer sets that are really there from the start: the active sub-batch and one that is parked."""
_REHEARSAL = -1
"""Sub-batch and request of a planning run; schedulers count from 0."""

Step = Callable[[], None]


class Frame:
    """All nodes bound to one buffer set for one layout and number of rows; a step is None until first needed."""

    __slots__ = ("steps", "views")

    def __init__(self, nodes: int) -> None:
        self.steps: list[Step | None] = [None] * nodes
        self.views: dict[str, NDArray[Any]] = {}


class SubBatch:
    """Rows that move together. rows: executed rows, padding included; the requests' rows come first."""

    __slots__ = ("buffers", "cursor", "frame", "layout", "requests", "rows", "values")

    def __init__(self, requests: list[int], rows: int, layout: Layout, buffers: BufferSet) -> None:
        self.requests = requests
        self.rows = rows
        self.layout = layout
        self.buffers = buffers
        self.frame: Frame
        self.values: dict[str, Any] = {}
        self.cursor = 0


class OrtExecutor:
    """An `Executor` over the sessions of one partition; see the module's text.

    Raises `InvalidInput` for a ``max_batch_size`` below 1.
    """

    def __init__(
        self,
        partition: Partition,
        pieces: Sequence[OrtPiece],
        *,
        max_batch_size: int,
        on_cpu: bool = True,
        weights_bytes: int = 0,
    ) -> None:
        if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
            raise InvalidInput(f"max_batch_size must be a positive integer, got {max_batch_size!r}")
        self._partition = partition
        self._pieces = pieces
        self._capacity = max_batch_size if partition.joinable else 1
        bound = frozenset(name for name, b in partition.boundaries.items() if on_cpu and _can_be_bound(b))
        self._plan = assign_slots(partition, bound)
        self._bound = [all(name in bound for name in (*piece.inputs, *piece.outputs)) for piece in partition.pieces]
        self._pool = BufferPool(self._plan.count)
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()
        self._layouts_made = 0
        self._live: dict[int, SubBatch] = {}
        self._weights_bytes = weights_bytes
        self._scratch_bytes = 0

    def plan(self, row: Row) -> MemoryPlan:
        """Learn the shapes of this row's signature, and lay out memory for the maximum batch of such rows.

        Runs every node once on one row and once on the maximum batch (the second time measures the runtime's own
        scratch memory). Call it before serving, and not while other code allocates. Raises `ExecutionError`.
        """
        self._run_through(row, 1)
        layout = self._layout(row)
        self._pool.prepare(SETS_PLANNED if self._capacity > 1 else 1, layout.slot_bytes)
        before = resident_bytes()
        self._run_through(row, self._capacity)
        self._scratch_bytes += max(0, (resident_bytes() or 0) - (before or 0))
        return self.memory()

    def memory(self) -> MemoryPlan:
        """What is planned so far: weights as loaded, all buffers, and the scratch memory measured by `plan`."""
        return MemoryPlan(self._weights_bytes, self._pool.nbytes, self._scratch_bytes)

    def _run_through(self, row: Row, rows: int) -> None:
        """Run all nodes on copies of one row, without results."""
        self.open(_REHEARSAL, {_REHEARSAL: row}, rows)
        try:
            for node in range(len(self._pieces)):
                self.run(_REHEARSAL, node)
        finally:
            self.discard(_REHEARSAL)

    # -- the life of a sub-batch ---------------------------------------------------------------------------------

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Gather rows into buffers. Padding repeats the last row; it is dropped at the first merge or eviction."""
        count = len(rows)
        if sub_batch in self._live or not count or padded_rows < count:
            raise InvariantError(f"sub-batch {sub_batch} opened twice, empty, or with {count} of {padded_rows} rows")
        if max(count, padded_rows) > self._capacity:
            raise InvariantError(f"sub-batch {sub_batch} has {padded_rows} rows; {self._capacity} were planned for")
        given = list(rows.values())
        layout = self._layout(given[0])
        state = SubBatch(list(rows), padded_rows, layout, self._pool.take())
        self._live[sub_batch] = state
        state.buffers.reserve(layout.slot_bytes)
        self._reframe(state)
        for name in self._partition.inputs:
            if name in self._plan.live[0]:
                self._gather(state, name, [row.values[name] for row in given])

    def run(self, sub_batch: int, node: int) -> None:
        """Run one node on all rows. Raises `ExecutionError` naming the node."""
        state = self._live[sub_batch]
        if node != state.cursor:
            raise InvariantError(f"sub-batch {sub_batch} stands at node {state.cursor}, not {node}")
        step = state.frame.steps[node]
        if step is None and self._bound[node] and state.layout.knows(self._pieces[node].outputs):
            step = state.frame.steps[node] = self._bind(state, node)
        if step is None:
            self._run_free(state, node)
        else:
            try:
                step()
            except Exception as error:
                raise self._pieces[node].failure(error) from error
        state.cursor = node + 1

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches. Only the smaller side's rows are copied, in live buffers only."""
        one, other = self._live[target], self._live[source]
        if one.cursor != other.cursor or one.layout.signature != other.layout.signature or not self._partition.joinable:
            raise InvariantError(f"sub-batches {target} and {source} do not stand at the same node with equal shapes")
        large, small = (other, one) if len(other.requests) > len(one.requests) else (one, other)
        total = len(large.requests) + len(small.requests)
        if total > self._capacity:
            raise InvariantError(f"merging {target} and {source} makes {total} rows; {self._capacity} were planned for")
        self._append(large, small, total)
        large.requests.extend(small.requests)
        del self._live[source]
        self._live[target] = large
        self._pool.give(small.buffers)

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Remove rows; the last rows move into the holes."""
        state = self._live[sub_batch]
        gone = [row for row, request in enumerate(state.requests) if request in set(requests)]
        if len(gone) != len(set(requests)) or len(gone) == len(state.requests):
            raise InvariantError(f"sub-batch {sub_batch} does not hold more than the requests {sorted(requests)}")
        order = survivors(len(state.requests), gone)
        self._keep(state, order)
        state.requests = [state.requests[row] for row in order]

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Results by request: a dict of arrays of their own. See `Partition` for what has a batch axis."""
        state = self._live[sub_batch]
        if state.cursor != len(self._pieces):
            raise InvariantError(f"sub-batch {sub_batch} closed at node {state.cursor} of {len(self._pieces)}")
        results: dict[int, dict[str, Any]] = {request: {} for request in state.requests}
        for name in self._partition.outputs:
            for request, value in zip(state.requests, self._scatter(state, name), strict=True):
                results[request][name] = value
        self.discard(sub_batch)
        return dict(results)

    def discard(self, sub_batch: int) -> None:
        """End a sub-batch without results, however far it got. Its buffers and their bindings serve the next one."""
        state = self._live.pop(sub_batch, None)
        if state is not None:
            self._pool.give(state.buffers)

    def shutdown(self) -> None:
        """Free buffers and bindings; sessions belong to the model."""
        self._live.clear()
        self._layouts.clear()
        self._pool.clear()

    # -- shapes and bindings -------------------------------------------------------------------------------------

    def _layout(self, row: Row) -> Layout:
        """What is known of this row's signature."""
        layout = self._layouts.get(row.signature)
        if layout is not None:
            self._layouts.move_to_end(row.signature)
            return layout
        layout = Layout(self._layouts_made, row.signature, self._partition.boundaries, self._plan, self._capacity)
        self._layouts_made += 1
        for name in self._partition.inputs:
            if name in self._plan.slot_of:
                boundary = self._partition.boundaries[name]
                layout.learn(name, _with_axis(boundary, row.values[name]).shape, 1)
        self._layouts[row.signature] = layout
        if len(self._layouts) > LAYOUTS_MAX:
            self._layouts.popitem(last=False)
        return layout

    def _reframe(self, state: SubBatch) -> None:
        """Find (or begin) the bindings for this sub-batch's present number of rows and addresses."""
        buffers = state.buffers
        if buffers.attached is None or buffers.attached[0] != buffers.version:
            buffers.attached = (buffers.version, OrderedDict())
        frames: OrderedDict[tuple[int, int], Frame] = buffers.attached[1]
        key = (state.layout.key, state.rows)
        frame = frames.get(key)
        if frame is None:
            frame = frames[key] = Frame(len(self._pieces))
            if len(frames) > FRAMES_MAX:
                frames.popitem(last=False)
        else:
            frames.move_to_end(key)
        state.frame = frame

    def _view(self, state: SubBatch, name: str) -> NDArray[Any]:
        """A bound tensor of a sub-batch, with all executed rows."""
        view = state.frame.views.get(name)
        if view is None:
            form = state.layout.forms[name]
            view = state.buffers.view(self._plan.slot_of[name], form.dtype, form.shape(state.rows))
            state.frame.views[name] = view
        return view

    def _make_room(self, state: SubBatch, names: Sequence[str]) -> None:
        """Have room for these tensors at the planned number of rows (another may have learned their shapes)."""
        sizes = [0] * self._plan.count
        for name in names:
            if name in self._plan.slot_of:
                slot = self._plan.slot_of[name]
                sizes[slot] = max(sizes[slot], state.layout.forms[name].nbytes(self._capacity))
        if state.buffers.reserve(sizes):
            self._reframe(state)

    def _bind(self, state: SubBatch, node: int) -> Step:
        """The call that runs a node on this sub-batch's buffers."""
        piece = self._pieces[node]
        self._make_room(state, piece.outputs)

        def places(names: Sequence[str]) -> list[Place]:
            views = [(name, self._view(state, name)) for name in names]
            return [Place(name, view.dtype, view.shape, view.ctypes.data) for name, view in views]

        return piece.bind(places(piece.inputs), places(piece.outputs))

    def _run_free(self, state: SubBatch, node: int) -> None:
        """Run a node with outputs allocated by ONNX Runtime; learn their shapes, and store what has a buffer."""
        piece = self._pieces[node]
        slot_of = self._plan.slot_of
        outputs = piece.run({n: self._view(state, n) if n in slot_of else state.values[n] for n in piece.inputs})
        for name, value in outputs.items():
            if name in slot_of:
                state.layout.learn(name, shape_of(value), state.rows)
        self._make_room(state, piece.outputs)
        for name, value in outputs.items():
            if name in slot_of:
                copy_out(value, self._view(state, name))
            else:
                state.values[name] = value
        for name in [name for name in state.values if name not in self._plan.live[node + 1]]:
            del state.values[name]

    # -- rows in and out -----------------------------------------------------------------------------------------

    def _gather(self, state: SubBatch, name: str, given: Sequence[Any]) -> None:
        """Store one input of all rows."""
        boundary = self._partition.boundaries[name]
        if boundary.kind is not Kind.ROWS or boundary.axis is None:
            if name in self._plan.slot_of:
                self._view(state, name)[...] = given[0]
            else:
                state.values[name] = given[0]
            return
        padded = [_with_axis(boundary, value) for value in (*given, *[given[-1]] * (state.rows - len(given)))]
        if name in self._plan.slot_of:
            np.concatenate(padded, boundary.axis, out=self._view(state, name))
        else:
            state.values[name] = np.concatenate(padded, boundary.axis)

    def _scatter(self, state: SubBatch, name: str) -> list[Any]:
        """One output, per request."""
        boundary = self._partition.boundaries[name]
        value = self._array(state, name)
        count = len(state.requests)
        if boundary.kind is Kind.ROWS and boundary.axis is not None:
            rows = by_row(value, boundary.axis, state.rows)[:count]
            if boundary.unit:
                rows = rows.squeeze(boundary.axis + 1)
            return [np.array(row, order="C") for row in rows]
        if boundary.kind is Kind.SIZE:
            value = _size_at(boundary, value, state.rows, 1)
        return [np.array(value) if isinstance(value, np.ndarray) else value for _ in range(count)]

    def _array(self, state: SubBatch, name: str) -> Any:
        """A live tensor as an array (or list), wherever it lies."""
        return self._view(state, name) if name in self._plan.slot_of else to_python(state.values[name])

    def _append(self, large: SubBatch, small: SubBatch, total: int) -> None:
        """Copy the rows of ``small`` behind those of ``large``, which then executes ``total`` rows."""
        have, more = len(large.requests), len(small.requests)
        rebuilt: dict[str, Any] = {}
        for name in self._plan.live[large.cursor]:
            boundary = self._partition.boundaries[name]
            if boundary.kind is Kind.SIZE:
                rebuilt[name] = _size_at(boundary, self._array(large, name), large.rows, total)
            elif boundary.kind is not Kind.ROWS or boundary.axis is None:
                continue
            elif boundary.axis == 0 and name in self._plan.slot_of:
                unit = large.layout.forms[name].unit_bytes
                slot = self._plan.slot_of[name]
                target = large.buffers.bytes_of(slot)[have * unit : (have + more) * unit]
                target[:] = small.buffers.bytes_of(slot)[: more * unit]
            else:
                sides = [
                    take_rows(self._array(side, name), boundary.axis, side.rows, range(len(side.requests)))
                    for side in (large, small)
                ]
                rebuilt[name] = np.concatenate(sides, boundary.axis)
        self._resize(large, total, rebuilt)

    def _keep(self, state: SubBatch, order: Sequence[int]) -> None:
        """Keep these rows, in this order (see `survivors`: rows only move forward, into holes)."""
        rebuilt: dict[str, Any] = {}
        for name in self._plan.live[state.cursor]:
            boundary = self._partition.boundaries[name]
            if boundary.kind is Kind.SIZE:
                rebuilt[name] = _size_at(boundary, self._array(state, name), state.rows, len(order))
            elif boundary.kind is not Kind.ROWS or boundary.axis is None:
                continue
            elif boundary.axis == 0 and name in self._plan.slot_of:
                unit = state.layout.forms[name].unit_bytes
                memory = state.buffers.bytes_of(self._plan.slot_of[name])
                for row, origin in enumerate(order):
                    if row != origin:
                        memory[row * unit : (row + 1) * unit] = memory[origin * unit : (origin + 1) * unit]
            else:
                rebuilt[name] = take_rows(self._array(state, name), boundary.axis, state.rows, order)
        self._resize(state, len(order), rebuilt)

    def _resize(self, state: SubBatch, rows: int, rebuilt: Mapping[str, Any]) -> None:
        """Execute another number of rows from now on, and store the tensors that had to be built anew for it."""
        state.rows = rows
        self._reframe(state)
        for name, value in rebuilt.items():
            if name in self._plan.slot_of:
                self._view(state, name)[...] = value
            else:
                state.values[name] = value


def _can_be_bound(boundary: Boundary) -> bool:
    """Whether a tensor is plain memory whose shape follows from signature and rows."""
    return boundary.kind is not Kind.OPAQUE and boundary.dtype in ONNX_TYPES


def _with_axis(boundary: Boundary, value: NDArray[Any]) -> NDArray[Any]:
    """One row as a batch of one."""
    if boundary.kind is not Kind.ROWS or boundary.axis is None or not boundary.unit:
        return value
    return np.expand_dims(value, boundary.axis)


def _size_at(boundary: Boundary, value: Any, rows: int, wanted: int) -> Any:
    """What a SIZE tensor seen at ``rows`` rows is at ``wanted`` rows."""
    if rows == wanted:
        return value
    if boundary.proportional is None:
        raise InvariantError(f"tensor {boundary.name!r} counts rows, but nothing says which of its elements do")
    follows = np.array(boundary.proportional, dtype=bool).reshape(np.shape(value))
    return np.where(follows, value // rows * wanted, value).astype(value.dtype)
