"""The rows of every sub-batch of a torch model, as the tensors its nodes made.

Owns: `TorchBatch` and `TorchStore`: how rows get in, out, together and apart.
Must not know: how nodes are run, the scheduler.

A sub-batch holds the values alive at its cursor; torch's allocator owns the memory. Parking keeps them, merging appends
rows, evicting selects them. Nobody writes to a value after it was made, so values may share memory.

Rows that move keep the order in which their dimensions lie in memory (channels last, transposed): kernels choose by it,
and a node must see the layout that its operators were cut with.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lazybatch.executors.base import Row
from lazybatch.executors.rows import gathered, handed_out, size_at
from lazybatch.executors.slots import liveness
from lazybatch.partition.pieces import Boundary, Kind, Partition
from lazybatch.partition.torch.source import to_array


class TorchBatch:
    """Rows that move together. rows: executed rows, padding included; the requests' rows come first."""

    __slots__ = ("cursor", "requests", "rows", "signature", "values")

    def __init__(self, requests: list[int], rows: int, signature: Hashable) -> None:
        self.requests = requests
        self.rows = rows
        self.signature = signature
        self.cursor = 0
        self.values: dict[str, Any] = {}


class TorchStore:
    """A `Store` of tensors. places: input name -> an (empty) tensor of the type and on the device that nodes want."""

    def __init__(self, partition: Partition, capacity: int, places: Mapping[str, Tensor]) -> None:
        self.capacity = capacity
        self.live = liveness(partition)
        self._partition = partition
        self._places = places

    def begin(self, requests: Mapping[int, Row], rows: int) -> TorchBatch:
        """A new sub-batch with its inputs gathered; ``rows`` beyond the requests repeat the last one."""
        given = list(requests.values())
        state = TorchBatch(list(requests), rows, given[0].signature)
        for name in self._partition.inputs:
            if name not in self.live[0]:
                continue
            boundary, place = self._partition.boundaries[name], self._places[name]
            if boundary.kind is Kind.ROWS and boundary.axis is not None:
                array = gathered(boundary, [row.values[name] for row in given], rows)
            else:
                array = given[0].values[name]
            state.values[name] = torch.from_numpy(array).to(device=place.device, dtype=place.dtype)
        return state

    def append(self, large: TorchBatch, small: TorchBatch, total: int) -> None:
        """Put the rows of ``small`` behind those of ``large``, which then executes ``total`` rows."""
        for name in self.live[large.cursor]:
            boundary, value = self._partition.boundaries[name], large.values[name]
            if boundary.kind is Kind.SIZE:
                large.values[name] = _number_at(boundary, value, large.rows, total)
            elif boundary.kind is Kind.ROWS and boundary.axis is not None:
                sides = [_first(side.values[name], boundary.axis, side) for side in (large, small)]
                large.values[name] = appended(sides, boundary.axis)
        large.rows = total

    def keep(self, state: TorchBatch, order: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        for name in self.live[state.cursor]:
            boundary, value = self._partition.boundaries[name], state.values[name]
            if boundary.kind is Kind.SIZE:
                state.values[name] = _number_at(boundary, value, state.rows, len(order))
            elif boundary.kind is Kind.ROWS and boundary.axis is not None:
                state.values[name] = selected(value, boundary.axis, state.rows, order)
        state.rows = len(order)

    def scatter(self, state: TorchBatch, name: str) -> list[Any]:
        """One output, per request."""
        boundary = self._partition.boundaries[name]
        value = to_array(state.values[name])
        return handed_out(boundary, value, state.rows, len(state.requests), joinable=self._partition.joinable)

    def end(self, state: TorchBatch) -> None:
        """Let go of a sub-batch's tensors."""
        state.values.clear()

    def clear(self) -> None:
        """Nothing is held besides what sub-batches hold."""


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
