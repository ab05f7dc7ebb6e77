"""What the rows of a sub-batch are given for one input, in whatever way it came.

Owns: `Column`.
Must not know: where rows lie afterwards, which runtime reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lazybatch.executors.rows import batched, gathered
from lazybatch.partition.pieces import Boundary


class Column(NamedTuple):
    """One input of some rows, none of them with a batch axis. first: the first row's.

    rows: one array per row; or one array with the rows on its first axis; or None where all are given ``first``.
    Whoever is given a column may keep it, and nobody writes to it.
    """

    first: NDArray[Any]
    rows: Sequence[NDArray[Any]] | NDArray[Any] | None = None

    @classmethod
    def of(cls, rows: Sequence[NDArray[Any]] | NDArray[Any]) -> Column:
        """One array per row, or one array with the rows on its first axis."""
        return cls(np.asarray(rows[0]), rows)

    def odd_shape(self) -> tuple[int, ...] | None:
        """The first shape that is not the first row's; None where all are equal."""
        if self.rows is None or isinstance(self.rows, np.ndarray):
            return None
        shape = self.first.shape
        return next((row.shape for row in self.rows if row.shape != shape), None)

    def write(self, target: NDArray[Any]) -> None:
        """Write all rows to memory with the rows on the first axis; rows beyond those given repeat the last one."""
        rows = self.rows
        if rows is None:
            target[...] = self.first
            return
        if isinstance(rows, np.ndarray):
            target[: len(rows)] = rows
        else:
            for place, row in enumerate(rows):
                target[place] = row
        if len(rows) < len(target):
            target[len(rows) :] = rows[-1]

    def solid(self, dtype: np.dtype[Any]) -> Column:
        """The same as one array of this type, where it is one per row. Raises `ValueError` where they make none."""
        if self.rows is None or isinstance(self.rows, np.ndarray):
            return self
        return Column(self.first, np.array(self.rows, dtype))

    def records(self, like: np.dtype[Any], record: np.dtype[Any]) -> NDArray[Any] | None:
        """The same memory with one opaque ``record`` per row, or a single one for all; None where rows of the type
        ``like`` do not lie so."""
        rows = np.ascontiguousarray(self.first)[np.newaxis] if self.rows is None else self.rows
        if not isinstance(rows, np.ndarray) or rows.dtype != like or not rows.flags.c_contiguous:
            return None
        if not rows.nbytes or rows.nbytes != len(rows) * record.itemsize:
            return None
        return rows.reshape(-1).view(record)

    def batch(self, boundary: Boundary, rows: int) -> NDArray[Any]:
        """All rows as a batch of ``rows``, an array of its own; those beyond the given repeat the last one."""
        if self.rows is None:
            return np.array(batched(boundary, self.first[np.newaxis], rows), order="C")
        if isinstance(self.rows, np.ndarray):
            return np.array(batched(boundary, self.rows, rows), order="C")
        return gathered(boundary, self.rows, rows)


Columns = Mapping[str, Column]
