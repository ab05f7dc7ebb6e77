"""Steering by the number of rows: what is harmless and what is not, by values at 1, 2 and 3 rows."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.partition.onnx.sizes import steering
from lazybatch.partition.onnx.taint import SizeUse

N = np.array([1, 2, 3])


def verdict(operator: str, *operands: list[object]) -> str | None:
    """The verdict on one node whose operands take these values at 1, 2 and 3 rows."""
    names = tuple("abc"[: len(operands)])
    runs = [{name: np.asarray(values[k]) for name, values in zip(names, operands, strict=True)} for k in range(3)]
    return steering([SizeUse(operator, "y", names)], runs, frozenset(names))


@pytest.mark.parametrize(
    ("operator", "operands"),
    [
        ("Greater", [[1, 2, 3], [8, 8, 8]]),
        ("Equal", [[1, 2, 3], [16, 16, 16]]),
        ("Less", [[5, 5, 5], [1, 2, 3]]),
        ("Min", [[1, 2, 3], [64, 64, 64]]),
        ("Max", [[1, 2, 3], [4, 4, 4]]),
        ("Mod", [[1, 2, 3], [4, 4, 4]]),
        ("Div", [[1, 2, 3], [8, 8, 8]]),
        ("If", [[True, False, False]]),
        ("Loop", [[1, 2, 3]]),
        ("Floor", [[0.125, 0.25, 0.375]]),
        ("Clip", [[1, 2, 3], [0, 0, 0], [9, 9, 9]]),
        ("ReduceMax", [[[1, 4], [2, 4], [3, 4]]]),
        ("Equal", [[[0], [0, 1], [0, 1, 2]], [5, 5, 5]]),
    ],
)
def test_steps_are_refused(operator: str, operands: list[list[object]]) -> None:
    """Each of these could change what the model does at some number of rows beyond the probed ones."""
    assert verdict(operator, *operands) == f"operator {operator} (makes 'y') steers by the number of rows in the batch"


@pytest.mark.parametrize(
    ("operator", "operands"),
    [
        ("Equal", [[[1, 4], [2, 4], [3, 4]], [[-1, -1]] * 3]),
        ("Greater", [[7, 7, 7], [5, 5, 5]]),
        ("Greater", [[1, 2, 3], [0, 0, 0]]),
        ("Max", [[1, 2, 3], [1, 1, 1]]),
        ("Max", [[[1, 4], [2, 4], [3, 4]], [[1, 9]] * 3]),
        ("Equal", [[1, 2, 3], [1, 2, 3]]),
        ("Div", [[8, 16, 24], [8, 8, 8]]),
        ("Div", [[0.5, 1.0, 1.5], [8.0, 8.0, 8.0]]),
        ("Cast", [[1.0, 2.0, 3.0]]),
        ("Clip", [[1, 2, 3], [1, 1, 1]]),
        ("If", [[True, True, True]]),
        ("Equal", [[[7], [7, 7], [7, 7, 7]], [5, 5, 5]]),
    ],
)
def test_what_cannot_steer_passes(operator: str, operands: list[list[object]]) -> None:
    """A number of rows is at least 1, exact multiples divide exactly, equal things stay equal."""
    assert verdict(operator, *operands) is None
