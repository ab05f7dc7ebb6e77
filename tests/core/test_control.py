"""Solved controls as data: reading between the points of a table, beyond its ends, and at rates between two solved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.control import Control, Solution
from lazybatch.solver import solve
from tests.core.kit import linear

AHEAD = ((0.0, 10.0, 40.0), (8.0, 30.0, 80.0), (108.0, 230.0, 380.0))
SOLVED = solve(linear(nodes=2, fixed=40, per_row=5, rows_max=4), 4)


def solution(rate_per_ns: float = 0.5, gain_rows: float = 2.0) -> Solution:
    """Three states, three horizons: 0, 10 and 110 ns."""
    return Solution(rate_per_ns, gain_rows, (0.0, 10.0, 40.0), (0, 1, 2), (0, 10, 110), AHEAD)


def test_at_a_tabulated_time_it_is_the_table() -> None:
    """Every entry is read back."""
    for time_ns, row in zip((0, 10, 110), AHEAD, strict=True):
        assert [solution().after(waiting, time_ns) for waiting in range(3)] == pytest.approx(list(row))


def test_between_two_times_it_is_interpolated() -> None:
    """Half way from 0 to 10, and a quarter of the way from 10 to 110."""
    assert solution().after(1, 5) == pytest.approx(20.0)
    assert solution().after(1, 35) == pytest.approx(80.0)
    assert solution().after(0, 2.5) == pytest.approx(2.0)


def test_beyond_the_last_time_the_last_slope_goes_on() -> None:
    """1 per ns for no rows, 2 for one: at 210 there are 100 and 200 more."""
    assert solution().after(0, 210) == pytest.approx(208.0)
    assert solution().after(1, 210) == pytest.approx(430.0)


def test_beyond_the_last_state_the_last_slope_goes_on() -> None:
    """At time zero 30 more for each row; between two times both sides are extended, then interpolated."""
    assert solution().after(4, 0) == pytest.approx(100.0)
    assert solution().after(4, 5) == pytest.approx((100.0 + 180.0) / 2)
    assert solution().after(3, 210) == pytest.approx(130.0 + 2 * (530.0 - 130.0))


def test_more_rows_than_tabulated_start_as_many_as_the_last_state_says() -> None:
    """What to do is read off the last state."""
    assert [solution().start(waiting) for waiting in (0, 1, 2, 3, 1_000)] == [0, 1, 2, 2, 2]


def test_mean_latency_follows_from_the_mean_rows() -> None:
    """Little's law: two rows at a rate of a half spend four."""
    assert solution().mean_latency_ns == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("rate", "nearest"),
    [(0.0, 1.0), (1.0, 1.0), (1.9, 1.0), (2.0, 1.0), (2.1, 4.0), (4.0, 4.0), (7.9, 4.0), (8.1, 16.0), (1e9, 16.0)],
)
def test_the_nearest_rate_is_nearest_by_ratio(rate: float, nearest: float) -> None:
    """Between 1 and 4 the border is 2, between 4 and 16 it is 8; beyond the ends it is the end."""
    control = Control("m", 2, 1.0, tuple(solution(each) for each in (1.0, 4.0, 16.0)))
    assert control.at(rate).rate_per_ns == nearest


def test_a_control_of_one_rate_answers_for_all() -> None:
    """There is nothing nearer."""
    control = Control("m", 2, 1.0, (solution(3.0),))
    assert {control.at(rate).rate_per_ns for rate in (0.0, 3.0, 99.0)} == {3.0}


def test_the_rates_are_those_of_the_solutions() -> None:
    """They are kept beside them to be searched, and are no part of how a control is shown."""
    control = Control("m", 2, 1.0, (solution(1.0), solution(4.0)))
    assert control.rates_per_ns == (1.0, 4.0)
    assert "rates_per_ns" not in repr(control)


@settings(max_examples=100, deadline=None)
@given(
    number=st.integers(0, len(SOLVED.solutions) - 1),
    waiting=st.integers(0, 200),
    time_ns=st.floats(0, 10_000),
    more_ns=st.floats(1, 5_000),
)
def test_what_is_left_is_worth_more_the_longer_it_waits(
    number: int, waiting: int, time_ns: float, more_ns: float
) -> None:
    """Of a solved control: more time brings more rows, and more rows cost more; within the tables and beyond."""
    one = SOLVED.solutions[number]
    now = one.after(waiting, time_ns)
    slack = 1e-9 * abs(now)
    assert one.after(waiting, time_ns + more_ns) >= now - slack
    assert one.after(waiting + 1, time_ns) >= now - slack


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1.0))
def test_no_other_rate_is_nearer(rate: float) -> None:
    """By ratio, over the grid the solver makes."""
    found = SOLVED.at(rate).rate_per_ns

    def off(other: float) -> float:
        return max(rate, 1e-300) / other if rate > other else other / max(rate, 1e-300)

    assert off(found) <= min(off(other) for other in SOLVED.rates_per_ns) * (1 + 1e-12)


class TestAgreeing:
    """What is left of a rate once it is known how long rows take."""

    def at(self, rate: float, latency_ns: float) -> float:
        """The rate that is left, of a control for rates 1, 2, 4, 8 at which rows take 10, 12, 20, 60."""
        solutions = tuple(
            solution(rate, rate * mean_ns) for rate, mean_ns in ((1.0, 10.0), (2.0, 12.0), (4.0, 20.0), (8.0, 60.0))
        )
        made = Control("m", 2, 10.0, solutions)
        return made.agreeing(made.at(rate), latency_ns).rate_per_ns

    @pytest.mark.parametrize("rate", [1.0, 2.0, 4.0, 8.0])
    def test_what_agrees_stays(self, rate: float) -> None:
        """Rows take as long as the rate lets expect."""
        assert self.at(rate, {1.0: 10.0, 2.0: 12.0, 4.0: 20.0, 8.0: 60.0}[rate]) == rate

    @pytest.mark.parametrize(("latency_ns", "left"), [(9.0, 1.0), (11.0, 2.0), (12.0, 2.0), (19.0, 4.0), (59.0, 8.0)])
    def test_a_rate_that_lets_rows_take_longer_is_lowered(self, latency_ns: float, left: float) -> None:
        """From 8 to the grid's nearest to the one at which they take so long, between two in proportion."""
        assert self.at(8.0, latency_ns) == left

    @pytest.mark.parametrize(("latency_ns", "left"), [(10.0, 1.0), (11.0, 1.0), (20.0, 4.0), (60.0, 8.0), (1e9, 8.0)])
    def test_a_rate_that_lets_rows_take_less_is_raised(self, latency_ns: float, left: float) -> None:
        """From 1, to not quite the rate at which they take so long: what is close to it stays."""
        assert self.at(1.0, latency_ns) == left

    def test_longer_latencies_at_lower_rates_are_no_evidence(self) -> None:
        """Where rows wait for company a low rate may mean 30, a higher one 20: 25 does not speak against either."""
        solutions = tuple(
            solution(rate, rate * mean_ns) for rate, mean_ns in ((1.0, 30.0), (2.0, 20.0), (4.0, 40.0), (8.0, 90.0))
        )
        made = Control("m", 2, 10.0, solutions)
        assert made.agreeing(made.at(1.0), 25.0).rate_per_ns == 1.0
        assert made.agreeing(made.at(2.0), 40.0).rate_per_ns == 4.0
