"""Slack: Eq. 1, Eq. 2, and the earliest deadline that can still be met."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.slack import slack_batched_ns, slack_single_ns, tightest_deadline_ns


def test_equation_one_as_in_the_paper() -> None:
    """SLA 30, waited 2, eight nodes of one unit: the slack is 20 time-units."""
    assert slack_single_ns(30, 2, 8) == 20


def test_equation_two_charges_every_row_in_full() -> None:
    """Batched with two more rows of eight units each, the same request has 4 left; with four more, -12."""
    assert slack_batched_ns(30, 2, [8, 8, 8]) == 4
    assert slack_batched_ns(30, 2, [8] * 5) == -12


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.lists(st.integers(1, 10**9), min_size=1, max_size=8))
def test_equation_two_is_never_more_optimistic_than_equation_one(sla: int, waited: int, singles: list[int]) -> None:
    """For a batch of one the two are equal; every further row can only cost slack."""
    alone = slack_single_ns(sla, waited, singles[0])
    assert slack_batched_ns(sla, waited, singles[:1]) == alone
    assert slack_batched_ns(sla, waited, singles) <= alone


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
