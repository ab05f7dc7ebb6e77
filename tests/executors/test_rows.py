"""Moving rows: the right rows, on any axis, with any share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.rows import by_row, survivors, take_rows


@given(st.integers(1, 12), st.data())
def test_survivors_keep_everyone_and_move_as_few_as_possible(rows: int, data: st.DataObject) -> None:
    """Exactly the remaining rows remain, each hole gets one row from behind, and nobody else moves."""
    gone = data.draw(st.sets(st.integers(0, rows - 1), max_size=rows))
    order = survivors(rows, gone)
    assert sorted(order) == [row for row in range(rows) if row not in gone]
    moved = [(place, origin) for place, origin in enumerate(order) if place != origin]
    assert {place for place, _ in moved} == {row for row in gone if row < len(order)}
    assert all(origin >= len(order) for _, origin in moved)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.data())
def test_rows_are_taken_on_any_axis_with_any_share(rows: int, share: int, axis: int, data: st.DataObject) -> None:
    """Row i is a contiguous share of the axis; taking rows and looking at them by row agree with plain slicing."""
    shape = [2, 3, 1]
    shape[axis] = rows * share
    array = np.arange(np.prod(shape)).reshape(shape)
    slices = [np.take(array, range(row * share, (row + 1) * share), axis) for row in range(rows)]
    for row, piece in enumerate(slices):
        assert np.array_equal(by_row(array, axis, rows)[row], piece)
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5))
    taken = take_rows(array, axis, rows, order)
    assert taken.flags.c_contiguous
    assert np.array_equal(taken, np.concatenate([slices[row] for row in order], axis))


def test_rows_without_elements_can_be_moved() -> None:
    """A dimension of zero elsewhere is no special case."""
    array = np.zeros((3, 0, 2), np.float32)
    assert take_rows(array, 0, 3, [2, 0]).shape == (2, 0, 2)
    assert by_row(array, 0, 3).shape == (3, 1, 0, 2)
