"""Recipes after examples: which are probed where there are many, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lazybatch.partition.proof import examples as module
from lazybatch.partition.proof.examples import left_out
from lazybatch.partition.proof.inputs import find_recipes, symbolic
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Array, Feeds
from tests.partition.parts import cut


def test_examples_that_tell_most_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred requests with unbatched inputs of their own, those of new shapes and flags come first; what is left
    out is said."""
    monkeypatch.setattr(module, "GROUPS_MAX", 5)
    made = symbolic([Port("x", "float32", ("N", 2)), Port("t", "float32", ("K",)), Port("flag", "bool", ())])
    told = [(np.full(1 + (k == 90), k, np.float32), np.array(k in (70, 90))) for k in range(100)]
    examples = {"x": [np.zeros(2, np.float32)] * 100, "t": [t for t, _ in told], "flag": [flag for _, flag in told]}
    recipes = find_recipes(made, {"x": 0}, lambda feeds: list(feeds.values()), examples)
    assert [int(recipe.examples["t"][0][0]) for recipe in recipes] == [0, 1, 2, 70, 90]
    note = left_out(made, {"x": 0}, examples)
    assert note == "of 100 different sets of unbatched inputs among example_inputs, 5 were probed"
    assert left_out(made, {"x": 0, "t": 0, "flag": 0}, examples) is None
    assert left_out(made, {"x": 0}, None) is None


def test_what_is_left_out_is_written_down(tmp_path: Path) -> None:
    """The manifest has the sentence among its notes."""
    text = "g (float[N,4] x, float t) => (float[N,4] y) { y = Mul(x, t) }"
    examples = [{"x": np.ones(4, np.float32), "t": np.array(k, np.float32)} for k in range(9)]
    notes = cut(text, tmp_path, example_inputs=examples).provenance["notes"]
    assert "of 9 different sets of unbatched inputs among example_inputs, 8 were probed" in str(notes)


def test_only_examples_that_the_model_accepts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others leave their place to those that come later."""
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    made = symbolic([Port("x", "float32", ("N", 2)), Port("k", "int64", ())])
    examples = {"x": [np.zeros(2, np.float32)] * 12, "k": [np.array(k) for k in range(12)]}

    def run(feeds: Feeds) -> Sequence[Array]:
        if feeds["k"] < 8:
            raise ValueError("not this")
        return [feeds["x"]]

    recipes = find_recipes(made, {"x": 0}, run, examples)
    assert [int(recipe.examples["k"][0]) for recipe in recipes] == [8, 9]
