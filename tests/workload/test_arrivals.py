"""Steady arrival processes, and recorded times."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.errors import InvalidInput
from lazybatch.workload import poisson, recorded, uniform


@given(st.floats(0.01, 1e7), st.integers(0, 500), st.integers(0, 2**32))
def test_poisson_is_seeded_ordered_and_whole(rate: float, requests: int, seed: int) -> None:
    """Any rate and seed give that many whole, non-decreasing times, and the same ones again."""
    arrivals = poisson(rate, requests, seed)
    assert len(arrivals) == requests
    assert arrivals == sorted(arrivals)
    assert all(isinstance(at_ns, int) for at_ns in arrivals)
    assert arrivals == poisson(rate, requests, seed)


def test_poisson_has_the_rate_and_the_spread() -> None:
    """20,000 gaps at 100/s have the mean and the standard deviation (equal to the mean) of an exponential law."""
    arrivals = poisson(100.0, 20_000, seed=7)
    gaps = [b - a for a, b in zip([0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(10_000_000, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)


def test_poisson_is_pinned() -> None:
    """The numbers of one seed are written down: a change of them would change every recorded result."""
    assert poisson(1_000.0, 3, seed=1) == [144_291, 2_024_447, 3_467_416]


def test_seeds_and_starts_differ() -> None:
    """Another seed gives other times; a start shifts them."""
    assert poisson(10.0, 50, seed=1) != poisson(10.0, 50, seed=2)
    assert poisson(10.0, 1, seed=1, start_ns=5_000)[0] == poisson(10.0, 1, seed=1)[0] + 5_000


def test_uniform_does_not_drift() -> None:
    """Equal gaps, without a rounding error that adds up."""
    assert uniform(3.0, 4, start_ns=5) == [5, 333_333_338, 666_666_672, 1_000_000_005]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-300, math.nan, math.inf])
def test_absurd_rates(rate: float) -> None:
    """A rate that is not a positive number is refused by name."""
    for process in (poisson, uniform):
        with pytest.raises(InvalidInput, match="rate"):
            process(rate, 10)
    with pytest.raises(InvalidInput, match="number of requests"):
        poisson(1.0, -1)


def test_recorded_file(tmp_path: Path) -> None:
    """Seconds in a file become exact nanoseconds; comments and empty lines are skipped."""
    path = tmp_path / "arrivals.txt"
    path.write_text("# seconds\n0\n0.000000001\n\n0.1\n0.1\n1e1\n")
    assert recorded(path) == [0, 1, 100_000_000, 100_000_000, 10_000_000_000]
    assert recorded([0, 0.5, "1"]) == [0, 500_000_000, 1_000_000_000]


@pytest.mark.parametrize(
    ("text", "culprit"),
    [("1\n2\n1.5\n", "line 3: out of order"), ("x\n", "line 1: 'x'"), ("nan\n", "line 1"), ("-1\n", "line 1")],
)
def test_bad_traces_name_the_line(tmp_path: Path, text: str, culprit: str) -> None:
    """Times out of order, not numbers, not finite or negative: the line is named."""
    path = tmp_path / "arrivals.txt"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=culprit):
        recorded(path)


def test_unreadable_trace(tmp_path: Path) -> None:
    """A missing file and a file that is not text are refused by name."""
    with pytest.raises(InvalidInput, match=r"nothing\.txt"):
        recorded(tmp_path / "nothing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InvalidInput, match=r"binary\.txt"):
        recorded(tmp_path / "binary.txt")
    with pytest.raises(InvalidInput, match="entry 2: out of order"):
        recorded([2, 1])
