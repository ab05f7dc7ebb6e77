"""Lengths from distributions and files."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import correlation

import pytest

from lazybatch.errors import InvalidInput
from lazybatch.workload import lognormal_lengths, poisson, recorded_lengths, resampled, weighted_lengths

MIX = {5: 0.2, 15: 0.45, 25: 0.25, 35: 0.1}


def test_weights_are_kept() -> None:
    """Shares of 20,000 draws are the weights; a weight of zero never comes; the seed decides."""
    drawn = weighted_lengths({**MIX, 99: 0.0}, 20_000, seed=1)
    assert {length: drawn.count(length) / 20_000 for length in MIX} == pytest.approx(MIX, abs=0.02)
    assert 99 not in drawn
    assert drawn == weighted_lengths({**MIX, 99: 0.0}, 20_000, seed=1) != weighted_lengths(MIX, 20_000, seed=2)


def test_lognormal_has_the_mean() -> None:
    """The mean of the draws is the one asked for, none is below 1 or above the longest, sigma 0 is constant."""
    drawn = lognormal_lengths(18.0, 20_000, seed=4)
    assert sum(drawn) / len(drawn) == pytest.approx(18.0, rel=0.03)
    assert min(lognormal_lengths(1.0, 500)) >= 1
    assert max(lognormal_lengths(18.0, 2_000, longest=32)) == 32
    assert lognormal_lengths(18.0, 3, sigma=0.0) == [18, 18, 18]


def test_files_and_resampling(tmp_path: Path) -> None:
    """A file of observed lengths is read, and drawn from with a seed."""
    path = tmp_path / "lengths.txt"
    path.write_text("# words\n3\n\n7\n")
    assert recorded_lengths(path) == [3, 7]
    assert set(resampled([3, 7], 100, seed=1)) == {3, 7}
    assert resampled([3, 7], 100, seed=1) == resampled([3, 7], 100, seed=1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: resampled(range(1, 101), 4_000, seed),
        lambda seed: weighted_lengths(dict.fromkeys(range(1, 101), 1.0), 4_000, seed),
        lambda seed: lognormal_lengths(20.0, 4_000, seed),
    ],
)
def test_lengths_are_independent_of_arrivals_of_the_same_seed(draw: Callable[[int], list[int]]) -> None:
    """One seed for both makes no row longer for having come later."""
    for seed in range(3):
        gaps_ns = [later - earlier for earlier, later in pairwise([0, *poisson(100.0, 4_000, seed)])]
        assert abs(correlation(gaps_ns, draw(seed))) < 0.08


def test_bad_lengths(tmp_path: Path) -> None:
    """Every absurd parameter, and every line that is not a length, is named."""
    path = tmp_path / "lengths.txt"
    path.write_text("3\n-1\n")
    with pytest.raises(InvalidInput, match="line 2: a length"):
        recorded_lengths(path)
    path.write_text("# none\n")
    with pytest.raises(InvalidInput, match="no lengths"):
        recorded_lengths(path)
    for weights in ({}, {5: 0.0}, {5: -1.0}, {5: math.nan}, {0: 1.0}):
        with pytest.raises(InvalidInput, match="length"):
            weighted_lengths(weights, 1)
    for call in (
        lambda: lognormal_lengths(math.nan, 1),
        lambda: lognormal_lengths(0.0, 1),
        lambda: lognormal_lengths(5.0, 1, sigma=-1.0),
        lambda: lognormal_lengths(5.0, 1, longest=0),
        lambda: resampled([], 1),
        lambda: resampled([1], -1),
    ):
        with pytest.raises(InvalidInput):
            call()
