"""The rows of every sub-batch of a torch model, as the tensors its nodes made.

Owns: `TorchBatch` and `TorchStore`: how rows get in, out, together and apart.
Must not know: how nodes are run, the scheduler.

A sub-batch holds the values alive at its cursor; torch's allocator owns the memory. Parking keeps them, merging appends
rows, evicting selects them. Nobody writes to a value after it was made, so values may share memory; but for inputs that
grow where rows go round (`Cycle`): each is a sub-batch's own, with room for rows to come, and written in place.

Rows that move keep the order in which their dimensions lie in memory (channels last, transposed): kernels choose by it,
and a node must see the layout that its operators were cut with.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lazybatch.errors import ExecutionError
from lazybatch.executors.columns import Columns
from lazybatch.executors.cycle import Cycle, Growth, lives
from lazybatch.executors.rows import Kept, batched, by_first, handed_out, size_at, with_axis
from lazybatch.executors.tally import Tally
from lazybatch.partition.pieces import Boundary, Kind, Partition
from lazybatch.partition.tensors import to_array


class TorchBatch:
    """Rows that move together. rows: executed rows, padding included; the requests' rows come first.

    room: what lies behind inputs that grow: tensors with rows to spare. shapes: of the states, at one row.
    """

    __slots__ = ("__weakref__", "cursor", "requests", "room", "rows", "shapes", "signature", "tally", "values")

    def __init__(self, requests: list[int], rows: int, signature: Hashable) -> None:
        self.requests = requests
        self.rows = rows
        self.signature = signature
        self.cursor = 0
        self.values: dict[str, Any] = {}
        self.room: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.tally: Tally | None = None


class TorchStore:
    """A `LoopStore` of tensors. places: input name -> an (empty) tensor of the type and on the device that nodes want.

    cycle: how tensors go round, where rows run the model again and again.
    """

    def __init__(
        self, partition: Partition, capacity: int, places: Mapping[str, Tensor], cycle: Cycle | None = None
    ) -> None:
        self.capacity = capacity
        known = lives(partition, cycle)
        self.live = known.alive
        self._moved = known.moved
        self._partition = partition
        self._places = places
        self._cycle = Cycle() if cycle is None else cycle
        ends = self._cycle.read.union(self._cycle.carried.values())
        self._lasting = ends if self._cycle.grown else frozenset()

    def begin(self, requests: Sequence[int], columns: Columns, signature: Hashable, rows: int) -> TorchBatch:
        """A new sub-batch with its inputs gathered; ``rows`` beyond the requests repeat the last one."""
        state = TorchBatch(list(requests), rows, signature)
        for name in self._partition.inputs:
            if name not in self._moved[0]:
                continue
            boundary, place, column = self._partition.boundaries[name], self._places[name], columns[name]
            if name in self._cycle.carried and self._partition.joinable:
                state.shapes[name] = np.shape(with_axis(boundary, column.first))
            if name in self._cycle.grown:
                self._make_room(state, name, column.first)
                continue
            if boundary.kind is Kind.ROWS and boundary.axis is not None:
                array = column.batch(boundary, rows)
            else:
                array = column.first
            state.values[name] = torch.from_numpy(array).to(device=place.device, dtype=place.dtype)
        return state

    def append(self, large: TorchBatch, small: TorchBatch, total: int, without: Collection[str] = ()) -> None:
        """Put the rows of ``small`` behind those of ``large``, which then executes ``total`` rows."""
        for name in self._moved[large.cursor]:
            boundary, value = self._partition.boundaries[name], large.values[name]
            if name in large.room:
                self._append_room(large, small, name, name not in without)
                continue
            if boundary.kind is Kind.SIZE:
                large.values[name] = _number_at(boundary, value, large.rows, total)
            elif boundary.kind is Kind.ROWS and boundary.axis is not None:
                sides = [_first(side.values[name], boundary.axis, side) for side in (large, small)]
                large.values[name] = appended(sides, boundary.axis)
        large.rows = total

    def keep(self, state: TorchBatch, kept: Kept) -> None:
        """Keep these rows, at these places."""
        order = kept.order()
        for name in self._moved[state.cursor]:
            boundary, value = self._partition.boundaries[name], state.values[name]
            if name in state.room:
                for place, origin in kept.moved.items():
                    state.room[name][place] = state.room[name][origin]
                state.values[name] = state.room[name][: kept.rows]
                continue
            if boundary.kind is Kind.SIZE:
                state.values[name] = _number_at(boundary, value, state.rows, kept.rows)
            elif boundary.kind is Kind.ROWS and boundary.axis is not None:
                state.values[name] = selected(value, boundary.axis, state.rows, order)
        state.rows = kept.rows

    def scatter(self, state: TorchBatch, name: str) -> list[Any]:
        """One output, per request."""
        boundary = self._partition.boundaries[name]
        value = to_array(state.values[name])
        return handed_out(boundary, value, state.rows, len(state.requests), joinable=self._partition.joinable)

    def end(self, state: TorchBatch) -> None:
        """Let go of a sub-batch's tensors."""
        state.values.clear()
        state.room.clear()

    def clear(self) -> None:
        """Nothing is held besides what sub-batches hold."""

    # -- rows that go round ----------------------------------------------------------------------------------------

    def apart(self, state: TorchBatch, names: Sequence[str], made: Sequence[Any]) -> Sequence[Any]:
        """What a node just made; what is still read when slices are written to inputs that grow, and shows the memory
        of one, becomes a tensor of its own: it is what the node saw."""
        if not self._lasting:
            return made
        spans = [_span(state.values[name]) for name in self._cycle.grown]
        return [
            value.clone()
            if name in self._lasting and any(start <= value.data_ptr() < end for start, end in spans)
            else value
            for name, value in zip(names, made, strict=True)
        ]

    def again(self, state: TorchBatch) -> None:
        """Behind the last node: what is carried is now the first node's input. No tensor moves.

        Raises `ExecutionError` for a state that would change its shape.
        """
        values, carried = state.values, self._cycle.carried
        kept = {name: values[name] for name in self._moved[0] if name not in carried}
        for name, output in carried.items():
            if name not in self._moved[0]:
                continue
            value = values[output]
            shape = self._partition.boundaries[name].axis, state.shapes.get(name)
            if shape[1] is not None and tuple(value.shape) != _at(shape[1], shape[0], state.rows):
                raise ExecutionError(
                    f"state {name!r} has the shape {list(_at(shape[1], shape[0], state.rows))} at {state.rows} rows, "
                    f"but {output!r}, which it is in the next iteration, has {list(value.shape)}"
                )
            kept[name] = value
        state.values = kept

    def in_place(self, name: str) -> bool:
        """See `LoopStore.in_place`: operators make new tensors, and none is written again."""
        return False

    def feed(self, state: TorchBatch, name: str, values: NDArray[Any]) -> None:
        """Write an input of all requests' rows, one per entry of the first axis."""
        place = self._places[name]
        array = np.array(batched(self._partition.boundaries[name], values, state.rows))
        state.values[name] = torch.from_numpy(array).to(device=place.device, dtype=place.dtype)

    def peek(self, state: TorchBatch, name: str, like: str | None = None) -> NDArray[Any]:
        """A tensor with the requests' rows on the first axis. A view, to be read before anything else happens.

        like: the tensor whose rows lie as this one's do, where nothing is proven of its own.
        """
        value = to_array(state.values[name])
        return by_first(self._as_of(name, like), value, state.rows)[: len(state.requests)]

    def blank(self, state: TorchBatch, name: str, rows: NDArray[np.bool_]) -> None:
        """Fill these rows of an input that grows with zeros, and padding with them."""
        with torch.inference_mode():
            target = self._by_row(state, name)
            target[len(rows) :] = 0
            if rows.all():
                target[: len(rows)] = 0
            else:
                target[torch.from_numpy(np.flatnonzero(rows)).to(target.device)] = 0

    def extend(
        self, state: TorchBatch, name: str, growth: Growth, rows: NDArray[Any] | None, positions: NDArray[np.int64]
    ) -> None:
        """Write the slice of each of these rows (None: all of the requests') at its own position, in place.

        Raises `ExecutionError` for a slice of the wrong shape.
        """
        target, slices = self._by_row(state, name), self._by_row(state, growth.slice, name)
        want = target.shape[1 : growth.axis + 1] + target.shape[growth.axis + 2 :]
        if slices.shape[1:] != want:
            raise ExecutionError(
                f"state {name!r} takes slices of the shape {list(want)}, but {growth.slice!r} has the shape "
                f"{list(slices.shape[1:])} per row"
            )
        if rows is None:
            rows = np.arange(len(positions))
        if target.device.type == "cpu" and target.dtype is not torch.bfloat16:  # the same memory, with less ado
            np.moveaxis(target.numpy(), growth.axis + 1, 1)[rows, positions] = slices.numpy()[rows]
            return
        with torch.inference_mode():
            index = torch.from_numpy(rows).to(target.device)
            # Positions are counted on by their owner while a device may still be reading: it gets its own.
            where = torch.tensor(positions, device=target.device)
            target.movedim(growth.axis + 1, 1)[index, where] = slices[index]

    def _by_row(self, state: TorchBatch, name: str, like: str | None = None) -> Tensor:
        """A tensor with the executed rows on the first axis, as a view."""
        boundary = self._as_of(name, like)
        value: Tensor = state.values[name]
        if boundary.kind is not Kind.ROWS or boundary.axis is None:
            return value.unsqueeze(0)
        return value if boundary.axis == 0 else value.movedim(boundary.axis, 0)

    def _as_of(self, name: str, like: str | None) -> Boundary:
        boundary = self._partition.boundaries[name]
        return boundary if like is None or boundary.kind is not Kind.OPAQUE else self._partition.boundaries[like]

    def _make_room(self, state: TorchBatch, name: str, one: NDArray[Any]) -> None:
        """Memory of its own for an input that grows; its content is whatever lies there."""
        boundary, place = self._partition.boundaries[name], self._places[name]
        shape = batched(boundary, one[np.newaxis], state.rows).shape
        value = torch.empty(shape, dtype=place.dtype, device=place.device)
        state.values[name] = value
        if boundary.kind is Kind.ROWS and boundary.axis == 0:
            state.room[name] = value

    def _append_room(self, large: TorchBatch, small: TorchBatch, name: str, copied: bool) -> None:
        """Rows behind rows in an input that grows; those that are there move only where there is no room behind."""
        have, more = len(large.requests), len(small.requests)
        room = large.room[name]
        if len(room) < have + more:
            larger = min(max(have + more, 2 * len(room)), max(self.capacity, have + more))
            room = torch.empty((larger, *room.shape[1:]), dtype=room.dtype, device=room.device)
            room[:have] = large.room[name][:have]
            large.room[name] = room
        if copied:
            room[have : have + more] = small.room[name][:more]
        large.values[name] = room[: have + more]


