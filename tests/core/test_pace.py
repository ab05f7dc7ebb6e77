"""The pace of the machine: what it settles at, how fast it follows, and nodes during which the machine was away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.pace import Pace

RUN_NS = 1_000


def seen(*ratios: float, expected_ns: int = RUN_NS) -> Pace:
    """The pace after nodes that took so many times what they should have."""
    pace = Pace(RUN_NS)
    for ratio in ratios:
        pace.ran(round(ratio * expected_ns), expected_ns)
    return pace


def test_before_anything_ran_the_table_is_right() -> None:
    """And it stays right while nodes take what it says."""
    assert seen().ratio == 1.0
    assert seen(*[1.0] * 1_000, expected_ns=333).ratio == 1.0


def test_it_follows_from_the_first_run_on() -> None:
    """A run at twice the time counts for a quarter of what is believed: 1.25, and after three 1.58."""
    assert seen(2.0).ratio == pytest.approx(1.25)
    assert seen(2.0, 2.0, 2.0).ratio == pytest.approx(2 - 0.75**3)


def test_nodes_that_are_seen_one_late_do_not_bend_it() -> None:
    """Where nodes are started one ahead, each seems to take what the one before it took: over a run it is the same."""
    pace = Pace(RUN_NS)
    for _ in range(200):
        for took_ns, expected_ns in ((1, 700), (700, 200), (200, 100), (100, 0), (0, 1)):
            pace.ran(took_ns, max(1, expected_ns))
    assert pace.ratio == pytest.approx(1.0, rel=0.01)


def test_a_clock_that_stands_still_does_not_end_it() -> None:
    """Nodes that take no time leave a ratio that can be divided by, and later ones are learnt from again."""
    pace = seen(*[0.0] * 10_000)
    assert pace.ratio == 1 / 64
    for _ in range(300):
        pace.ran(RUN_NS, RUN_NS)
    assert pace.ratio == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("expected_ns", [50, RUN_NS, 16 * RUN_NS, 100 * RUN_NS])
@pytest.mark.parametrize("ratio", [0.4, 2.5])
def test_a_lasting_change_is_found(ratio: float, expected_ns: int) -> None:
    """Whether nodes are a part of a run of one row, or much longer: after as much work as a hundred runs, and a dozen
    nodes at least."""
    pace = seen(*[1.0] * 100)
    for _ in range(max(12, 100 * RUN_NS // expected_ns)):
        pace.ran(round(ratio * expected_ns), expected_ns)
    assert pace.ratio == pytest.approx(ratio, rel=0.12)


def test_one_interruption_hardly_counts() -> None:
    """The machine was elsewhere for a thousand runs: by no more than four times one of many is that believed; and of a
    batch that is as long as all that is remembered, by a quarter."""
    pace = seen(*[1.0] * 100)
    pace.ran(1_000 * RUN_NS, RUN_NS)
    assert pace.ratio == pytest.approx(1 + 3 / 32)
    pace = seen(*[1.0] * 100)
    pace.ran(5_000 * RUN_NS, 50 * RUN_NS)
    assert pace.ratio == pytest.approx(1 + 3 / 4)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), max_size=50))
def test_it_lies_between_what_was_seen(nodes: list[tuple[int, int]]) -> None:
    """Never below the least ratio, nor above the largest, the table's own among them; and never below its floor."""
    pace = Pace(RUN_NS)
    for took_ns, expected_ns in nodes:
        pace.ran(took_ns, expected_ns)
    ratios = [1.0, *(took_ns / expected_ns for took_ns, expected_ns in nodes)]
    assert max(1 / 64, min(ratios)) * 0.999_999 <= pace.ratio <= max(ratios) * 1.000_001
