"""Sizes and seeded requests of the models with loops."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.sizes import FULL, RESERVED, SHORT, TINY, Las, draw_lengths, requests


@pytest.mark.parametrize("name", FULL)
def test_requests_are_seeded_and_within_bounds(name: str) -> None:
    """Rows have their own lengths, words are no reserved tokens, and the seed decides everything."""
    for size in (FULL[name], TINY[name]):
        rows = requests(size, 200, seed=5)
        key = "frames" if isinstance(size, Las) else "source"
        lengths = [len(row[key]) for row in rows]
        assert 1 <= min(lengths) < max(lengths) <= size.source_max
        targets = [int(row["target_length"]) for row in rows]
        assert 1 <= min(targets) < max(targets) <= size.target_max
        assert list(zip(lengths, targets, strict=True)) == draw_lengths(size, 200, seed=5)
        again = requests(size, 200, seed=5)
        assert all(
            np.array_equal(row[name], other[name]) for row, other in zip(rows, again, strict=True) for name in row
        )
        if key == "source":
            assert min(int(row[key].min()) for row in rows) >= RESERVED
            assert max(int(row[key].max()) for row in rows) < size.vocabulary


@pytest.mark.parametrize(("name", "mean", "within"), [("gnmt", 17.2, 30), ("transformer", 17.2, 30), ("las", 275, 430)])
def test_lengths_are_spread_as_translations_are(name: str, mean: float, within: int) -> None:
    """The mean is what was asked for, nine of ten sources are within the bound, targets follow their sources."""
    pairs = np.array(draw_lengths(FULL[name], 20_000, seed=1))
    assert pairs[:, 0].mean() == pytest.approx(mean, rel=0.03)
    assert np.quantile(pairs[:, 0], 0.9) <= within
    assert np.corrcoef(pairs.T)[0, 1] > 0.8
    shorter = np.array(draw_lengths(SHORT[name], 20_000, seed=1))
    assert shorter[:, 0].mean() < 0.5 * mean
