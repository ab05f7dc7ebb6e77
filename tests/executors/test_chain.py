"""Chains of nodes: the order of calls that an executor promises, with rows that are numbers in a list."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError, InvalidInput, InvariantError
from lazybatch.executors.base import Row
from lazybatch.executors.chain import ChainExecutor, rows_capacity
from lazybatch.executors.columns import Columns
from lazybatch.executors.rows import Kept
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece

BOUNDARIES = {name: Boundary(name, "int64", Kind.ROWS, 0) for name in "xaby"}


class Numbers:
    """Rows that move together, each a number."""

    def __init__(self, requests: list[int], values: list[int], signature: Hashable) -> None:
        self.requests, self.values, self.rows, self.cursor = requests, values, len(values), 0
        self._signature = signature
        self.tally = None

    @property
    def signature(self) -> Hashable:
        """Rows of different signatures never join."""
        return self._signature


class Lists:
    """A store of numbers; counts the sub-batches that have not ended."""

    capacity = 4
    open = 0

    def begin(self, requests: Sequence[int], columns: Columns, signature: Hashable, rows: int) -> Numbers:
        """A new sub-batch; padding repeats the last number."""
        self.open += 1
        values = columns["x"].batch(BOUNDARIES["x"], rows).tolist()
        return Numbers(list(requests), values, signature)

    def append(self, large: Numbers, small: Numbers, total: int, without: Collection[str] = ()) -> None:
        """Numbers behind numbers."""
        large.values = large.values[: len(large.requests)] + small.values[: len(small.requests)]
        large.rows = total

    def keep(self, state: Numbers, kept: Kept) -> None:
        """Some of the numbers."""
        state.values = [state.values[row] for row in kept.order()]
        state.rows = kept.rows

    def scatter(self, state: Numbers, name: str) -> list[Any]:
        """The requests' numbers."""
        return state.values[: len(state.requests)]

    def peek(self, state: Numbers, name: str, like: str | None = None) -> NDArray[Any]:
        """The requests' numbers."""
        return np.array(state.values[: len(state.requests)])

    def end(self, state: Numbers) -> None:
        """One less is open."""
        self.open -= 1

    def clear(self) -> None:
        """None is open."""
        self.open = 0


class Adder(ChainExecutor[Numbers]):
    """Every node adds one; a negative number is refused."""

    def _advance(self, state: Numbers, node: int) -> None:
        if min(state.values) < 0:
            raise ExecutionError("a negative number")
        state.values = [value + 1 for value in state.values]


def partition(*, joinable: bool = True) -> Partition:
    """Three nodes."""
    pieces = tuple(Piece(f"n{k}", Path("none"), (a,), (b,)) for k, (a, b) in enumerate(("xa", "ab", "by")))
    return Partition("adds", "f", Path(), pieces, BOUNDARIES, ("x",), ("y",), joinable, None if joinable else "so")


@pytest.fixture
def store() -> Lists:
    """A store of its own."""
    return Lists()


@pytest.fixture
def executor(store: Lists) -> Adder:
    """An executor over it."""
    return Adder(partition(), store)


def rows(**numbers: int) -> dict[int, Row]:
    """Rows by request: r3=7 is request 3 with the number 7."""
    return {int(name[1:]): Row({"x": np.array(value)}) for name, value in numbers.items()}


def test_park_catch_up_merge_evict(executor: Adder, store: Lists) -> None:
    """Newcomers catch up and join; who leaves, leaves; every row is one number up per node."""
    executor.open(0, rows(r0=0, r1=10), 3)
    executor.run(0, 0)
    executor.open(1, rows(r2=20), 1)
    executor.run(1, 0)
    executor.merge(1, 0)
    executor.evict(1, [0])
    for node in (1, 2):
        executor.run(1, node)
    assert executor.close(1) == {1: {"y": 13}, 2: {"y": 23}}
    assert store.open == 0


def test_calls_out_of_order(executor: Adder) -> None:
    """Each is an `InvariantError`, and changes nothing."""
    executor.open(0, rows(r0=0), 1)
    executor.open(1, {5: Row({"x": np.array(1)}, signature="other")}, 1)
    for call in (
        lambda: executor.open(0, rows(r9=0), 1),
        lambda: executor.open(2, {}, 1),
        lambda: executor.open(2, rows(r9=0), 5),
        lambda: executor.run(0, 1),
        lambda: executor.merge(0, 1),
        lambda: executor.evict(0, [0]),
        lambda: executor.evict(0, [7]),
        lambda: executor.close(0),
    ):
        with pytest.raises(InvariantError):
            call()
    for node in range(3):
        executor.run(0, node)
    assert executor.close(0) == {0: {"y": 3}}


def test_what_is_not_joinable_never_merges(store: Lists) -> None:
    """Not even rows of one signature at one node."""
    executor = Adder(partition(joinable=False), store)
    executor.open(0, rows(r0=0), 1)
    executor.open(1, rows(r1=0), 1)
    with pytest.raises(InvariantError, match="equal shapes"):
        executor.merge(0, 1)


def test_a_failed_node_can_be_discarded(executor: Adder, store: Lists) -> None:
    """What a node raises passes through; the sub-batch ends without results, twice without harm."""
    executor.open(0, rows(r0=-1), 1)
    with pytest.raises(ExecutionError, match="negative"):
        executor.run(0, 0)
    executor.discard(0)
    executor.discard(0)
    assert store.open == 0
    executor.open(1, rows(r1=1), 1)
    executor.shutdown()
    assert store.open == 0


def test_capacity() -> None:
    """Rows that are served alone need room for one; impossible sizes are the caller's mistake."""
    assert rows_capacity(partition(), 7) == 7
    assert rows_capacity(partition(joinable=False), 7) == 1
    for wrong in (0, True, 1.5):
        with pytest.raises(InvalidInput, match="max_batch_size"):
            rows_capacity(partition(), wrong)  # type: ignore[arg-type]


def test_blocks_of_what_consists_of_rows(store: Lists) -> None:
    """All requests' rows at once; where rows are not joined, an output need not consist of them."""
    for joinable, block in ((True, [3, 13]), (False, None)):
        executor = Adder(partition(joinable=joinable), store)
        executor.open(0, rows(r0=0, r1=10) if joinable else rows(r0=0), 2 if joinable else 1)
        for node in range(3):
            executor.run(0, node)
        found = executor.block(0, "y")
        assert (None if found is None else found.tolist()) == block
        executor.discard(0)