def _span(value: Tensor) -> tuple[int, int]:
    """Where a tensor that steps through all of its memory lies: the first byte, and the one behind the last."""
    start = value.data_ptr()
    return start, start + value.nbytes


def _at(shape: tuple[int, ...], axis: int | None, rows: int) -> tuple[int, ...]:
    """What a shape at one row is at so many."""
    return shape if axis is None else (*shape[:axis], shape[axis] * rows, *shape[axis + 1 :])


def _number_at(boundary: Boundary, value: Any, rows: int, wanted: int) -> Any:
    """What a number (or tensor of numbers) computed from the rows is at another number of them."""
    if isinstance(value, Tensor):
        return torch.from_numpy(size_at(boundary, to_array(value), rows, wanted)).to(value.device)
    return int(size_at(boundary, np.asarray(value), rows, wanted))


def _first(value: Tensor, axis: int, state: TorchBatch) -> Tensor:
    """The requests' rows, without padding."""
    return value.narrow(axis, 0, value.shape[axis] // state.rows * len(state.requests))


def appended(values: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one behind the other along an axis, lying in memory as the first one does."""
    order = _lying(values[0])
    if order is None:
        return torch.cat(tuple(values), axis)
    joined = torch.cat([value.permute(order) for value in values], order.index(axis))
    return joined.permute(_inverse(order))


def selected(value: Tensor, axis: int, rows: int, order: Sequence[int]) -> Tensor:
    """These rows of a tensor, in this order, lying in memory as it does. A row owns an equal share of the axis."""
    share = value.shape[axis] // rows
    if list(order) == list(range(len(order))):
        return value.narrow(axis, 0, share * len(order))
    index = torch.tensor([row * share + k for row in order for k in range(share)], device=value.device)
    lying = _lying(value)
    if lying is None:
        return value.index_select(axis, index)
    return value.permute(lying).index_select(lying.index(axis), index).permute(_inverse(lying))


def _lying(value: Tensor) -> list[int] | None:
    """Dimensions from the one with the widest steps to the one with the narrowest; None where they stand in order."""
    steps = value.stride()
    order = sorted(range(value.ndim), key=lambda dim: -steps[dim])
    return None if order == list(range(value.ndim)) or value.is_contiguous() else order


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]
