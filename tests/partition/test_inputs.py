"""Probe inputs: candidates by symbol, sizes and ranges found by trying, rows of unequal magnitude."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lazybatch.errors import InvalidInput
from lazybatch.partition.proof.inputs import batch_symbols, candidates, find_recipes, symbolic, typical
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Array, Feeds, Recipe


def ports(**dims: tuple[int | str | None, ...]) -> tuple[Port, ...]:
    """Float inputs of these dimensions."""
    return symbolic([Port(name, "float32", shape) for name, shape in dims.items()])


def test_widest_group_of_first_axes_comes_first() -> None:
    """Inputs with the rows' symbol go together; the largest set of first axes is tried before its parts."""
    found = candidates(ports(a=("N", 4), b=("N", 2), table=("K", 4)), None)
    assert found[0] == {"a": 0, "b": 0, "table": 0}
    assert {"a": 0, "b": 0} in found
    assert {"table": 0} in found
    assert found.index({"a": 0, "b": 0}) < found.index({"table": 0})


def test_later_axes_are_candidates_too() -> None:
    """Time-major inputs have their rows on axis 1, whatever the symbols are called."""
    found = candidates(ports(x=("T", "N", 3), h=("N", 3)), None)
    assert found[0] == {"x": 1, "h": 0}
    assert {"x": 0} in found


def test_anonymous_first_axes_are_one_group() -> None:
    """Dimensions without a name may well be the same rows."""
    assert candidates(ports(a=(None, 4), b=(None, 2)), None)[0] == {"a": 0, "b": 0}


def test_symbol_twice_in_one_input_is_no_batch() -> None:
    """An [N, N] input cannot be appended along one axis."""
    assert candidates(ports(x=("N", "N")), None) == []


def test_declared_axes_are_taken_alone() -> None:
    """A declaration replaces the search and is checked against the inputs."""
    made = ports(x=("N", 4), t=("K", 4))
    assert candidates(made, {"x": 0, "t": None}) == [{"x": 0}]
    with pytest.raises(InvalidInput, match="'z', which is no input"):
        candidates(made, {"z": 0})
    with pytest.raises(InvalidInput, match="axis 2 of input 'x', which has 2 dimensions"):
        candidates(made, {"x": 2})


def test_batch_symbols() -> None:
    """The symbols of the batch axes are the ones that count rows."""
    made = ports(x=("N", "T"), y=("M", 3))
    assert batch_symbols(made, {"x": 0, "y": 0}) == {"N", "M"}


def picky(height: int) -> object:
    """A model that wants one height, even widths, and numbers below 10."""

    def run(feeds: Feeds) -> Sequence[Array]:
        if feeds["x"].shape[1] != height or feeds["x"].shape[2] % 2 or feeds["k"].max(initial=0) >= 10:
            raise ValueError("not this")
        return [feeds["x"]]

    return run


def test_recipes_are_found_by_trying() -> None:
    """Sizes and ranges the model accepts are found, at two settings where there are two."""
    made = symbolic([Port("x", "float32", ("N", "H", "W")), Port("k", "int64", ("N", 3))])
    recipes = find_recipes(made, {"x": 0, "k": 0}, picky(48))  # type: ignore[arg-type]
    assert [recipe.sizes["H"] for recipe in recipes] == [48, 48]
    assert recipes[0].sizes["W"] != recipes[1].sizes["W"]
    assert all(recipe.ranges["k"] == (0, 9) for recipe in recipes)
    assert all(recipe.sizes["N"] == 1 for recipe in recipes)


def test_no_recipe() -> None:
    """A model that accepts nothing leaves nothing."""
    made = symbolic([Port("x", "float32", ("N", "H", "W")), Port("k", "int64", ("N", 3))])
    assert find_recipes(made, {"x": 0}, picky(-1)) == []  # type: ignore[arg-type]


def test_examples_overrule_the_search() -> None:
    """Sizes and ranges come from the user's example, with or without its batch axis."""
    made = symbolic([Port("x", "float32", ("N", "W")), Port("k", "int64", ("N", 2))])
    for given_x in (np.ones((3, 7), np.float32), np.ones(7, np.float32)):
        examples = {"x": [given_x], "k": [np.array([[5, 9]])]}
        (recipe,) = find_recipes(made, {"x": 0, "k": 0}, lambda feeds: list(feeds.values()), examples)
        assert recipe.sizes == {"N": 1, "W": 7}
        assert recipe.ranges == {"k": (5, 9)}


def test_requests_that_never_share_a_batch_are_recipes_of_their_own() -> None:
    """Examples whose unbatched inputs differ are told apart; those that agree stay one recipe, in the order given."""
    made = symbolic([Port("x", "float32", ("N", 2)), Port("flag", "int64", ())])
    examples = {"x": [np.full(2, k, np.float32) for k in range(3)], "flag": [np.array(k) for k in (0, 1, 0)]}
    first, second = find_recipes(made, {"x": 0}, lambda feeds: list(feeds.values()), examples)
    assert [len(recipe.examples["x"]) for recipe in (first, second)] == [2, 1]
    assert [int(recipe.examples["flag"][0]) for recipe in (first, second)] == [0, 1]
    assert first.ranges == second.ranges == {"flag": (0, 1)}


def test_bad_examples_are_named() -> None:
    """A missing input or a wrong number of dimensions is the caller's fault, by name."""
    made = symbolic([Port("x", "float32", ("N", "W"))])
    with pytest.raises(InvalidInput, match="lacks input 'x'"):
        find_recipes(made, {"x": 0}, lambda feeds: [], {"y": [np.ones(2)]})
    with pytest.raises(InvalidInput, match=r"example_inputs\['x'\] has 3 dimensions"):
        find_recipes(made, {"x": 0}, lambda feeds: [], {"x": [np.ones((2, 2, 2))]})


def test_typical_sizes_are_nearer_to_real_use() -> None:
    """Free sizes grow where the model accepts it, and stay where it does not."""
    made = symbolic([Port("x", "float32", ("N", "H", "W")), Port("k", "int64", ("N", 3))])
    run = picky(48)
    recipe = typical(made, {"x": 0, "k": 0}, Recipe({"N": 1, "H": 48, "W": 16}, {"k": (0, 1)}), run)  # type: ignore[arg-type]
    assert recipe.sizes == {"N": 1, "H": 48, "W": 64}
