"""Rows: joined in order, and poisoned without changing shape or type."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.partition.proof.inputs import symbolic
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Recipe, join, make_rows, poisons
from tests.partition.test_inputs import ports


@given(st.integers(1, 5), st.integers(0, 99), st.integers(0, 1))
def test_joining_appends_rows(count: int, seed: int, axis: int) -> None:
    """Joined inputs hold the rows in order along the batch axis; unbatched ones are passed on as they are."""
    made = ports(x=("N", 3) if axis == 0 else (3, "N"), t=("K", 2))
    shared, rows = make_rows(made, {"x": axis}, Recipe({"N": 1, "K": 4}), count, seed)
    feeds = join(shared, rows, {"x": axis})
    assert feeds["t"] is shared["t"]
    for k, part in enumerate(np.split(feeds["x"], count, axis=axis)):
        assert np.array_equal(part, rows[k]["x"])


def test_even_seeds_take_examples_as_they_are() -> None:
    """Whatever recipe they belong to, examples are probed as given before they are shuffled."""
    made = symbolic([Port("x", "float32", ("N", 8)), Port("t", "float32", (8,))])
    given = {"x": [np.arange(8, dtype=np.float32)], "t": [np.arange(8, dtype=np.float32)]}
    for seed, as_given in ((0, True), (1, False), (2, True), (3, False)):
        shared, rows = make_rows(made, {"x": 0}, Recipe({"N": 1}, examples=given), 2, seed)
        assert np.array_equal(rows[0]["x"][0], given["x"][0]) is as_given
        assert np.array_equal(shared["t"], given["t"][0]) is as_given
        assert not np.array_equal(rows[1]["x"][0], given["x"][0])


def test_poisons_keep_shape_and_type() -> None:
    """A poisoned row has the shape and type of the row it replaces, and other values."""
    made = symbolic(
        [
            Port("f", "float32", ("N", 2)),
            Port("i", "int32", ("N", 64)),
            Port("b", "bool", ("N", 2)),
            Port("s", "object", ("N", 64)),
        ]
    )
    recipe = Recipe({"N": 1}, {"i": (0, 9)})
    axes = {"f": 0, "i": 0, "b": 0, "s": 0}
    row = make_rows(made, axes, recipe, 1, 0)[1][0]
    kinds = poisons(made, row, recipe, seed=1)
    assert len(kinds) == 5
    for poison in kinds:
        assert {name: (a.shape, a.dtype) for name, a in poison.items()} == {
            n: (a.shape, a.dtype) for n, a in row.items()
        }
        assert not any(np.array_equal(poison[name], row[name]) for name in row)


def test_a_lone_number_is_not_tried_at_nought_first() -> None:
    """A step or a length for all rows: some kernels divide by it, and that ends the process. Later seeds draw it, as it
    may be an axis as well; where nought is all that is known to be taken, the first one does."""
    lone = [Port(p.name, "int64", p.dims) for p in ports(x=("N", 2), step=())]
    seen = [int(make_rows(lone, {"x": 0}, Recipe({"N": 1}, {}), 1, seed)[0]["step"]) for seed in range(40)]
    assert seen[0] == 1
    assert set(seen) == {0, 1}
    assert make_rows(lone, {"x": 0}, Recipe({"N": 1}, {"step": (0, 0)}), 1, 0)[0]["step"] == 0


def test_unbatched_inputs_hang_on_the_seed_alone() -> None:
    """However many rows are made, they share the same numbers, and these are no row's."""
    ports = symbolic([Port("x", "float32", ("N", 3)), Port("t", "float32", (3,))])
    made = [make_rows(ports, {"x": 0}, Recipe({"N": 1}), count, 4) for count in (1, 3)]
    assert np.array_equal(made[0][0]["t"], made[1][0]["t"])
    assert not np.array_equal(made[0][0]["t"], made[0][1][0]["x"][0])
