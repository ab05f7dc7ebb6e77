"""Padding rules: what a rule may say, and what it does to the arrays of one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.errors import InvalidInput
from lazybatch.executors.padding.pad import Pad, trimmed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": {}}, "at least one input"),
        ({"inputs": "ids"}, "inputs must map names"),
        ({"inputs": 3}, "inputs must map names"),
        ({"inputs": {1: 0}}, "named by strings"),
        ({"inputs": {"ids": "0"}}, r"inputs\['ids'\]: what fills it must be a finite number"),
        ({"inputs": {"ids": float("nan")}}, "finite number"),
        ({"to": ()}, "to must be a sequence of lengths"),
        ({"to": 16}, "to must be a sequence of lengths"),
        ({"to": "16"}, "to must be a sequence of lengths"),
        ({"to": (8, 8)}, r"to: the lengths must increase, got \[8, 8\]"),
        ({"to": (0, 8)}, "to must be a whole number from 1"),
        ({"to": (1.5,)}, "to must be a whole number from 1"),
        ({"axis": -1}, "axis must be a whole number from 0"),
        ({"mask": 7}, "mask must be the name of an input"),
        ({"inputs": {"ids": 0, "mask": 1}, "mask": "mask"}, "mask 'mask' is 0 where there is padding"),
        ({"trim": ["y"]}, "trim must map outputs to axes"),
        ({"trim": {"y": -1}}, r"trim\['y'\] must be a whole number"),
        ({"ride": 1}, "ride must be True or False"),
        ({"tolerance": 1}, "tolerance must be a number from 0"),
        ({"tolerance": "a"}, "tolerance must be a number from 0"),
        ({"tolerance": True}, "tolerance must be a number from 0"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(options: dict[str, Any], said: str) -> None:
    """Every refusal names the field, the value and what is allowed."""
    with pytest.raises(InvalidInput, match=said):
        Pad(**{"inputs": {"ids": 0}, "to": (4, 8), **options})


def test_a_row_goes_to_the_smallest_length_that_holds_it() -> None:
    """Each length up to a padded one goes there; longer ones and empty rows are refused."""
    pad = Pad(inputs=["ids"], to=[4, 8])
    assert [pad.bucket(length) for length in (1, 4, 5, 8)] == [4, 4, 8, 8]
    with pytest.raises(InvalidInput, match="length 9 is longer than the longest padded length, 8"):
        pad.bucket(9)
    with pytest.raises(InvalidInput, match="length 0 is empty"):
        pad.bucket(0)


def test_inputs_of_a_row_must_agree_on_its_length() -> None:
    """Two lengths, or no such axis, name the inputs."""
    pad = Pad(inputs={"a": 0, "b": 0}, to=(8,), axis=1)
    assert pad.length({"a": np.zeros((2, 3)), "b": np.zeros((5, 3, 2))}) == 3
    with pytest.raises(InvalidInput, match="'a' and 'b' of a row must be of one length, got 3 and 4"):
        pad.length({"a": np.zeros((2, 3)), "b": np.zeros((2, 4))})
    with pytest.raises(InvalidInput, match=r"'b' has shape \[2\], there is no axis 1"):
        pad.length({"a": np.zeros((2, 3)), "b": np.zeros(2)})


def test_a_mask_is_made_where_the_caller_left_it_out() -> None:
    """Ones as long as the row; a mask that was given stays, and what is no array is left for admission to refuse."""
    pad = Pad(inputs={"ids": 0}, to=(8,), mask="mask")
    made = pad.masked({"ids": [5, 6, 7]}, "int64")
    assert made["mask"].tolist() == [1, 1, 1]
    assert made["mask"].dtype == np.int64
    given_mask = {"ids": [5, 6], "mask": [1, 0]}
    assert pad.masked(given_mask, "int64") is given_mask
    for odd in ({"other": [1]}, {"ids": 5}, {"ids": [[1], [1, 2]]}):
        assert pad.masked(odd, "int64") is odd
    unmasked = {"ids": [5]}
    assert Pad(inputs=["ids"], to=(8,)).masked(unmasked, "int64") is unmasked


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 2), st.integers(-9, 9))
def test_padding_keeps_the_row_and_fills_the_rest(length: int, more: int, axis: int, fill: int) -> None:
    """On any axis: the row's own part is unchanged, the rest is the fill, trimming gives the row back; others stay."""
    rng = np.random.default_rng(length)
    shape = [2, 3, 4]
    shape[axis] = length
    values = {"x": rng.standard_normal(shape).astype(np.float32), "other": np.ones(2)}
    pad = Pad(inputs={"x": fill}, to=(16,), axis=axis)
    padded = pad.padded(values, length + more)
    assert padded["other"] is values["other"]
    assert padded["x"].dtype == np.float32
    np.testing.assert_array_equal(trimmed(padded["x"], axis, length), values["x"])
    rest = np.take(padded["x"], np.arange(length, length + more), axis=axis)
    assert (rest == fill).all()
    assert rest.shape[axis] == more
    assert pad.length(padded) == length + more


def test_what_is_trimmed_holds_no_more_memory_than_it_shows() -> None:
    """A short answer out of a long batch does not keep the padding alive."""
    value = np.arange(1000)
    assert trimmed(value, 0, 3).base is None
    assert trimmed(value, 0, 1000) is value
