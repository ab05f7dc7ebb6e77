"""Slack: the earliest deadline that can still be met."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.slack import tightest_deadline_ns


def test_a_deadline_that_can_just_be_met_counts() -> None:
    """At time 10 with 5 left to run, 15 is still met (exactly), 14 is lost."""
    assert tightest_deadline_ns([14, 15, 20], 10, 5) == 15


def test_with_everything_lost_no_deadline_is_left() -> None:
    """Lost rows veto nothing: there is no deadline to protect."""
    assert tightest_deadline_ns([1, 2, 14], 10, 5) is None
    assert tightest_deadline_ns([], 10, 5) is None


@given(st.lists(st.integers(0, 100)), st.integers(0, 100), st.integers(1, 20))
def test_the_tightest_deadline_is_the_first_that_can_be_met(deadlines: list[int], now: int, left: int) -> None:
    """The bisection agrees with its definition."""
    deadlines.sort()
    expected = min((deadline for deadline in deadlines if deadline >= now + left), default=None)
    assert tightest_deadline_ns(deadlines, now, left) == expected
