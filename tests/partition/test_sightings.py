"""Shapes that were seen: which runs are noted, at which sizes, and what follows where too many would be needed."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.errors import ExecutionError
from lazybatch.partition.proof import sightings as module
from lazybatch.partition.proof.inputs import resized
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Feeds, Recipe
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.sightings import Sightings
from lazybatch.partition.proof.traits import Outcome

PORTS = (Port("x", "float32", ("n", "s")), Port("t", "float32", ("k",)))
VERDICT = Verdict(PORTS, {"x": 0}, [Recipe({"n": 1, "s": 4, "k": 5})], None, None, None)


def run(feeds: Feeds) -> Outcome:
    """A model that takes any s and two k."""
    if len(feeds["t"]) not in (5, 10):
        raise ExecutionError("not this k")
    return {"a": feeds["x"], "b": feeds["t"]}


def test_runs_of_one_row_are_noted() -> None:
    """Each different set of shapes once, in the same order for all values; more rows are no other size."""
    seen = Sightings("ab", VERDICT)
    noted = seen.noting(run)
    for rows, s in ((1, 4), (1, 4), (2, 4), (1, 7)):
        noted({"x": np.ones((rows, s)), "t": np.ones(5)})
    assert seen.runs == 3
    assert seen.shapes() == {"a": ((1, 4), (1, 7)), "b": ((5,), (5,))}
    assert not seen.varied


def test_sizes_are_changed_one_at_a_time() -> None:
    """To 1 and doubled, where the model takes it."""
    seen = Sightings("ab", VERDICT)
    seen.resize(seen.noting(run))
    assert seen.shapes() == {"a": ((1, 1), (1, 8), (1, 4)), "b": ((5,), (5,), (10,))}
    assert seen.varied


def test_too_many_sizes_leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not every size was tried, nothing is known of how shapes vary: by number, and by time."""
    monkeypatch.setattr(module, "RESIZES_MAX", 3)
    seen = Sightings("ab", VERDICT)
    seen.resize(seen.noting(run))
    assert len(seen.shapes()["a"]) == 2
    assert not seen.varied
    monkeypatch.setattr(module, "RESIZE_SECONDS", -1.0)
    seen = Sightings("ab", VERDICT)
    seen.resize(seen.noting(run))
    assert (seen.runs, seen.varied) == (0, False)


def test_recipes_of_other_sizes_vary() -> None:
    """They are runs at another size themselves."""
    recipes = [Recipe({"n": 1, "s": 4, "k": 5}), Recipe({"n": 1, "s": 6, "k": 5})]
    assert Sightings("ab", Verdict(PORTS, {"x": 0}, recipes, None, None, None)).varied


def test_examples_stay_where_their_size_does() -> None:
    """A value that the model may insist on is kept as the example has it."""
    recipe = Recipe({"n": 1, "s": 4, "k": 5}, {}, {"x": [np.ones(4)], "t": [np.ones(5)]})
    found = [(symbol, other.sizes[symbol], set(other.examples)) for symbol, other in resized(PORTS, {"x": 0}, recipe)]
    assert found == [("s", 1, {"t"}), ("s", 8, {"t"}), ("k", 1, {"x"}), ("k", 10, {"x"})]
