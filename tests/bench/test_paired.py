"""Runs side by side: whose turn it is, and how sure a median is, each by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paired import in_turns, middle


def test_everyone_has_every_turn() -> None:
    """Over twice as many rounds as there are policies each has each place twice, and is as often before as behind each
    neighbour."""
    names = ["a", "b", "c", "d"]
    rounds = [in_turns(names, number) for number in range(8)]
    assert all(Counter(order[place] for order in rounds) == dict.fromkeys(names, 2) for place in range(4))
    follows = Counter(pair for order in rounds for pair in pairwise(order))
    assert all(follows[pair] == follows[pair[::-1]] for pair in follows)


@pytest.mark.parametrize(("count", "place"), [(1, 0), (4, 0), (5, 0), (7, 0), (8, 1), (12, 2), (20, 5)])
def test_the_interval_is_the_sign_tests(count: int, place: int) -> None:
    """Places by the tables of the sign test at 90 %: of eight values the second and seventh, of twenty the sixth."""
    found = middle(list(range(count, 0, -1)))
    assert (found.low, found.high) == (1 + place, count - place)
    assert found.median == (1 + count) / 2


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_a_median_lies_in_its_interval(values: list[float]) -> None:
    """Whatever the values are, and in whatever order."""
    found = middle(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
