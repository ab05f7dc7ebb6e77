"""Single values: rows, shared, a size, or nothing, and what ties rows together."""

from __future__ import annotations

import numpy as np

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.traits import Trait, agree, close, same
from tests.partition.test_probe import tried


def test_size_vector_with_an_offset_is_nothing_proven() -> None:
    """n + 1 is neither a multiple of the rows nor independent of them."""
    evidence = tried(lambda x, t: {"y": x, "n": np.array([len(x) + 1])})
    assert evidence.traits["n"].kind is Kind.OPAQUE


def test_mixing_inner_values_are_marked() -> None:
    """Values that cannot be laid out per row say so; interleaved ones, and row numbers, do not."""
    evidence = tried(
        lambda x, t: {
            "y": x,
            "heads first": np.moveaxis(x.reshape(len(x), 2, -1), 1, 0).reshape(2 * len(x), -1),
            "numbers": np.arange(len(x)),
            "reversed": x[::-1].copy(),
            "all pairs": x @ x.T,
            "maximum": x.max(),
        }
    )
    assert evidence.stage == 4
    mixes = {name for name, trait in evidence.traits.items() if trait.mixes}
    assert mixes == {"reversed", "all pairs", "maximum"}


def test_traits_must_agree() -> None:
    """A value that follows the rows differently at other sizes is not proven."""
    one = tried(lambda x, t: {"y": x}).traits["y"]
    other = tried(lambda x, t: {"y": x.T.copy()}).traits["y"]
    assert agree(one, one).kind is Kind.ROWS
    assert agree(one, other).kind is Kind.OPAQUE


def test_nothing_at_all_ties_no_rows_together() -> None:
    """A value that is empty for some inputs is not proved by them, but does not speak against others either."""
    rows = Trait(Kind.ROWS, "float32", axis=0, dims=(None,))
    empty = Trait(Kind.SHARED, "float32", dims=(0,))
    both = agree(rows, empty)
    assert (both.kind, both.mixes) == (Kind.OPAQUE, False)
    assert agree(rows, Trait(Kind.SHARED, "float32", dims=(3,))).mixes
    assert not agree(rows, Trait(Kind.ROWS, "float32", axis=1, dims=(1, None))).mixes
    mixing = Trait(Kind.OPAQUE, "float32", mixes=True)
    assert agree(both, mixing).mixes
    assert agree(mixing, both).mixes


def test_equality() -> None:
    """NaN equals NaN; a finite number never equals an infinite one; integers are exact."""
    nan = np.array([np.nan, 1.0], np.float32)
    assert same(nan, nan.copy())
    assert close(nan, nan.copy(), "float32", None)
    assert not close(np.array([np.inf]), np.array([1.0]), "float64", 1e9)
    assert not close(np.array([100]), np.array([101]), "int64", 1.0)
    assert close(np.array([1e6, 1.0], np.float32), np.array([1e6, 1.5], np.float32), "float32", None)
    assert same(np.array(["a"], dtype=object), np.array(["a"], dtype=object))
