"""Rows on their way: what they are given, padded, counted, and what their callers get."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.errors import ExecutionError
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.program.plan import Given, LoopPlan
from lazybatch.executors.program.rows import ProgramResult, Traveller, iterations, padded, padded_size
from lazybatch.executors.tally import NEVER
from lazybatch.program import Reference

SOURCE, SPOKEN = Reference(None, "source"), Reference("speaker", "spoken")


def loop(
    each: dict[str, Reference], ended_by: Reference | None, *, by_value: bool = False, most: int | None = None
) -> LoopPlan:
    """A loop of which only its end matters."""
    return LoopPlan(0, Cycle(), each, {}, None, False, None, ended_by, by_value, most, "truncate", ())


def test_padding_takes_the_smallest_size_that_is_enough() -> None:
    """Or the largest, where lengths differ among rows that are together."""
    given = Given("x", SOURCE, pad=(2, 4, 8))
    assert [padded_size(given, length) for length in (0, 2, 3, 8, 9)] == [2, 2, 4, 8, None]
    assert padded_size(Given("x", SPOKEN, pad=(2, 4, 8), largest=True), 1) == 8
    tensor = np.ones((3, 2), np.int64)
    whole = padded("stage", given, tensor)
    assert whole.tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert whole.dtype == np.int64
    assert padded("stage", given, np.ones(4)).shape == (4,)
    with pytest.raises(ExecutionError, match=r"stage 'stage': input 'x': 'source' has 9 entries, more than the 8"):
        padded("stage", given, np.ones(9))


def test_how_many_iterations() -> None:
    """By a length, by a number, by what is given per iteration, or only by the row's own flag."""
    row = Traveller({"source": np.zeros((4, 2)), "n": np.array(3)}, 1)
    number = Reference(None, "n")
    assert iterations("s", loop({"x": SOURCE}, SOURCE), row) == 4
    assert iterations("s", loop({"x": SOURCE}, number, by_value=True), row) == 3
    assert iterations("s", loop({}, None), row) == NEVER
    row.tensors[SPOKEN] = np.zeros((2, 1))
    with pytest.raises(ExecutionError, match=r"'speaker\.spoken' has 2 entries, .* makes 3"):
        iterations("s", loop({"x": SPOKEN}, number, by_value=True), row)
    assert iterations("s", loop({"x": SPOKEN}, number, by_value=True, most=2), row) == 3
    row.tensors[SPOKEN] = np.zeros((0, 1))
    with pytest.raises(ExecutionError, match=r"'speaker\.spoken' asks for 0 iterations"):
        iterations("s", loop({}, SPOKEN), row)


def test_results_are_the_callers_own() -> None:
    """A tensor under two names is two arrays; what the row brought is copied."""
    row = Traveller({"source": np.zeros(2)}, 2)
    row.tensors[SPOKEN] = np.ones(3)
    row.trips[:] = [4, 2]
    result = row.result({"a": SPOKEN, "b": SPOKEN, "c": SOURCE})
    assert isinstance(result, ProgramResult)
    assert result.trips == (4, 2)
    assert not result.truncated
    result["a"][:] = 7
    result["c"][:] = 7
    assert result["b"].tolist() == [1, 1, 1]
    assert row.tensors[SOURCE].tolist() == [0, 0]
    row.error = ExecutionError("cut off")
    assert row.result({"a": SPOKEN}) is row.error
