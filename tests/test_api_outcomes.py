"""What several rows came to: in order, with errors raised or in their places."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.api.outcomes import outcomes
from tests.engine.kit import Gate, held


def ended(*values: Any) -> list[Future[Any]]:
    """A future per value: None is not done, errors are set as such."""
    made: list[Future[Any]] = [Future() for _ in values]
    for future, value in zip(made, values, strict=True):
        if isinstance(value, CancelledError):
            future.cancel()
        elif isinstance(value, BaseException):
            future.set_exception(value)
        elif value is not None:
            future.set_result(value)
    return made


def test_results_in_order_errors_in_their_places() -> None:
    """Asked to return errors, nothing is raised: a cancelled row is an error like any other."""
    error = KeyError("b")
    got = outcomes(ended("a", error, "c", CancelledError()), True)
    assert got[:3] == ["a", error, "c"]
    assert isinstance(got[3], CancelledError)
    assert outcomes(ended(3, 1, 2), False) == [3, 1, 2]


def test_the_first_rows_error_is_raised() -> None:
    """First in the caller's order; rows that are not done are not waited for."""
    with pytest.raises(KeyError, match="b"):
        outcomes(ended("a", None, KeyError("b"), ValueError("c"), None), False)
    with pytest.raises(CancelledError):
        outcomes(ended(CancelledError(), None), False)


def test_a_row_cancelled_by_someone_else_is_a_cancelled_error() -> None:
    """predict_batch reports it like any other end of a row."""
    gate = Gate()
    futures: list[Future[Any]] = []
    with lb.LazyBatcher(held(gate), max_batch_size=1, queue_capacity=8) as batcher:
        submit_batch = batcher.submit_batch

        def spy(*arguments: Any, **options: Any) -> list[Future[Any]]:
            futures.extend(submit_batch(*arguments, **options))
            futures[1].cancel()
            gate.opened.set()
            return futures

        batcher.submit_batch = spy  # type: ignore[method-assign]
        outcomes = batcher.predict_batch([1, 2], return_exceptions=True)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], CancelledError)
