"""Requests: what the scheduler knows of a row."""

from __future__ import annotations

import dataclasses

import pytest

from lazybatch.core.request import UNBOUNDED_NS, Request


def test_defaults_are_no_deadline_one_row_no_priority() -> None:
    """Only id, model and arrival are needed; the deadline is then later than any clock."""
    request = Request(1, "m", 5)
    assert (request.deadline_ns, request.signature, request.size, request.priority) == (UNBOUNDED_NS, None, 1, 0)
    century_ns = 100 * 365 * 24 * 3600 * 10**9
    assert century_ns < UNBOUNDED_NS


def test_a_request_does_not_change() -> None:
    """Requests are shared between queue, sub-batches and drivers, so they are frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request(1, "m", 5).priority = 3  # type: ignore[misc]
