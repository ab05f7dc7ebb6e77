"""How the rows of a loop's body go round in their buffers.

Owns: `LoopRowStore`: what becomes of buffers and values between one iteration and the next.
Must not know: sessions, nodes being run, who goes round how often, the scheduler.

A sub-batch stays in its buffer set: carried inputs change places with the outputs they are next, which costs nothing
and finds every binding made before; those that the body writes over in place do not even do that; inputs that grow are
written one slice per row; and only what is given per iteration is written afresh.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError
from lazybatch.executors.columns import Columns
from lazybatch.executors.cycle import Cycle, Growth
from lazybatch.executors.ort.row_store import RowStore
from lazybatch.executors.ort.sub_batch import Landing, SubBatch
from lazybatch.executors.rows import Kept, batched, size_at
from lazybatch.partition.pieces import Kind, Partition

_COUNT = np.arange(256)
"""Row numbers, made once."""
_FEW = 500
"""Up to so many numbers are copied by NumPy as they are without letting go of the interpreter."""


class LoopRowStore(RowStore):
    """A `LoopStore` of buffers; see the module's text."""

    def __init__(self, partition: Partition, capacity: int, *, with_buffers: bool, cycle: Cycle) -> None:
        super().__init__(partition, capacity, with_buffers=with_buffers, cycle=cycle)
        sources = list(cycle.carried.values())
        others = [
            (name, output)
            for name, output in cycle.carried.items()
            if name != output and name in self.plan.live[0] and name not in {*self.plan.swapped, *self.plan.stayed}
        ]
        apart = {output for output in sources if sources.count(output) == 1} - set(partition.inputs)
        self._renamed = [
            (name, output)
            for name, output in others
            if output in apart and not self.has_buffer(name) and not self.has_buffer(output)
        ]
        self._copied = [pair for pair in others if pair not in self._renamed]
        self._only_turns = not others
        waiting = {name: partition.boundaries[name] for name in self.plan.moved[0]}
        self._sizes = [name for name, boundary in waiting.items() if boundary.kind is Kind.SIZE]
        self._rows_given = [name for name, boundary in waiting.items() if boundary.kind is Kind.ROWS]
        self._joins_directly = all(
            waiting[name].axis == 0 and self.has_buffer(name) and name in partition.inputs for name in self._rows_given
        )

    def begin(self, requests: Sequence[int], columns: Columns, signature: Hashable, rows: int) -> SubBatch:
        """See `RowStore.begin`; but rows that come to a loop often join others before they run, and lie with them then.
        So where they can be written behind those at once, they take no buffers before they must; elsewhere they take
        theirs here. All that can fail about them does so here, and not where others would suffer from it. Raises
        `ValueError` for rows that are not of one shape and of numbers."""
        layout = self.layout(signature, {name: column.first for name, column in columns.items()})
        state = SubBatch(list(requests), rows, layout, self._nowhere)
        state.awaited = columns
        if not self._joins_directly:
            self.settle(state)
            return state
        state.awaited = solid = dict(columns)
        for name in self._rows_given:
            if name not in self._grown:
                solid[name] = columns[name].solid(layout.forms[name].dtype)
        return state

    def append(self, large: SubBatch, small: SubBatch, total: int, without: Collection[str] = ()) -> None:
        """See `RowStore.append`."""
        if large.awaited is not None:
            self.settle(large)
        if small.awaited is None:
            super().append(large, small, total, without)
            return
        have, columns = len(large.requests), small.awaited
        sizes = {
            name: size_at(self._partition.boundaries[name], self._array(large, name), large.rows, total)
            for name in self._sizes
        }
        self._resize(large, total, sizes)
        for name, target, records, numbers in large.frame.landing or self._land(large):
            if name in without:
                continue
            column = columns[name]
            if numbers * (total - have) > _FEW:
                rows = column.records(target.dtype, records.dtype)
                if rows is not None:
                    records[have:total] = rows
                    continue
            column.write(target[have:])

    def _land(self, state: SubBatch) -> list[Landing]:
        """Where rows that come are written: all inputs that they bring."""
        landing: list[Landing] = []
        for name in self._rows_given:
            target = self._by_row(state, name)
            landing.append(Landing(name, target, self._records(state, name), target.size // len(target)))
        state.frame.landing = landing  # all of it or nothing: what fails halfway must not be taken for the whole
        return landing

    def keep(self, state: SubBatch, kept: Kept) -> None:
        """See `RowStore.keep`."""
        if state.awaited is not None:
            self.settle(state)
        super().keep(state, kept)

    def again(self, state: SubBatch) -> None:
        """Behind the last node: what is carried is now the first node's input. Nothing moves but what is given twice.

        Raises `ExecutionError` for a state that would change its shape.
        """
        turned = state.frame.turned
        if turned is not None and self._only_turns:
            state.turn ^= 1
            state.frame = turned
            return
        copies = [(name, np.array(self._array(state, output))) for name, output in self._copied]
        if self.plan.swapped:
            self._turn(state)
        for name, output in self._renamed:
            state.values[name] = state.values.pop(output)
        for name, value in copies:
            if self.has_buffer(name) and self.view(state, name).shape != value.shape:
                have = list(self.view(state, name).shape)
                raise ExecutionError(f"state {name!r} has the shape {have}, but the next one is {list(value.shape)}")
            self._put(state, name, value)

    def _turn(self, state: SubBatch) -> None:
        """Carried tensors change places."""
        here = state.frame
        state.turn ^= 1
        if here.turned is None:
            self._reframe(state)
            here.turned, state.frame.turned = state.frame, here
        else:
            state.frame = here.turned

    def in_place(self, name: str) -> bool:
        """See `LoopStore.in_place`."""
        return name in self.plan.stayed

    def feed(self, state: SubBatch, name: str, values: NDArray[Any]) -> None:
        """Write an input of all requests' rows, one per entry of the first axis."""
        fed = state.frame.fed.get(name)
        if fed is not None and len(fed) == len(values):
            fed[...] = values
            return
        boundary = self._partition.boundaries[name]
        if not self.has_buffer(name):
            state.values[name] = np.array(batched(boundary, values, state.rows), order="C")
        elif boundary.kind is not Kind.ROWS:
            self.view(state, name)[...] = values[0]
        else:
            target = state.frame.fed[name] = self._by_row(state, name)
            target[: len(values)] = values
            if len(values) < state.rows:
                target[len(values) :] = values[-1]

    def blank(self, state: SubBatch, name: str, rows: NDArray[np.bool_]) -> None:
        """Fill these rows of an input that grows with zeros, and padding with them."""
        target = self._by_row(state, name)
        target[: len(rows)][rows] = 0
        target[len(rows) :] = 0

    def extend(
        self, state: SubBatch, name: str, growth: Growth, rows: NDArray[Any] | None, positions: NDArray[np.int64]
    ) -> None:
        """Write the slice of each of these rows (None: all of the requests') at its own position, in place.

        Raises `ExecutionError` for a slice of the wrong shape.
        """
        pair = state.frame.growing.get(name)
        if pair is None:
            pair = np.moveaxis(self._by_row(state, name), growth.axis + 1, 1), self._by_row(state, growth.slice, name)
            if pair[0].shape[2:] != pair[1].shape[1:]:
                raise ExecutionError(
                    f"state {name!r} takes slices of the shape {list(pair[0].shape[2:])}, but {growth.slice!r} has the "
                    f"shape {list(pair[1].shape[1:])} per row"
                )
            if self.has_buffer(name) and self.has_buffer(growth.slice):
                state.frame.growing[name] = pair
        target, slices = pair
        if rows is None:
            rows = _COUNT[: len(positions)] if len(positions) <= len(_COUNT) else np.arange(len(positions))
            target[rows, positions] = slices[: len(positions)]
        else:
            target[rows, positions] = slices[rows]
