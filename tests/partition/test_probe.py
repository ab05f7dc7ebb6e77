"""Verdicts from runs: plain functions stand for models, so that each fault is isolated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.inputs import symbolic
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.probe import Evidence, probe
from lazybatch.partition.proof.rows import Array, Feeds, Recipe
from lazybatch.partition.proof.traits import Outcome

PORTS = symbolic([Port("x", "float32", ("N", "T")), Port("t", "float32", ("K",))])
RECIPES = [Recipe({"N": 1, "T": 4, "K": 5}), Recipe({"N": 1, "T": 6, "K": 5})]


def tried(
    fn: Callable[[Array, Array], Outcome], tolerance: float | None = None, outputs: tuple[str, ...] = ("y",)
) -> Evidence:
    """The evidence for a function of rows x and a shared vector t."""

    def run(feeds: Feeds) -> Outcome:
        return fn(feeds["x"], feeds["t"])

    return probe(PORTS, {"x": 0}, RECIPES, run, outputs, tolerance=tolerance)


def test_independent_rows_hold() -> None:
    """A function of each row alone passes, and inner values get their kinds."""
    evidence = tried(
        lambda x, t: {
            "y": np.tanh(x),
            "size": np.array([len(x), x.shape[1], 7]),
            "shared": t * 2,
            "pairs": np.repeat(x, 2, axis=0),
            "columns": x.T.copy(),
        }
    )
    assert evidence.stage == 4
    assert evidence.reason is None
    assert evidence.max_abs_diff == 0.0
    kinds = {name: (trait.kind, trait.axis, trait.unit) for name, trait in evidence.traits.items()}
    assert kinds == {
        "y": (Kind.ROWS, 0, True),
        "size": (Kind.SIZE, None, True),
        "shared": (Kind.SHARED, None, True),
        "pairs": (Kind.ROWS, 0, False),
        "columns": (Kind.ROWS, 1, True),
    }
    assert evidence.traits["size"].proportional == (True, False, False)
    assert evidence.traits["y"].dims == (None, None)


MIXED: dict[str, tuple[Callable[[Array, Array], Array], int]] = {
    "mean over rows": (lambda x, t: x - x.mean(0, keepdims=True), 2),
    "order": (lambda x, t: x[::-1].copy(), 2),
    "first row": (lambda x, t: x + x[:1] * 1e-3, 2),
    "offset number of rows": (lambda x, t: np.concatenate([x, x[:1]]), 1),
    "no row axis": (lambda x, t: x.sum(0), 1),
    "number of rows": (lambda x, t: np.array(len(x)), 1),
    "rank": (lambda x, t: x[0] if len(x) == 1 else x, 1),
    "only shared": (lambda x, t: t, 1),
    "nan in company": (lambda x, t: x + np.where(np.isnan(x).any(), 1, 0).astype(np.float32), 3),
    "huge in company": (lambda x, t: x * (1 if np.nanmax(np.abs(x)) < 1e20 else 2), 3),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_influence_each_other(name: str) -> None:
    """Each fault is refused at the stage that shows it, with a sentence."""
    fn, stage = MIXED[name]
    evidence = tried(lambda x, t: {"y": fn(x, t)})
    assert evidence.stage == stage
    assert evidence.reason


def test_failures_are_reasons() -> None:
    """A run that fails alone, or only joined, says so."""

    def never(x: Array, t: Array) -> Outcome:
        raise ValueError("too hot")

    def single(x: Array, t: Array) -> Outcome:
        return {"y": x.reshape(1, x.shape[1])}

    assert tried(never).reason == "a row alone fails: too hot"
    assert "rows together fail where each alone works" in str(tried(single).reason)


def test_failing_on_poison_is_no_refusal() -> None:
    """A model that rejects NaN fails that row's sub-batch; it does not give wrong answers."""

    def strict(x: Array, t: Array) -> Outcome:
        if not np.isfinite(x).all():
            raise ValueError("not finite")
        return {"y": x + 1}

    assert tried(strict).stage == 4


def test_tolerance_accepts_small_deviations_only() -> None:
    """An allowed deviation is relative to the row's own magnitude."""

    def rounded(x: Array, t: Array) -> Outcome:
        step = np.float32(np.abs(x).max() / 127)
        return {"y": np.round(x / step) * step}

    assert tried(rounded).stage < 4
    assert tried(rounded, tolerance=0.05).stage == 4
    assert tried(lambda x, t: {"y": x - x.mean(0)}, tolerance=0.05).stage < 4
