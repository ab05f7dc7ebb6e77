"""Streams of several models, merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.request import UNBOUNDED_NS
from lazybatch.errors import InvalidInput
from lazybatch.workload import Stream, merge

TIMES = st.lists(st.integers(0, 50), max_size=20).map(sorted)


@given(TIMES, TIMES)
def test_merging_keeps_every_stream(first: list[int], second: list[int]) -> None:
    """Requests come in order with ids 0, 1, ..., and each model's are its stream's, in its order."""
    requests = merge([Stream("a", first, sla_ns=100), Stream("b", second)])
    assert [request.id for request in requests] == list(range(len(first) + len(second)))
    arrivals = [request.arrival_ns for request in requests]
    assert arrivals == sorted(arrivals)
    for model, stream in (("a", first), ("b", second)):
        assert [request.arrival_ns for request in requests if request.model == model] == stream


def test_what_a_request_carries() -> None:
    """Deadline from the SLA target, length as size, priority; ties go to the stream named first."""
    first, second = merge([Stream("a", [5], sla_ns=100, priority=2, lengths=[7]), Stream("b", [5])])
    assert (first.model, first.deadline_ns, first.size, first.priority) == ("a", 105, 7, 2)
    assert (second.model, second.deadline_ns, second.size, second.priority) == ("b", UNBOUNDED_NS, 1, 0)


def test_bad_streams() -> None:
    """Arrivals out of order, lengths of another number, and a target that is not positive are refused by model."""
    with pytest.raises(InvalidInput, match="'a': arrival 3 is out of order"):
        Stream("a", [1, 2, 1])
    with pytest.raises(InvalidInput, match="'a': 1 lengths for 2 arrivals"):
        Stream("a", [1, 2], lengths=[3])
    with pytest.raises(InvalidInput, match="'a': the SLA target"):
        Stream("a", [1], sla_ns=0)
