"""Rows that go round in buffers: states of every kind, inputs written afresh, and what grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Row
from lazybatch.executors.columns import Column
from lazybatch.executors.cycle import Cycle, Growth
from lazybatch.executors.ort.loop_store import LoopRowStore
from lazybatch.executors.ort.sub_batch import SubBatch
from lazybatch.executors.rows import Kept
from lazybatch.executors.tally import Tally
from lazybatch.executors.tape import Tape
from lazybatch.partition.pieces import Boundary, Partition, Piece
from tests.executors.partitions import begin, rows, shared


def store_of(
    inputs: list[Boundary], outputs: list[Boundary], cycle: Cycle, *, with_buffers: bool = True
) -> LoopRowStore:
    """A store for a body of one node."""
    known = {boundary.name: boundary for boundary in (*inputs, *outputs)}
    ends = tuple(b.name for b in inputs), tuple(b.name for b in outputs)
    partition = Partition("m", "f", Path(), (Piece("n", Path(), *ends),), known, *ends, True, None)
    return LoopRowStore(partition, 4, with_buffers=with_buffers, cycle=cycle)


def begun(store: LoopRowStore, count: int, executed: int, **values: np.ndarray) -> SubBatch:
    """So many equal rows, in buffers of their own."""
    state = begin(store, {request: Row(values, signature="s") for request in range(count)}, executed)
    if state.awaited is not None:
        store.settle(state)
    return state


def make(store: LoopRowStore, state: SubBatch, **outputs: np.ndarray) -> None:
    """What the body would have made, batch axes included."""
    for name, value in outputs.items():
        if store.has_buffer(name):
            state.layout.learn(name, value.shape, state.rows)
            store.make_room(state, [name])
            store.view(state, name)[...] = value
        else:
            state.values[name] = value


@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
def test_states_of_every_kind(with_buffers: bool) -> None:
    """One output for two states, a state that is another's last value, one that stays: each is what it should be."""
    names = "abcd"
    cycle = Cycle({"a": "n", "b": "n", "c": "a", "d": "d"})
    store = store_of([rows(name, 2) for name in names], [rows("n", 2)], cycle, with_buffers=with_buffers)
    values = {name: np.full(2, k, np.float32) for k, name in enumerate(names)}
    state = begun(store, 2, 2, **values)
    for turn in range(1, 4):
        old = store.peek(state, "a").copy()
        make(store, state, n=np.full((2, 2), 10 * turn, np.float32))
        store.again(state)
        seen = {name: store.peek(state, name)[0, 0] for name in names}
        assert seen == {"a": 10 * turn, "b": 10 * turn, "c": old[0, 0], "d": 3}


@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
@pytest.mark.parametrize("carried", [{"a": "b", "b": "n"}, {"b": "n", "a": "b"}, {"a": "b", "b": "a"}, {"a": "b"}])
def test_states_that_are_other_inputs(carried: dict[str, str], with_buffers: bool) -> None:
    """A body may return an input under its own name as another state's next value: all go round at once, in whichever
    order they are declared, and an input that is held besides stays."""
    store = store_of([rows("a", 2), rows("b", 2)], [rows("n", 2)], Cycle(carried), with_buffers=with_buffers)
    state = begun(store, 2, 2, a=np.full(2, 1, np.float32), b=np.full(2, 2, np.float32))
    want = {"a": 1, "b": 2}
    for turn in (10, 20, 30):
        make(store, state, n=np.full((2, 2), turn, np.float32))
        store.again(state)
        want |= {name: {**want, "n": turn}[output] for name, output in carried.items()}
        assert {name: store.peek(state, name)[0, 0] for name in want} == want


