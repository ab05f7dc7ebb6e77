"""Lengths as users give them become one guess per loop, or are refused naming model and loop."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.api.lengths import lengths_of
from lazybatch.core.lengths import LengthGuess
from lazybatch.errors import InvalidInput
from lazybatch.lengths import Lengths
from tests.engine.kit import AddChain
from tests.engine.loop_kit import Rounds

A, B = LengthGuess.of([1, 2]), LengthGuess.of([3, 4])
ONE = {"one": Rounds(2, (0, 1), name="one").graph}
TWO = {"two": Rounds(3, (0, 1), (1, 2), name="two").graph}
STATIC = {"static": AddChain(name="static").graph}


@pytest.mark.parametrize(
    ("given", "graphs", "found"),
    [
        (None, ONE, {}),
        (A, ONE, {"one": (A,)}),
        ([A, None], TWO, {"two": (A, None)}),
        ({"loop1": B}, TWO, {"two": (None, B)}),
        ({"*": B, "loop0": A}, TWO, {"two": (A, B)}),
        ({"two": (A, B)}, TWO, {"two": (A, B)}),
        ({"two": None}, TWO, {}),
        ({"two": {"loop0": A}, "one": B}, {**ONE, **TWO, **STATIC}, {"two": (A, None), "one": (B,)}),
        (Lengths({"loop0": [(1, 1), (1, 2)]}), ONE, {"one": (LengthGuess.of([1, 2], [1, 1]),)}),
    ],
)
def test_what_may_be_given(given: Any, graphs: Any, found: Any) -> None:
    """A guess, guesses in order, by loop, by model, or read from a characterisation."""
    assert lengths_of(given, graphs) == found


@pytest.mark.parametrize(
    ("given", "graphs", "text"),
    [
        (A, TWO, "lengths of model 'two' must hold one LengthGuess for each of its loops loop0, loop1"),
        ([A, A, A], TWO, "for each of its loops loop0, loop1"),
        ([1], ONE, "lengths of model 'one', loop 'loop0': expected a LengthGuess, got 1"),
        ({"loop9": A}, ONE, "lengths of loop 'loop9': model 'one' has 'loop0'"),
        (
            "a.json",
            ONE,
            "loops loop0, got 'a.json' (lazybatch.load_lengths reads files)",
        ),
        (A, STATIC, "lengths were given for model 'static', which has no loops"),
        (A, {**ONE, **TWO}, "with several models, give a mapping from model name to lengths"),
        ({"three": A}, {**ONE, **TWO}, "lengths names the unknown model 'three'; known are one, two"),
    ],
)
def test_what_is_refused(given: Any, graphs: Any, text: str) -> None:
    """Each with what was expected."""
    with pytest.raises(InvalidInput) as caught:
        lengths_of(given, graphs)
    assert text in str(caught.value)
