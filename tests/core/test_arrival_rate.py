"""Arrival rates: what they settle at, how fast they follow, silence, and stamps that make no sense."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.workload import bursty, poisson


def seen(arrivals_ns: list[int]) -> ArrivalRate:
    """An estimate after these arrivals."""
    rate = ArrivalRate()
    for at_ns in arrivals_ns:
        rate.arrived(at_ns)
    return rate


def estimate(rate: ArrivalRate, now: int) -> float:
    """The estimate, which must be there."""
    per_ns = rate.per_ns(now)
    assert per_ns is not None
    return per_ns


def test_one_arrival_is_no_rate() -> None:
    """Neither nothing nor a single request says how fast they come, however long one waits."""
    rate = ArrivalRate()
    assert (rate.per_ns(0), rate.last_arrival_ns) == (None, 0)
    rate.arrived(500)
    assert (rate.per_ns(500), rate.per_ns(10**12), rate.last_arrival_ns) == (None, None, 500)
    rate.arrived(700)
    assert rate.per_ns(700) == pytest.approx(1 / 200)
    assert rate.last_arrival_ns == 700


@pytest.mark.parametrize("gap_ns", [1, 7, 1_000, 10**9, 10**15])
@pytest.mark.parametrize("arrivals", [2, 3, 65, 600, 5_000])
def test_constant_gaps_are_found_exactly(gap_ns: int, arrivals: int) -> None:
    """From the second arrival on, at any scale, whichever memory is full."""
    rate = seen([gap_ns * k for k in range(arrivals)])
    assert rate.per_ns(gap_ns * (arrivals - 1)) == pytest.approx(1 / gap_ns)


def test_at_start_up_the_plain_mean_counts() -> None:
    """A few gaps have equal weights: 10, 30 and 20 make a mean of 20."""
    assert seen([0, 10, 40, 60]).per_ns(60) == pytest.approx(1 / 20)


@pytest.mark.parametrize(("arrivals", "within"), [(60, 0.45), (500, 0.2), (5_000, 0.12), (12_000, 0.06)])
def test_poisson_arrivals_are_found_within_chance(arrivals: int, within: float) -> None:
    """Ten streams: what is seen of a steady stream decides how near the estimate is, in every one of them."""
    for seed in range(10):
        stream = poisson(1e6, arrivals, seed)
        assert estimate(seen(stream), stream[-1]) == pytest.approx(1e-3, rel=within)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_step_in_the_rate_is_followed(factor: float) -> None:
    """After thousands of arrivals at one rate, a thousand of another bring the estimate within a factor of two,
    three thousand within a quarter: in the middle of nine streams."""
    found: dict[int, list[float]] = {1_000: [], 3_000: []}
    for seed in range(9):
        before = poisson(1e6, 3_000, seed)
        after = poisson(1e6 * factor, 3_000, seed + 100, before[-1])
        rate = seen(before)
        for arrivals, at_ns in enumerate(after, 1):
            rate.arrived(at_ns)
            if arrivals in found:
                found[arrivals].append(estimate(rate, at_ns) / 1e-3)
    middle = {arrivals: sorted(each)[4] for arrivals, each in found.items()}
    assert max(middle[1_000] / factor, factor / middle[1_000]) < 2, middle
    assert middle[3_000] == pytest.approx(factor, rel=1 / 4), middle


def test_a_small_change_is_followed_too() -> None:
    """A tenth more is less than chance within a hundred arrivals, not within four thousand."""
    before = poisson(1e6, 6_000, 1)
    after = poisson(1.1e6, 5_000, 2, before[-1])
    assert estimate(seen(before + after), after[-1]) == pytest.approx(1.1e-3, rel=0.05)


def test_silence_decays_the_estimate() -> None:
    """Before the next arrival is due nothing changes; after that the estimate falls, at least as 4 / silence."""
    rate = seen([1_000 * k for k in range(200)])
    last_ns = rate.last_arrival_ns
    assert rate.per_ns(last_ns + 1_000) == rate.per_ns(last_ns) == pytest.approx(1e-3)
    later = [estimate(rate, last_ns + silence_ns) for silence_ns in (2_000, 5_000, 20_000, 10**6, 10**12)]
    assert later == sorted(later, reverse=True)
    assert 1e-3 > later[0] > 0.9e-3
    assert later[-2] <= 4 / 10**6
    assert later[-1] <= 4 / 10**12


def test_asking_changes_nothing() -> None:
    """However often and whenever it was asked, the next arrivals give the same estimate."""
    asked, silent = seen([0, 10, 20]), seen([0, 10, 20])
    for now in (0, 15, 20, 10**9):
        asked.per_ns(now)
    for rate in (asked, silent):
        rate.arrived(30)
    assert asked.per_ns(30) == silent.per_ns(30)


def test_after_a_long_silence_the_rate_is_found_again() -> None:
    """One huge gap between two busy spells weighs for a while, not for good."""
    stream = [1_000 * k for k in range(1_000)]
    pause_ns = stream[-1] + 10**9
    rate = seen(stream + [pause_ns + 1_000 * k for k in range(1_200)])
    assert estimate(rate, rate.last_arrival_ns) == pytest.approx(1e-3, rel=0.2)


def test_simultaneous_arrivals_are_a_high_rate() -> None:
    """Rows that come together, as a client's batch does, give a rate of at most one per nanosecond."""
    rate = seen([100] * 50)
    assert rate.per_ns(100) == 1.0
    assert 0 < estimate(rate, 10_000) < 1.0


