"""Rows of tensors that go round: states handed on, caches of their own, inputs written afresh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Row
from lazybatch.executors.cycle import Cycle, Growth
from lazybatch.executors.rows import Kept
from lazybatch.executors.torch.rows import TorchBatch, TorchStore
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece
from tests.executors.partitions import begin

CYCLE = Cycle({"h": "n"}, frozenset({"x"}), {"keys": Growth("key", 0)}, frozenset({"key"}))
SHAPES = {"h": (3,), "x": (2,), "keys": (5, 3)}


def store_of(axis: int = 0, cycle: Cycle = CYCLE) -> TorchStore:
    """A body of one node: h, x, keys -> n, key."""
    ends = ("h", "x", "keys"), ("n", "key")
    known = {name: Boundary(name, "float32", Kind.ROWS, axis if name in "hn" else 0) for name in (*ends[0], *ends[1])}
    partition = Partition("m", "f", Path(), (Piece("node", Path(), *ends),), known, *ends, True, None)
    return TorchStore(partition, 8, dict.fromkeys(ends[0], torch.empty(0)), cycle)


def begun(store: TorchStore, *requests: int, executed: int = 0) -> TorchBatch:
    """Rows full of their number, with blank caches."""
    rows = {k: Row({name: np.full(shape, k, np.float32) for name, shape in SHAPES.items()}) for k in requests}
    state = begin(store, rows, executed or len(rows))
    store.blank(state, "keys", np.ones(len(rows), np.bool_))
    return state


def step(store: TorchStore, state: TorchBatch, n: torch.Tensor, key: float) -> None:
    """What the node would have made."""
    state.values.update(n=n, key=torch.full((state.rows, 3), key))


def test_a_state_is_the_tensor_that_was_made() -> None:
    """Nothing is copied, whatever axis the rows lie on; what is read later is what the node made."""
    store = store_of(axis=1)
    rows = {k: Row({name: np.full(shape, k, np.float32) for name, shape in SHAPES.items()}) for k in (1, 2)}
    state = begin(store, rows, 2)
    made = torch.arange(6.0).reshape(3, 2)
    step(store, state, made, 1)
    store.again(state)
    assert state.values["h"] is made
    assert set(state.values) == {"h", "keys"}
    assert store.peek(state, "h").tolist() == [[0, 2, 4], [1, 3, 5]]


def test_a_state_that_shows_a_cache_becomes_its_own() -> None:
    """It is what the node saw: slices are written to the cache before the state goes round. What shows no cache,
    or is read by nodes only, is not copied."""
    store = store_of()
    state = begun(store, 1, 2)
    state.shapes["h"] = (1, 5, 3)
    keys, key = state.values["keys"], torch.full((2, 3), 7.0)
    made = store.apart(state, ("n", "key", "inner"), (keys, key, keys))
    assert made[1] is key
    assert made[2] is keys
    state.values.update(n=made[0], key=made[1])
    store.extend(state, "keys", CYCLE.grown["keys"], None, np.array([0, 0]))
    store.again(state)
    assert state.values["keys"].any()
    assert not state.values["h"].any()


def test_a_state_of_another_shape() -> None:
    """It is refused, with both shapes."""
    store = store_of()
    state = begun(store, 1, 2)
    step(store, state, torch.zeros(2, 4), 0)
    with pytest.raises(ExecutionError, match=r"state 'h' has the shape \[2, 3\] at 2 rows, but 'n'.*\[2, 4\]"):
        store.again(state)


def test_caches_have_room_for_rows_to_come() -> None:
    """Newcomers are put behind the others without moving these, as long as there is room; who leaves makes some."""
    store = store_of()
    state, other = begun(store, 1, 2), begun(store, 3)
    state.values["keys"][:] = 1
    other.values["keys"][:] = 3
    store.append(state, other, 3)
    state.requests.append(3)
    place = state.values["keys"].data_ptr()
    assert store.peek(state, "keys")[:, 0, 0].tolist() == [1, 1, 3]
    fresh = begun(store, 4)
    store.append(state, fresh, 4, without=["keys"])
    state.requests.append(4)
    assert state.values["keys"].data_ptr() == place
    store.keep(state, Kept.of([0, 2]))
    state.requests = [1, 3]
    assert state.values["keys"].data_ptr() == place
    assert store.peek(state, "keys")[:, 0, 0].tolist() == [1, 3]
    assert store.peek(state, "h")[:, 0].tolist() == [1, 3]


def test_slices_are_written_at_their_positions() -> None:
    """For all rows, or for some; of another shape never."""
    store = store_of()
    state = begun(store, 1, 2, executed=3)
    for only, key in ((None, 5.0), (np.array([1]), 6.0)):
        step(store, state, torch.zeros(3, 3), key)
        positions = np.array([0, 3]) if only is None else np.array([4])
        store.extend(state, "keys", CYCLE.grown["keys"], only, positions)
        store.again(state)
    filled = store.peek(state, "keys")[:, :, 0]
    assert filled.tolist() == [[5, 0, 0, 0, 0], [0, 0, 0, 5, 6]]
    state.values["key"] = torch.zeros(3, 1)
    with pytest.raises(ExecutionError, match="'keys' takes slices of the shape"):
        store.extend(state, "keys", CYCLE.grown["keys"], None, np.array([0, 0]))


def test_what_is_fed_is_a_tensor_of_its_own() -> None:
    """Padding repeats the last row; the caller's array is free again."""
    store = store_of()
    state = begun(store, 1, 2, executed=3)
    given = np.array([[1, 2], [3, 4]], np.float32)
    store.feed(state, "x", given)
    given[:] = 0
    assert state.values["x"].tolist() == [[1, 2], [3, 4], [3, 4]]
    assert store.peek(state, "x").tolist() == [[1, 2], [3, 4]]
