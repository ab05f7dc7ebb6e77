"""The row store: gathering, appending, keeping and scattering, kind by kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.errors import InvariantError
from lazybatch.executors.base import Row
from lazybatch.executors.ort.row_store import FRAMES_MAX, RowStore
from lazybatch.executors.rows import Kept
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece
from tests.executors.partitions import begin, rows, shared, size


def store_of(*boundaries: Boundary, capacity: int = 4, with_buffers: bool = True) -> RowStore:
    """A store whose model takes these tensors, keeps them alive over one node and gives them back."""
    names = tuple(boundary.name for boundary in boundaries)
    known = {boundary.name: boundary for boundary in (*boundaries, rows("y"))}
    piece = Piece("n", Path(), names, ("y",))
    return RowStore(
        Partition("m", "f", Path(), (piece,), known, names, names, True, None), capacity, with_buffers=with_buffers
    )


def row(**values: object) -> Row:
    """A row with these values, given as arrays."""
    return Row({name: np.asarray(value) for name, value in values.items()}, signature="s")


FIRST = rows("x", 2)
SECOND = rows("x", 2, axis=1)
SEVERAL = rows("x", 2, unit=False)


@pytest.mark.parametrize("boundary", [FIRST, SECOND, SEVERAL], ids=["axis 0", "axis 1", "several"])
@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
def test_rows_keep_their_owner(boundary: Boundary, with_buffers: bool) -> None:
    """Padded, merged with the larger side on either hand, thinned out: each request gets its own row back."""

    def value(seed: int) -> np.ndarray:
        shape = (2,) if boundary.unit else (3, 2)
        return np.full(shape, seed, np.float32) + np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8

    store = store_of(boundary, with_buffers=with_buffers)
    small = begin(store, {10: row(x=value(10))}, 3)
    large = begin(store, {20: row(x=value(20)), 21: row(x=value(21)), 22: row(x=value(22))}, 4)
    store.append(large, small, 4)
    large.requests.extend(small.requests)
    for request, got in zip(large.requests, store.scatter(large, "x"), strict=True):
        assert got.tolist() == value(request).tolist()
    store.keep(large, Kept.of([3, 1]))
    large.requests = [10, 21]
    assert large.rows == 2
    for request, got in zip(large.requests, store.scatter(large, "x"), strict=True):
        assert got.tolist() == value(request).tolist()


@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
def test_computed_sizes_follow_the_number_of_rows(with_buffers: bool) -> None:
    """A size made at the padded number of rows is right at any other, and at one row for the caller."""
    store = store_of(rows("x", 2), size("n", True, False), with_buffers=with_buffers)
    given = {request: row(x=np.zeros(2, np.float32), n=np.array([4, 7])) for request in range(3)}
    state = begin(store, given, 4)
    if with_buffers:
        store.view(state, "n")[...] = [8, 7]  # twice the rows, and a constant
    else:
        state.values["n"] = np.array([8, 7])
    assert [got.tolist() for got in store.scatter(state, "n")] == [[2, 7]] * 3
    store.keep(state, Kept.of([0, 1, 2]))
    assert [got.tolist() for got in store.scatter(state, "n")] == [[2, 7]] * 3
    other = begin(store, {9: given[0]}, 1)
    store.append(state, other, 4)
    value = store.view(state, "n") if with_buffers else state.values["n"]
    assert value.tolist() == [8, 7]


def test_a_size_without_its_rule_is_a_bug() -> None:
    """A count that nobody can recompute is never carried to another number of rows."""
    store = store_of(rows("x", 2), Boundary("n", "int64", Kind.SIZE, None, (1,)))
    state = begin(store, {k: row(x=np.zeros(2, np.float32), n=np.array([2])) for k in range(2)}, 2)
    with pytest.raises(InvariantError, match="'n'"):
        store.keep(state, Kept.of([0]))


def test_shared_tensors_are_kept_once_and_given_to_each() -> None:
    """All rows share one copy inside; every caller gets an array of its own."""
    store = store_of(rows("x", 2), shared("t", 3))
    state = begin(store, {k: row(x=np.zeros(2, np.float32), t=np.arange(3, dtype=np.float32)) for k in range(2)}, 2)
    assert store.view(state, "t").shape == (3,)
    one, other = store.scatter(state, "t")
    one[:] = 9
    assert other.tolist() == [0, 1, 2]


def test_a_row_that_cannot_be_gathered_gives_its_buffers_back() -> None:
    """A failure while opening leaks nothing."""
    store = store_of(rows("x", 2))
    good = row(x=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="dimension"):
        begin(store, {1: good, 2: row(x=np.zeros(3, np.float32))}, 2)
    begin(store, {1: good}, 1)
    assert len(store.pool) == 1


def test_prepared_bindings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many signatures come, a buffer set keeps only the latest combinations."""
    store = store_of(rows("x", None))
    for width in range(FRAMES_MAX + 10):
        made = Row({"x": np.zeros(width, np.float32)}, signature=width)
        store.end(begin(store, {1: made}, 1))
    state = begin(store, {1: Row({"x": np.zeros(1, np.float32)}, signature=1)}, 1)
    assert len(state.buffers.attached[1]) <= FRAMES_MAX
