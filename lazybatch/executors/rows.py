"""Moving rows within and between arrays that carry them on some axis.

Owns: `by_row`, `take_rows`, `survivors`.
Must not know: slots, sub-batches, any runtime.

Row i owns an equal share of the axis, in order. On axis 0 rows are contiguous in memory and can be moved one by one; on
any other axis every element has a new address and the array is built anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray


def by_row(array: NDArray[Any], axis: int, rows: int) -> NDArray[Any]:
    """A view with the rows on a first axis of their own; ``axis`` (now one further back) keeps one row's share."""
    shape = array.shape
    split = array.reshape(*shape[:axis], rows, shape[axis] // rows if rows else 0, *shape[axis + 1 :])
    return np.moveaxis(split, axis, 0)


def take_rows(array: NDArray[Any], axis: int, rows: int, order: Collection[int]) -> NDArray[Any]:
    """A new array with these of its rows, in this order, on the same axis."""
    taken = np.moveaxis(by_row(array, axis, rows)[list(order)], 0, axis)
    shape = array.shape
    share = shape[axis] // rows
    return np.ascontiguousarray(taken).reshape(*shape[:axis], share * len(order), *shape[axis + 1 :])


def survivors(rows: int, gone: Collection[int]) -> list[int]:
    """The order of rows after some are gone, moving as few as possible: each hole gets the last row that is left.

    >>> survivors(5, {1, 3})
    [0, 4, 2]
    """
    order = list(range(rows))
    for hole in sorted(gone, reverse=True):
        last = order.pop()
        if hole < len(order):
            order[hole] = last
    return order
