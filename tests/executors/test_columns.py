"""Columns: rows given one by one, as a block, or all alike."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.executors.columns import Column
from tests.executors.partitions import rows, shared

ROWS = [np.array([k, k + 0.5], np.float32) for k in range(3)]


@pytest.mark.parametrize("column", [Column.of(ROWS), Column.of(np.stack(ROWS))], ids=["one by one", "block"])
def test_rows_are_written_and_batched(column: Column) -> None:
    """In order, on any axis, with the last one repeated."""
    target = np.empty((5, 2), np.float32)
    column.write(target)
    assert target.tolist() == [*np.stack(ROWS).tolist(), *[ROWS[-1].tolist()] * 2]
    assert column.batch(rows("x", 2), 5).tolist() == target.tolist()
    batch = column.batch(rows("x", 2, axis=1), 3)
    assert batch.tolist() == np.stack(ROWS, 1).tolist()
    batch[:] = 0
    assert column.first.tolist() == [0, 0.5]
    assert column.odd_shape() is None


def test_rows_that_are_all_alike() -> None:
    """Given once, written for all; so is what is no row."""
    column = Column(np.array([1, 2]))
    target = np.empty((3, 2))
    column.write(target)
    assert target.tolist() == [[1, 2]] * 3
    assert column.batch(rows("x", 2, dtype="int64"), 3).tolist() == [[1, 2]] * 3
    assert column.batch(shared("x"), 3).tolist() == [1, 2]
    assert column.odd_shape() is None


def test_rows_made_one_array() -> None:
    """Arrays per row become one of the wanted type; what is one already stays; what makes none is refused."""
    made = Column.of([np.array([1, 2]), np.array([3, 4])]).solid(np.dtype(np.float32))
    assert isinstance(made.rows, np.ndarray)
    assert (made.rows.dtype, made.rows.tolist()) == (np.float32, [[1, 2], [3, 4]])
    assert made.solid(np.dtype(np.float32)) is made
    assert Column(np.array(1)).solid(np.dtype(np.int64)).rows is None
    with pytest.raises(ValueError, match="inhomogeneous"):
        Column.of([np.zeros(2), np.zeros(3)]).solid(np.dtype(np.float32))


def test_rows_as_records() -> None:
    """One element per row, of the same memory; None where rows lie apart, or are of another type or size."""
    block = np.stack(ROWS)
    record = np.dtype((np.void, block[0].nbytes))
    target = np.zeros((4, 2), np.float32)
    whole = np.ndarray((4,), record, target)
    rows = Column.of(block).records(block.dtype, record)
    assert rows is not None
    whole[1:] = rows
    assert target[1:].tolist() == block.tolist()
    alike = Column(np.broadcast_to(np.float32(9), (2,))).records(block.dtype, record)
    assert alike is not None
    whole[:2] = alike
    assert target[:2].tolist() == [[9, 9]] * 2
    assert Column.of(ROWS).records(block.dtype, record) is None
    assert Column.of(block.T).records(block.dtype, record) is None
    assert Column.of(block).records(np.dtype(np.int32), record) is None
    assert Column.of(block).records(block.dtype, np.dtype((np.void, 4))) is None


def test_single_numbers() -> None:
    """Rows without an axis of their own."""
    column = Column.of(np.array([3, 4]))
    assert column.first.shape == ()
    target = np.empty(2)
    Column.of([np.array(3), np.array(4)]).write(target)
    assert target.tolist() == [3, 4]


def test_the_odd_one_is_found() -> None:
    """The first row that differs from the first one in shape."""
    assert Column.of([np.zeros(2), np.zeros(2), np.zeros(3)]).odd_shape() == (3,)
