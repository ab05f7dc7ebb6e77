"""Arrival processes whose rate changes: bursts, swings, phases."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.errors import InvalidInput
from lazybatch.workload import NS_PER_S, bursty, diurnal, phased


def _variance_over_mean(arrivals: list[int], window_ns: int) -> float:
    """Index of dispersion of the counts per window: 1 for Poisson, more for bursts."""
    counts = [0] * (arrivals[-1] // window_ns)
    for at_ns in arrivals:
        if at_ns // window_ns < len(counts):
            counts[at_ns // window_ns] += 1
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / mean


@given(st.floats(0.5, 1e5), st.integers(0, 200), st.integers(0, 2**32))
def test_all_are_seeded_ordered_and_whole(rate: float, requests: int, seed: int) -> None:
    """Any rate and seed give that many whole, non-decreasing times, the same ones again, and a start shifts them."""
    period_s = 100 / rate
    for make in (
        lambda start: bursty(rate, requests, seed, start, mean_burst_s=period_s),
        lambda start: diurnal(rate, requests, seed, start, period_s=period_s),
        lambda start: phased([(period_s, rate), (period_s, 2 * rate)], requests, seed, start),
    ):
        arrivals = make(0)
        assert len(arrivals) == requests
        assert all(isinstance(at_ns, int) and at_ns >= 0 for at_ns in arrivals)
        assert all(a <= b for a, b in pairwise(arrivals))
        assert make(7) == [at_ns + 7 for at_ns in arrivals]


def test_bursts_keep_the_mean_and_spread_the_counts() -> None:
    """A burst factor of 6 leaves the mean rate as asked, and counts vary far more than Poisson's; a factor of 1 not."""
    arrivals = bursty(1_000.0, 60_000, seed=3, burst_factor=6.0, mean_burst_s=0.05, burst_share=0.1)
    assert len(arrivals) * NS_PER_S / arrivals[-1] == pytest.approx(1_000.0, rel=0.1)
    assert _variance_over_mean(arrivals, 50_000_000) > 10
    steady = bursty(1_000.0, 60_000, seed=3, burst_factor=1.0)
    assert _variance_over_mean(steady, 50_000_000) == pytest.approx(1.0, abs=0.2)


def test_bursts_can_be_everything() -> None:
    """Factor times share of 1: nothing arrives in the calms, and the mean still holds."""
    arrivals = bursty(100.0, 20_000, seed=1, burst_factor=5.0, burst_share=0.2, mean_burst_s=0.05)
    assert len(arrivals) * NS_PER_S / arrivals[-1] == pytest.approx(100.0, rel=0.15)


def test_swings_are_where_they_should_be() -> None:
    """The half period around the crest brings the share of requests that the integral of the rate says."""
    arrivals = diurnal(1_000.0, 40_000, seed=2, period_s=4.0, depth=0.8)
    whole = arrivals[-1] // (4 * NS_PER_S)
    inside = [at_ns / NS_PER_S % 4.0 for at_ns in arrivals if at_ns < whole * 4 * NS_PER_S]
    crest = sum(1.0 <= second < 3.0 for second in inside) / len(inside)
    assert crest == pytest.approx(0.5 + 0.8 / math.pi, abs=0.02)
    assert len(inside) / (4.0 * whole) == pytest.approx(1_000.0, rel=0.03)


def test_phases_follow_each_other() -> None:
    """Counts per phase are the rates asked for, silence is silent, and the sequence repeats."""
    arrivals = phased([(1.0, 2_000.0), (0.5, 0.0), (2.0, 500.0)], 12_000, seed=5)
    counts = [0, 0, 0]
    rounds = arrivals[-1] / NS_PER_S / 3.5
    for at_ns in arrivals:
        second = at_ns / NS_PER_S % 3.5
        counts[0 if second < 1.0 else 1 if second < 1.5 else 2] += 1
    assert counts[1] == 0
    assert counts[0] == pytest.approx(2_000 * rounds, rel=0.15)
    assert counts[2] == pytest.approx(1_000 * rounds, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_absurd_rates(rate: float) -> None:
    """A mean rate that is not a positive number is refused by name; so is a negative count."""
    for process in (bursty, diurnal):
        with pytest.raises(InvalidInput, match="rate"):
            process(rate, 10)
        with pytest.raises(InvalidInput, match="number of requests"):
            process(1.0, -1)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"burst_factor": 0.5}, "burst_factor"),
        ({"burst_factor": math.nan}, "burst_factor"),
        ({"burst_factor": 20.0}, "more than all"),
        ({"burst_share": 0.0}, "burst_share"),
        ({"burst_share": 1.0}, "burst_share"),
        ({"mean_burst_s": 0.0}, "mean_burst_s"),
    ],
)
def test_absurd_bursts(options: dict[str, float], culprit: str) -> None:
    """Bursts that cannot be are refused by the parameter's name."""
    with pytest.raises(InvalidInput, match=culprit):
        bursty(10.0, 5, **options)


def test_absurd_swings_and_phases() -> None:
    """A depth above 1, no period, a phase without length, a negative rate, phases of silence alone."""
    with pytest.raises(InvalidInput, match="depth"):
        diurnal(10.0, 5, depth=1.5)
    with pytest.raises(InvalidInput, match="period_s"):
        diurnal(10.0, 5, period_s=math.nan)
    with pytest.raises(InvalidInput, match="phase 2: its length"):
        phased([(1.0, 1.0), (0.0, 1.0)], 5)
    with pytest.raises(InvalidInput, match="phase 1: its rate"):
        phased([(1.0, math.nan)], 5)
    with pytest.raises(InvalidInput, match="zero in all"):
        phased([(1.0, 0.0)], 5)
    with pytest.raises(InvalidInput, match="number of requests"):
        phased([(1.0, 1.0)], -1)
