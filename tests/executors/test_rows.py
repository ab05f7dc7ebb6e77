"""Moving rows: the right rows, on any axis, with any share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.errors import InvariantError
from lazybatch.executors.rows import Kept, by_row, copied, gathered, handed_out, rows_of, size_at, take_rows
from lazybatch.partition.pieces import Boundary, Kind


@given(st.lists(st.integers(0, 40), unique=True, max_size=30), st.sets(st.integers(0, 40), max_size=20))
def test_requests_are_found_in_their_rows(requests: list[int], wanted: set[int]) -> None:
    """Few or many, all of them or, where one is missing, none."""
    found = rows_of(wanted, requests)
    if wanted <= set(requests):
        assert found is not None
        assert {requests[row] for row in found} == wanted
        assert len(found) == len(wanted)
    else:
        assert found is None


def test_text_is_copied_too() -> None:
    """Elements that are objects cannot be taken for bytes."""
    words = np.array(["a", "Zürich"], dtype=object)
    made = copied(words)
    assert made is not words
    assert made.tolist() == words.tolist()


@given(st.integers(1, 12), st.data())
def test_rows_that_stay_keep_everyone_and_move_as_few_as_possible(rows: int, data: st.DataObject) -> None:
    """Exactly the remaining rows remain, each hole gets one row from behind, and nobody else moves."""
    gone = data.draw(st.sets(st.integers(0, rows - 1), max_size=rows))
    kept = Kept.without(rows, gone)
    order = kept.order()
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


@given(st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_copies_are_arrays_of_their_own(rows: int, share: int, apart: bool) -> None:
    """However rows lie, and whether there is anything in them."""
    array = np.arange(rows * share * 2, dtype=np.float32).reshape((rows, 2, share))
    given_rows = np.moveaxis(array, 1, 0) if apart else array
    made = copied(given_rows)
    assert made.tolist() == given_rows.tolist()
    assert made.dtype == array.dtype
    assert not np.shares_memory(made, array)
    assert made.flags.c_contiguous


def test_rows_without_elements_can_be_moved() -> None:
    """A dimension of zero elsewhere is no special case."""
    array = np.zeros((3, 0, 2), np.float32)
    assert take_rows(array, 0, 3, [2, 0]).shape == (2, 0, 2)
    assert by_row(array, 0, 3).shape == (3, 1, 0, 2)


@pytest.mark.parametrize(("axis", "unit"), [(0, True), (1, True), (0, False), (1, False)])
def test_gathered_rows_are_handed_out_again(axis: int, unit: bool) -> None:
    """What callers give is what they get back, padding apart, in arrays of their own."""
    boundary = Boundary("x", "float32", Kind.ROWS, axis, unit=unit)
    given = [np.full((2, 3), k, np.float32) for k in range(3)]
    batch = gathered(boundary, given, 5)
    into = np.empty_like(batch)
    assert gathered(boundary, given, 5, out=into) is into
    assert np.array_equal(into, batch)
    got = handed_out(boundary, batch, 5, 3, joinable=True)
    for mine, want in zip(got, given, strict=True):
        assert np.array_equal(mine, want)
        assert not np.shares_memory(mine, batch)


def test_what_is_no_row_is_handed_out_whole() -> None:
    """Shared values go to every request; sizes as for one row; alone, an output of several rows stays as it is."""
    value = np.arange(4)
    assert [v.tolist() for v in handed_out(Boundary("s", "int64", Kind.SHARED), value, 2, 2, joinable=True)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]
    size = Boundary("n", "int64", Kind.SIZE, proportional=(True, False))
    assert handed_out(size, np.array([6, 7]), 3, 1, joinable=True)[0].tolist() == [2, 7]
    rows = Boundary("y", "int64", Kind.ROWS, 0)
    assert handed_out(rows, value, 1, 1, joinable=False)[0].tolist() == [0, 1, 2, 3]
    assert handed_out(rows, value[:1], 1, 1, joinable=False)[0].tolist() == 0


def test_sizes_follow_the_rows() -> None:
    """Elements that count rows scale with them, others stay; without saying which, nothing can be computed."""
    size = Boundary("n", "int64", Kind.SIZE, proportional=(True, False))
    assert size_at(size, np.array([6, 7]), 3, 5).tolist() == [10, 7]
    with pytest.raises(InvariantError, match="nothing says which"):
        size_at(Boundary("n", "int64", Kind.SIZE), np.array([6]), 3, 5)