@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_fed(axis: int, with_buffers: bool) -> None:
    """Rows on any axis; padding repeats the last one; what all rows share is written once."""
    cycle = Cycle(fed=frozenset({"x", "time"}), read=frozenset({"y"}))
    inputs = [rows("x", 3, axis=axis), shared("time", dtype="int64")]
    store = store_of(inputs, [rows("y", 3, axis=axis)], cycle, with_buffers=with_buffers)
    state = begun(store, 2, 3, x=np.zeros(3, np.float32), time=np.zeros((), np.int64))
    store.feed(state, "x", np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    store.feed(state, "time", np.array([7]))
    assert store.peek(state, "x").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert store.peek(state, "time").tolist() == [7, 7]
    whole = np.moveaxis(store.view(state, "x") if with_buffers else state.values["x"], axis, 0)
    assert whole.tolist() == [[1, 2, 3], [4, 5, 6], [4, 5, 6]]


@pytest.mark.parametrize("with_buffers", [True, False], ids=["buffers", "values"])
@pytest.mark.parametrize(("batch", "axis"), [(0, 0), (0, 1), (1, 0), (2, 1)])
def test_what_grows(batch: int, axis: int, with_buffers: bool) -> None:
    """Each row's slice at its own position, wherever its rows and its positions lie; fresh rows are blank."""
    shape = (3, 5) if axis == 1 else (5, 3)
    cycle = Cycle(grown={"keys": Growth("key", axis)}, read=frozenset({"key"}))
    store = store_of([rows("keys", *shape, axis=batch)], [rows("key", 3)], cycle, with_buffers=with_buffers)
    state = begun(store, 2, 2, keys=np.broadcast_to(np.zeros((), np.float32), shape))
    store.blank(state, "keys", np.array([True, True]))
    want = np.zeros((2, *shape), np.float32)
    for step in range(3):
        slices = np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * step
        make(store, state, key=slices)
        positions = np.array([step, 4 - step])
        only = None if step < 2 else np.array([1])
        store.extend(state, "keys", cycle.grown["keys"], only, positions if only is None else positions[only])
        for row in range(2) if only is None else [1]:
            want[row][(slice(None),) * axis + (positions[row],)] = slices[row]
        store.again(state)
    assert np.array_equal(store.peek(state, "keys"), want)
    store.blank(state, "keys", np.array([False, True]))
    assert np.array_equal(store.peek(state, "keys")[0], want[0])
    assert not store.peek(state, "keys")[1].any()


def test_slices_of_another_shape() -> None:
    """They are refused, not stretched."""
    cycle = Cycle(grown={"keys": Growth("key", 0)}, read=frozenset({"key"}))
    store = store_of([rows("keys", 5, 3)], [rows("key", None)], cycle)
    state = begun(store, 2, 2, keys=np.zeros((5, 3), np.float32))
    make(store, state, key=np.ones((2, 1), np.float32))
    with pytest.raises(ExecutionError, match=r"state 'keys' takes slices of the shape \[3\], but 'key' has .* \[1\]"):
        store.extend(state, "keys", cycle.grown["keys"], None, np.array([0, 0]))


def test_copied_states_of_another_shape() -> None:
    """A state that an input, or another state's next value, becomes must have its shape."""
    store = store_of([rows("a", None), rows("b", None)], [rows("y")], Cycle({"a": "b"}))
    with pytest.raises(ExecutionError, match=r"state 'a' is .* but 'b', which it is in the next iteration, is"):
        begun(store, 1, 1, a=np.zeros(3, np.float32), b=np.zeros(1, np.float32))
    store = store_of([rows("a", None), rows("b", None)], [rows("n", None)], Cycle({"a": "n", "b": "n"}))
    state = begun(store, 1, 1, a=np.zeros(3, np.float32), b=np.zeros(1, np.float32))
    make(store, state, n=np.zeros((1, 1), np.float32))
    with pytest.raises(ExecutionError, match="state 'a' has the shape"):
        store.again(state)


def test_newcomers_bring_no_cache() -> None:
    """What grows is not copied for rows that did not run yet: it is blank before they do."""
    cycle = Cycle({"h": "n"}, grown={"keys": Growth("key", 0)}, read=frozenset({"key"}))
    store = store_of([rows("h", 1), rows("keys", 5, 1)], [rows("n", 1), rows("key", 1)], cycle)
    one, other = (begun(store, 1, 1, h=np.array([k], np.float32), keys=np.zeros((5, 1), np.float32)) for k in (1, 2))
    store.view(one, "keys")[...] = 1
    store.view(other, "keys")[...] = 2
    other.tally = Tally(np.array([1]), Tape())
    store.append(one, other, 2, without=["keys"])
    one.requests.extend([5])
    assert store.peek(one, "h").tolist() == [[1], [2]]
    assert store.peek(one, "keys")[0].tolist() == [[1]] * 5
    assert store.peek(one, "keys")[1].tolist() != [[2]] * 5


def test_newcomers_take_no_buffers_before_they_must() -> None:
    """Rows that join others before they run are written behind these at once; whatever else is asked, they settle."""
    store = store_of([rows("h", 2), rows("p", dtype="int64")], [rows("h_next", 2)], Cycle({"h": "h_next"}))

    def come(*requests: int) -> SubBatch:
        given = {k: Row({"h": np.full(2, k, np.float32), "p": np.array(k)}, signature="s") for k in requests}
        state = begin(store, given, len(given))
        state.tally = Tally(np.ones(len(given), np.int64), Tape())
        return state

    def seen(state: SubBatch) -> dict[int, list[float]]:
        pairs = zip(state.requests, store.peek(state, "h"), store.peek(state, "p"), strict=True)
        return {request: [*h.tolist(), int(p)] for request, h, p in pairs}

    for settled in (True, False):
        large = come(1, 2)
        if settled:
            store.settle(large)
        small = come(7)
        store.append(large, small, 3)
        assert small.awaited is not None
        store.end(small)
        assert len(store.pool) == 1
        large.requests.append(7)
        assert seen(large) == {1: [1, 1, 1], 2: [2, 2, 2], 7: [7, 7, 7]}
        store.end(large)
    late = come(3, 4)
    store.keep(late, Kept.of([1]))
    late.requests = [4]
    assert seen(late) == {4: [4, 4, 4]}
    store.end(late)
    store.end(come(5))
    assert len(store.pool) == 1


def test_newcomers_whose_rows_lie_apart_settle_when_they_come() -> None:
    """Rows on another axis cannot be written behind others: both sides are put together anew."""
    store = store_of([rows("h", 2, axis=1)], [rows("h_next", 2, axis=1)], Cycle({"h": "h_next"}))
    one, other = (begin(store, {k: Row({"h": np.full(2, k, np.float32)}, signature="s")}, 1) for k in (1, 2))
    assert one.awaited is other.awaited is None
    store.append(one, other, 2)
    one.requests.append(2)
    assert store.peek(one, "h").tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("axis", [0, 1])
def test_newcomers_fail_where_they_come(axis: int) -> None:
    """Rows that make no batch are refused when they come, before those they would join are touched, wherever rows lie;
    and hold no buffers then."""
    store = store_of([rows("a", 2, axis=axis)], [rows("n", 2, axis=axis)], Cycle({"a": "n"}))
    columns = {"a": Column.of([np.zeros(2, np.float32), np.zeros(3, np.float32)])}
    with pytest.raises(ValueError, match=r"inhomogeneous|must match exactly"):
        store.begin([0, 1], columns, "s", 2)
    begun(store, 2, 2, a=np.zeros(2, np.float32))
    assert len(store.pool) == 1
