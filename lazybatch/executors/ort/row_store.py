"""Where the rows of every sub-batch lie, and how they get in, out, together and apart.

Owns: `RowStore`: buffers, shapes and row order. What goes round is moved by `LoopRowStore`, all else here.
Must not know: sessions, nodes being run, the scheduler.

A sub-batch holds one `BufferSet` from its first node to its last. Merging copies the rows of the smaller side behind
those of the larger, evicting moves the last rows into the holes, and both touch only what is alive at that cursor.
Tensors that are not plain memory of a known form (nothing proven, strings, on a device) are kept as values instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.executors.columns import Column, Columns
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.ort.buffers import BufferPool
from lazybatch.executors.ort.layout import Layout
from lazybatch.executors.ort.piece import ONNX_TYPES, to_python
from lazybatch.executors.ort.slots import assign_slots
from lazybatch.executors.ort.sub_batch import Frame, SubBatch
from lazybatch.executors.rows import Kept, batched, by_first, gathered, handed_out, size_at, take_rows, with_axis
from lazybatch.partition.pieces import Boundary, Kind, Partition

FRAMES_MAX = 1024
"""Prepared (signature, rows, turn) combinations per buffer set; the least recently used go first."""
LAYOUTS_MAX = 4096
"""Signatures whose shapes are remembered."""


class RowStore:
    """The memory behind all sub-batches of one model.

    capacity: rows that buffers are laid out for. with_buffers: whether tensors live in host memory at all.
    cycle: how tensors go round, where rows run the model again and again: see `LoopRowStore`.
    """

    def __init__(self, partition: Partition, capacity: int, *, with_buffers: bool, cycle: Cycle | None = None) -> None:
        self.capacity = capacity
        self._partition = partition
        carried = {} if cycle is None else dict(cycle.carried)
        held = {n for n, b in partition.boundaries.items() if with_buffers and _can_be_bound(b)}
        if not partition.joinable:  # whether an answer is one row was seen, not proved: it is not bound to that shape
            held -= (set(partition.outputs) - set(partition.inputs)) | set(carried)
        self.plan = assign_slots(partition, held, cycle)
        self.pool = BufferPool(self.plan.count)
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()
        self._layouts_made = 0
        self._becomes = {output: name for name, output in carried.items() if name != output and {name, output} <= held}
        self._given = [name for name in partition.inputs if name in self.plan.moved[0]]
        self._nowhere = Frame(len(partition.pieces))
        self._grown = frozenset() if cycle is None else frozenset(cycle.grown)
        # By cursor: what moves as one opaque element per row, and what is built anew for another number of rows.
        self._as_records: list[list[str]] = []
        self._rebuilt: list[list[Boundary]] = []
        for names in self.plan.moved:
            moved = [partition.boundaries[name] for name in names]
            moved = [one for one in moved if one.kind is Kind.SIZE or (one.kind is Kind.ROWS and one.axis is not None)]
            plain = [one.name for one in moved if one.kind is Kind.ROWS and one.axis == 0 and self.has_buffer(one.name)]
            self._as_records.append(plain)
            self._rebuilt.append([one for one in moved if one.name not in plain])

    def has_buffer(self, name: str) -> bool:
        """Whether this tensor lives in a buffer (and not as a value)."""
        return name in self.plan.slot_of

    def begin(self, requests: Sequence[int], columns: Columns, signature: Hashable, rows: int) -> SubBatch:
        """A new sub-batch with its inputs gathered; ``rows`` beyond the requests repeat the last one.

        Where rows go round, inputs written per iteration are not, and those that grow have any content (`LoopStore`).
        """
        layout = self.layout(signature, {name: column.first for name, column in columns.items()})
        state = SubBatch(list(requests), rows, layout, self._nowhere)
        state.awaited = columns
        self.settle(state)
        return state

    def settle(self, state: SubBatch) -> None:
        """Give rows that wait for it buffers, and put there what they are given."""
        columns, state.awaited = state.awaited, None
        assert columns is not None, "these rows lie in buffers"
        state.buffers = self.pool.take()
        try:
            state.buffers.reserve(state.layout.slot_bytes)
            self._reframe(state)
            for name in self._given:
                if name not in self._grown:
                    self._gather(state, name, columns[name])
                elif not self.has_buffer(name):
                    boundary = self._partition.boundaries[name]
                    state.values[name] = batched(boundary, np.array(columns[name].first)[np.newaxis], state.rows)
        except BaseException:
            self.pool.give(state.buffers)
            state.awaited = columns
            raise

    def end(self, state: SubBatch) -> None:
        """Take the buffers back; what is bound to them serves the next sub-batch."""
        if state.awaited is None:
            self.pool.give(state.buffers)

    def clear(self) -> None:
        """Free everything."""
        self._layouts.clear()
        self.pool.clear()

    def layout(self, signature: Hashable, row: Mapping[str, Any]) -> Layout:
        """What is known of a signature. row: all inputs of one of its rows."""
        layout = self._layouts.get(signature)
        if layout is not None:
            self._layouts.move_to_end(signature)
            return layout
        layout = Layout(
            self._layouts_made, signature, self._partition.boundaries, self.plan, self.capacity, self._becomes
        )
        self._layouts_made += 1
        for name in self._partition.inputs:
            if self.has_buffer(name):
                boundary = self._partition.boundaries[name]
                layout.learn(name, with_axis(boundary, row[name]).shape, 1)
        self._layouts[signature] = layout
        if len(self._layouts) > LAYOUTS_MAX:
            self._layouts.popitem(last=False)
        return layout

    def _reframe(self, state: SubBatch) -> None:
        """Find (or begin) the bindings for this sub-batch's present number of rows, turn and addresses."""
        buffers = state.buffers
        if buffers.attached is None or buffers.attached[0] != buffers.version:
            buffers.attached = (buffers.version, OrderedDict())
        frames: OrderedDict[tuple[int, int, int], Frame] = buffers.attached[1]
        key = (state.layout.key, state.rows, state.turn)
        frame = frames.get(key)
        if frame is None:
            frame = frames[key] = Frame(len(self._partition.pieces))
            if len(frames) > FRAMES_MAX:
                frames.popitem(last=False)
        else:
            frames.move_to_end(key)
        state.frame = frame

    def _slots(self, state: SubBatch) -> Mapping[str, int]:
        return self.plan.turned if state.turn else self.plan.slot_of

    def view(self, state: SubBatch, name: str) -> NDArray[Any]:
        """A bound tensor of a sub-batch, with all executed rows."""
        view = state.frame.views.get(name)
        if view is None:
            if state.awaited is not None:
                self.settle(state)
            form = state.layout.forms[name]
            view = state.buffers.view(self._slots(state)[name], form.dtype, form.shape(state.rows))
            state.frame.views[name] = view
        return view

    def make_room(self, state: SubBatch, names: Sequence[str]) -> None:
        """Have room for these tensors at the planned number of rows (another may have learned their shapes)."""
        sizes = [0] * self.plan.count
        slots = self._slots(state)
        for name in names:
            if self.has_buffer(name):
                sizes[slots[name]] = max(sizes[slots[name]], state.layout.forms[name].nbytes(self.capacity))
        if state.buffers.reserve(sizes):
            self._reframe(state)

    def _gather(self, state: SubBatch, name: str, column: Column) -> None:
        """Store one input of all rows."""
        boundary = self._partition.boundaries[name]
        if boundary.kind is not Kind.ROWS or boundary.axis is None:
            self._put(state, name, column.first)
        elif not self.has_buffer(name):
            state.values[name] = column.batch(boundary, state.rows)
        elif column.rows is None or isinstance(column.rows, np.ndarray):
            column.write(self._by_row(state, name))
        else:
            gathered(boundary, column.rows, state.rows, out=self.view(state, name))

    def _put(self, state: SubBatch, name: str, value: Any) -> None:
        """Store a tensor with all executed rows."""
        if self.has_buffer(name):
            self.view(state, name)[...] = value
        else:
            state.values[name] = value

    def scatter(self, state: SubBatch, name: str) -> list[Any]:
        """One output, per request."""
        boundary = self._partition.boundaries[name]
        value = self._array(state, name)
        return handed_out(boundary, value, state.rows, len(state.requests), joinable=self._partition.joinable)

    def first_row(self, state: SubBatch, name: str) -> Any:
        """A tensor as it would be for the first row alone; None where it cannot be taken apart."""
        boundary = self._partition.boundaries[name]
        value = self._array(state, name)
        if boundary.kind is Kind.OPAQUE:
            return None
        if boundary.kind is Kind.SIZE:
            return size_at(boundary, value, state.rows, 1)
        if boundary.kind is Kind.ROWS and boundary.axis is not None:
            return take_rows(value, boundary.axis, state.rows, [0])
        return value

    def _array(self, state: SubBatch, name: str) -> Any:
        """A live tensor as an array (or list), wherever it lies."""
        return self.view(state, name) if name in self.plan.slot_of else to_python(state.values[name])

    def peek(self, state: SubBatch, name: str, like: str | None = None) -> NDArray[Any]:
        """A tensor with the requests' rows on the first axis. A view, to be read before anything else happens.

        like: the tensor whose rows lie as this one's do, where nothing is proven of its own.
        """
        found = state.frame.by_row.get(name)
        if found is None:
            found = self._by_row(state, name, like)
        count = len(state.requests)
        return found if len(found) == count else found[:count]

    def _by_row(self, state: SubBatch, name: str, like: str | None = None) -> NDArray[Any]:
        """A tensor with the executed rows on the first axis, as a view of where it lies."""
        boundary = self._partition.boundaries[name]
        if like is not None and boundary.kind is Kind.OPAQUE:
            boundary = self._partition.boundaries[like]
        if state.awaited is not None:
            self.settle(state)
        if not self.has_buffer(name):
            value = state.values[name]
            return by_first(boundary, value if isinstance(value, np.ndarray) else to_python(value), state.rows)
        found = state.frame.by_row.get(name)
        if found is None:
            found = state.frame.by_row[name] = by_first(boundary, self.view(state, name), state.rows)
        return found

    # -- rows that move --------------------------------------------------------------------------------------------

    def append(self, large: SubBatch, small: SubBatch, total: int, without: Collection[str] = ()) -> None:
        """Copy the rows of ``small`` behind those of ``large``, which then executes ``total`` rows.

        without: tensors whose content in ``small`` nobody needs.
        """
        have, more = len(large.requests), len(small.requests)
        for name in self._as_records[large.cursor]:
            if name not in without:
                self._records(large, name)[have : have + more] = self._records(small, name)[:more]
        rebuilt: dict[str, Any] = {}
        for boundary in self._rebuilt[large.cursor]:
            name, axis = boundary.name, boundary.axis
            if boundary.kind is Kind.SIZE:
                rebuilt[name] = size_at(boundary, self._array(large, name), large.rows, total)
                continue
            assert axis is not None, "its rows lie on one"
            sides = [
                take_rows(self._array(side, name), axis, side.rows, range(len(side.requests)))
                for side in (large, small)
            ]
            rebuilt[name] = np.concatenate(sides, axis)
        self._resize(large, total, rebuilt)

    def keep(self, state: SubBatch, kept: Kept) -> None:
        """Keep these rows, at these places."""
        if kept.moved:
            into, out_of = kept.into, kept.out_of
            for name in self._as_records[state.cursor]:
                records = self._records(state, name)
                records[into] = records[out_of]
        rebuilt: dict[str, Any] = {}
        for boundary in self._rebuilt[state.cursor]:
            value = self._array(state, boundary.name)
            if boundary.kind is Kind.SIZE:
                rebuilt[boundary.name] = size_at(boundary, value, state.rows, kept.rows)
            else:
                assert boundary.axis is not None, "its rows lie on one"
                rebuilt[boundary.name] = take_rows(value, boundary.axis, state.rows, kept.order())
        self._resize(state, kept.rows, rebuilt)

    def _records(self, state: SubBatch, name: str) -> NDArray[Any]:
        """A bound tensor with its rows on axis 0 as one opaque element per row, of all rows that there is room for.

        NumPy moves rows so in one call, however few they are, and lets no other thread in meanwhile.
        """
        records: NDArray[Any] | None = state.frame.records.get(name)
        if records is None:
            memory, form = state.buffers.bytes_of(self._slots(state)[name]), state.layout.forms[name]
            unit = form.unit_bytes
            rows = len(memory) // unit if unit else self.capacity
            records = np.ndarray((rows,), np.dtype((np.void, unit)), memory)
            state.frame.records[name] = records
        return records

    def _resize(self, state: SubBatch, rows: int, rebuilt: Mapping[str, Any]) -> None:
        """Execute another number of rows from now on, and store the tensors that had to be built anew for it."""
        state.rows = rows
        self._reframe(state)
        for name, value in rebuilt.items():
            self._put(state, name, value)


def _can_be_bound(boundary: Boundary) -> bool:
    """Whether a tensor is plain memory whose shape follows from signature and rows."""
    return boundary.kind is not Kind.OPAQUE and boundary.dtype in ONNX_TYPES