@pytest.mark.parametrize("rows", [4, 8, 16, 64])
@pytest.mark.parametrize("apart_ns", [0, 3])
def test_batches_of_arrivals_are_seen_at_their_mean_rate(rows: int, apart_ns: int) -> None:
    """So many rows at a time, one per 1,000 in the long run: the time between two batches is no pause."""
    rate = seen([1_000 * rows * k + apart_ns * row for k in range(6_000 // rows) for row in range(rows)])
    assert estimate(rate, rate.last_arrival_ns) == pytest.approx(1e-3, rel=0.1)


def test_one_batch_at_first_is_soon_outweighed() -> None:
    """Sixteen rows at once, then one per 1,000: the gaps between single rows are no pauses, but for the first few."""
    stream = [0] * 16 + [1_000 * k for k in range(1, 100)]
    assert estimate(seen(stream[:36]), 20_000) < 2.5e-3
    assert estimate(seen(stream), stream[-1]) == pytest.approx(1e-3, rel=0.25)


@pytest.mark.parametrize("tried", [1, 2, 4])
def test_a_server_that_was_tried_once_is_not_slow_for_that(tried: int) -> None:
    """A few rows, ten idle minutes, then users: after a handful of them the rate is theirs."""
    pause_ns = 600 * 10**9
    stream = [1_000 * k for k in range(tried)] + [pause_ns + 1_000 * k for k in range(30)]
    rate = seen(stream)
    assert estimate(rate, rate.last_arrival_ns) == pytest.approx(1e-3, rel=0.1)
    assert rate.recent_per_ns(rate.last_arrival_ns) == pytest.approx(1e-3, rel=0.1)


def test_between_two_batches_the_estimate_stays() -> None:
    """Sixteen rows at a time: while the next batch is not due, silence says nothing; long after that it does."""
    rate = seen([16_000 * k for k in range(200) for _ in range(16)])
    last_ns = rate.last_arrival_ns
    for open_ns in (1_000, 8_000, 15_000):
        assert estimate(rate, last_ns + open_ns) == pytest.approx(1e-3, rel=0.1)
    assert estimate(rate, last_ns + 1_000_000) < 5e-4


def test_two_nights_are_pauses() -> None:
    """Steady days, and nothing in between: in the morning the rate is as it was the day before."""
    rate = ArrivalRate()
    stream = poisson(1e6, 3 * 2_000, 7)
    for number, at_ns in enumerate(stream):
        rate.arrived(at_ns + number // 2_000 * 10**12)
        if number % 2_000 == 1:
            assert number < 10 or estimate(rate, rate.last_arrival_ns) == pytest.approx(1e-3, rel=0.25)


def test_a_burst_and_its_end_are_followed() -> None:
    """Markov-modulated arrivals: while they come, the estimate stays within the rates of calm and burst, or near."""
    stream = bursty(1e6, 20_000, 3, burst_factor=4.0, mean_burst_s=1e-3)
    rate = ArrivalRate()
    estimates = []
    for number, at_ns in enumerate(stream):
        rate.arrived(at_ns)
        if number > 500:
            estimates.append(estimate(rate, at_ns))
    assert max(estimates) < 1.6 * 4e-3
    assert max(estimates) > 2.5e-3, "in a burst it is not held back by the calm"
    assert min(estimates) > 0.5 * (1e-3 * 0.6 / 0.9)


def test_stamps_out_of_order_do_not_break_it() -> None:
    """Threads that stamp requests race by a little: neighbours swapped, the rate stays what it was."""
    stream = [1_000 * k for k in range(5_000)]
    rng = random.Random(5)
    for k in range(0, 4_998, 2):
        if rng.random() < 0.3:
            stream[k], stream[k + 1] = stream[k + 1], stream[k]
    rate = seen(stream)
    assert estimate(rate, stream[-1]) == pytest.approx(1e-3, rel=0.15)


@settings(max_examples=60, deadline=None)
@given(
    stamps=st.lists(st.integers(0, 10**18) | st.integers(0, 10), min_size=2, max_size=100),
    later=st.integers(-(10**18), 10**18),
)
def test_the_estimate_is_positive_and_finite(stamps: list[int], later: int) -> None:
    """Whatever the stamps are, in whatever order, and whenever it is asked: a number to divide by."""
    rate = ArrivalRate()
    for count, at_ns in enumerate(stamps, 1):
        rate.arrived(at_ns)
        per_ns = rate.per_ns(at_ns + later)
        assert (per_ns is None) == (count == 1)
        if per_ns is not None:
            assert math.isfinite(per_ns)
            assert 0 < per_ns <= 1


class TestRecently:
    """The rate of the last few arrivals."""

    def test_nothing_is_known_before_the_second(self) -> None:
        """As for the mean rate."""
        assert ArrivalRate().recent_per_ns(5) is None
        assert seen([5]).recent_per_ns(5) is None
        assert seen([5, 15]).recent_per_ns(15) == pytest.approx(1 / 10)

    def test_a_burst_shows_at_once_and_leaves_the_mean_alone(self) -> None:
        """Eight gaps of a tenth after 500 steady ones: recently five times as fast and more, the mean as before."""
        steady = [1_000 * k for k in range(501)]
        burst = [steady[-1] + 100 * k for k in range(1, 9)]
        rate = seen(steady + burst)
        assert 5 / 1_000 < (rate.recent_per_ns(burst[-1]) or 0.0) < 10 / 1_000
        assert estimate(rate, burst[-1]) == pytest.approx(1 / 1_000, rel=0.05)

    def test_an_open_gap_counts_once_it_is_longer(self) -> None:
        """After gaps of 100: still 100 when 90 have passed, a quarter of the way to 500 when 500 have."""
        rate = seen([100 * k for k in range(50)])
        assert rate.recent_per_ns(4_990) == pytest.approx(1 / 100)
        assert rate.recent_per_ns(5_400) == pytest.approx(1 / 200)
