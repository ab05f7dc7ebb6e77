"""Moving rows within and between arrays that carry them on some axis.

Owns: rows gathered into a batch, taken from it, handed out, and the order of those that stay when some go.
Must not know: slots, sub-batches, any runtime.

Row i owns an equal share of the axis, in order. On axis 0 rows are contiguous in memory and can be moved one by one; on
any other axis every element has a new address and the array is built anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvariantError
from lazybatch.partition.pieces import Boundary, Kind

_SOUGHT_MAX = 8
"""Rows that are sought one by one; more are found in one pass over all."""


def by_row(array: NDArray[Any], axis: int, rows: int) -> NDArray[Any]:
    """A view with the rows on a first axis of their own; ``axis`` (now one further back) keeps one row's share."""
    shape = array.shape
    split = array.reshape(*shape[:axis], rows, shape[axis] // rows if rows else 0, *shape[axis + 1 :])
    return np.moveaxis(split, axis, 0)


def copied(rows: NDArray[Any]) -> NDArray[Any]:
    """An array of its own. Rows that lie one behind the other are copied as one opaque element each: NumPy lets no
    other thread in meanwhile, which could keep the interpreter for longer than the copy takes."""
    if not rows.flags.c_contiguous or not rows.nbytes or rows.dtype.hasobject:
        return np.array(rows, order="C")
    made = np.empty_like(rows)
    record = np.dtype((np.void, rows.nbytes // len(rows)))
    made.reshape(-1).view(record)[:] = rows.reshape(-1).view(record)
    return made


def take_rows(array: NDArray[Any], axis: int, rows: int, order: Collection[int]) -> NDArray[Any]:
    """A new array with these of its rows, in this order, on the same axis."""
    taken = np.moveaxis(by_row(array, axis, rows)[list(order)], 0, axis)
    shape = array.shape
    share = shape[axis] // rows
    return np.ascontiguousarray(taken).reshape(*shape[:axis], share * len(order), *shape[axis + 1 :])


def rows_of(wanted: Collection[int], requests: Sequence[int]) -> list[int] | None:
    """Where these requests' rows lie, each once; None where one of them is not there."""
    if len(wanted) > _SOUGHT_MAX:
        sought = set(wanted)
        found = [row for row, request in enumerate(requests) if request in sought]
        return found if len(found) == len(sought) else None
    try:
        return [requests.index(request) for request in dict.fromkeys(wanted)]
    except ValueError:
        return None


class Kept:
    """The rows that stay when some go: at the first ``rows`` places, each where it was, but for those that are moved.

    moved: by place, where its row comes from; nobody comes from a place that somebody came to before. into, out_of: the
    same as arrays.
    """

    __slots__ = ("into", "moved", "out_of", "rows")

    def __init__(self, rows: int, moved: Mapping[int, int]) -> None:
        self.rows = rows
        self.moved = moved
        self.into: NDArray[np.intp] = np.array([*moved], np.intp)
        self.out_of: NDArray[np.intp] = np.array([*moved.values()], np.intp)

    @classmethod
    def of(cls, order: Sequence[int]) -> Kept:
        """These rows, in this order."""
        return cls(len(order), {place: origin for place, origin in enumerate(order) if place != origin})

    @classmethod
    def without(cls, rows: int, gone: Collection[int]) -> Kept:
        """Of so many rows all but these, moving as few as possible: each hole gets the last row that is left.

        >>> Kept.without(5, {1, 3}).order()
        [0, 4, 2]
        """
        moved: dict[int, int] = {}
        for hole in sorted(gone, reverse=True):
            rows -= 1
            last = moved.pop(rows, rows)
            if hole < rows:
                moved[hole] = last
        return cls(rows, moved)

    def order(self) -> list[int]:
        """By place, where its row comes from."""
        order = list(range(self.rows))
        for place, origin in self.moved.items():
            order[place] = origin
        return order


def with_axis(boundary: Boundary, value: NDArray[Any]) -> NDArray[Any]:
    """One row as a batch of one."""
    if boundary.kind is not Kind.ROWS or boundary.axis is None or not boundary.unit:
        return value
    # By index: NumPy's own function takes as long as copying a small row.
    return value[(slice(None),) * boundary.axis + (np.newaxis,)]


def gathered(
    boundary: Boundary, given: Sequence[NDArray[Any]], rows: int, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Rows as callers give them as one batch of ``rows``; those beyond the given repeat the last one."""
    padded = [with_axis(boundary, value) for value in (*given, *[given[-1]] * (rows - len(given)))]
    axis = boundary.axis or 0
    return np.concatenate(padded, axis) if out is None else np.concatenate(padded, axis, out=out)


def by_first(boundary: Boundary, value: NDArray[Any], rows: int) -> NDArray[Any]:
    """A view with one entry per executed row on the first axis, each as callers see it.

    What has no axis for the rows is the same for all of them (and can only be written where there is one).
    """
    axis = boundary.axis
    if boundary.kind is not Kind.ROWS or axis is None or value.ndim <= axis:
        whole = value[np.newaxis]
        return whole if rows == 1 else np.broadcast_to(whole, (rows, *value.shape))
    if axis == 0 and boundary.unit and len(value) == rows:
        return value
    parts = by_row(value, axis, rows)
    return parts.squeeze(axis + 1) if boundary.unit and parts.shape[axis + 1] == 1 else parts


def batched(boundary: Boundary, values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Rows, one per entry of the first axis, as one batch of ``rows``; those beyond the given repeat the last one."""
    if boundary.kind is not Kind.ROWS or boundary.axis is None:
        shared: NDArray[Any] = values[0]
        return shared
    if len(values) < rows:
        values = np.concatenate((values, np.repeat(values[-1:], rows - len(values), 0)))
    if boundary.unit and boundary.axis == 0:
        return values
    axis = boundary.axis
    moved = np.ascontiguousarray(np.moveaxis(values, 0, axis))
    if boundary.unit:
        return moved
    shape = moved.shape
    return moved.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def handed_out(boundary: Boundary, value: Any, rows: int, count: int, *, joinable: bool) -> list[Any]:
    """An output of ``rows`` executed rows as ``count`` answers, each an array of its own.

    joinable: whether the partition is; an output of a row served alone that is no single row is given as it is.
    """
    axis = boundary.axis
    splits = joinable or not boundary.unit or (np.ndim(value) > (axis or 0) and value.shape[axis or 0] == 1)
    if boundary.kind is Kind.ROWS and axis is not None and splits:
        if axis == 0 and boundary.unit:
            parts = value[:count]
        else:
            parts = by_row(value, axis, rows)[:count]
            if boundary.unit:
                parts = parts.squeeze(axis + 1)
        return [np.array(part, dtype=value.dtype, order="C") for part in parts]
    if boundary.kind is Kind.SIZE:
        value = size_at(boundary, value, rows, 1)
    return [np.array(value) if isinstance(value, np.ndarray) else value for _ in range(count)]


def size_at(boundary: Boundary, value: Any, rows: int, wanted: int) -> Any:
    """What a SIZE tensor seen at ``rows`` rows is at ``wanted`` rows."""
    if rows == wanted:
        return value
    if boundary.proportional is None:
        raise InvariantError(f"tensor {boundary.name!r} counts rows, but nothing says which of its elements do")
    follows = np.array(boundary.proportional, dtype=bool).reshape(np.shape(value))
    return np.where(follows, value // rows * wanted, value).astype(value.dtype)
