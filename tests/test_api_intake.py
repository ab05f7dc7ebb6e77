"""Where rows come in: names, bad rows and bad batches, before anything is admitted."""

from __future__ import annotations

from typing import Any

import pytest

import lazybatch as lb
from tests.engine.kit import AddChain, upper


def test_the_model_is_named_where_there_are_several() -> None:
    """One model need not be named; of several one must be, and whoever is not served is told who is."""
    with lb.LazyBatcher({"up": upper}) as batcher:
        assert batcher.predict("a") == batcher.predict("a", model="up") == "A"
    with lb.LazyBatcher({"up": upper, "down": lambda values: values}) as batcher:
        assert batcher.predict("a", model="up") == "A"
        for call in (batcher.submit, batcher.stream, lambda row, **options: batcher.submit_batch([row], **options)):
            with pytest.raises(lb.InvalidInput, match="several models are served, say model= with one of up, down"):
                call("a")
            for name in ("sideways", 3):
                with pytest.raises(lb.InvalidInput, match=f"unknown model {name!r}; known are up, down"):
                    call("a", model=name)


@pytest.mark.parametrize("batch", [[], (), iter([]), "abc", b"abc", {"x": 1}, 5, None])
def test_bad_batches_are_invalid(batch: Any) -> None:
    """Empty ones, and those that are one row by mistake."""
    with lb.LazyBatcher(upper) as batcher, pytest.raises(lb.InvalidInput, match="batch"):
        batcher.predict_batch(batch)


def test_a_bad_row_in_a_batch_admits_nothing_and_is_named() -> None:
    """The error says which row; none of its mates was admitted; the rows are counted as invalid."""
    with lb.LazyBatcher(AddChain(), policy="graph") as batcher:
        with pytest.raises(lb.InvalidInput, match="row 2 of the batch: input 'x' must be a number"):
            batcher.predict_batch([1, 2, "three", 4])
        with pytest.raises(lb.InvalidInput, match="must be a number"):
            batcher.submit("one")
        assert batcher.stats().rejected["invalid"] == 5
        assert batcher.stats().accepted == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sla": -1}, "sla"),
        ({"timeout": float("inf")}, "timeout"),
        ({"deadline": "x"}, "deadline"),
        ({"priority": 1.5}, "p"),
    ],
)
def test_bad_limits_are_refused_at_submit(options: dict[str, Any], text: str) -> None:
    """They are the caller's mistake, so they are raised."""
    with lb.LazyBatcher(upper) as batcher, pytest.raises(lb.InvalidInput, match=text):
        batcher.submit("a", **options)
