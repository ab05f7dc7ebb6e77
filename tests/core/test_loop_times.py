"""What loops and the way to them take."""

from __future__ import annotations

import pytest

from lazybatch.core.lane import Lane
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_times import loop_times
from tests.core.loop_kit import loop_spec

TABLE = LatencyTable(
    "m",
    ("embed", "read", "bridge", "step", "head"),
    (1, 4),
    ((5, 5), (10, 40), (7, 7), (100, 400), (2, 8)),
    ((5, 5), (10, 40), (7, 7), (100, 400), (2, 8)),
)
"""5, 10 b, 7, 100 b and 2 b ns."""


def test_a_chain_before_and_behind() -> None:
    """The way is the chain's time; those who leave run the head while the others wait: with 2 trips, half of them."""
    one = Lane(
        loop_spec(
            2,
            (0, 1),
            table=LatencyTable("m", ("step", "head"), (1, 4), ((100, 400), (8, 32)), ((1, 1), (1, 1))),
            max_batch_size=4,
        )
    )
    assert loop_times(one, 0) == ((0, 0, 0, 0, 0), (0, 108, 216, 324, 432), 1), "all leave after one trip"
    two = Lane(loop_spec(5, (3, 4), table=TABLE, max_batch_size=4, lengths=(LengthGuess.of([1, 3]),)))
    times = loop_times(two, 0)
    assert times.before_ns == (0, 22, 32, 42, 52)
    assert times.trips == 2
    assert times.step_ns[1] == 100 + 0.5 * 2
    assert times.step_ns[4] == pytest.approx(400 + (1 - 0.5**4) * 4)


def test_a_loop_on_the_way_is_run_until_the_last_is_through() -> None:
    """Of rows that make 1 or 3 trips all run the first iteration, those left the second and third: by expectation."""
    lengths = (LengthGuess.of([1, 3]), LengthGuess.of([2]))
    lane = Lane(loop_spec(5, (1, 2), (3, 4), table=TABLE, max_batch_size=4, lengths=lengths))
    times = loop_times(lane, 1)
    assert times.before_ns[1] == pytest.approx(5 + 10 + 2 * 0.5 * 10 + 7)
    anybody = 1 - 0.5**4
    assert times.before_ns[4] == pytest.approx(5 + 40 + 2 * anybody * 20 + 7), "two of four are left, if any"
    first = loop_times(lane, 0)
    assert first.before_ns == (0, 5, 5, 5, 5)
    assert first.step_ns == (0, 10, 20, 30, 40), "who leaves waits for the others, and holds nobody up"


def test_maxima_bound_what_lengths_say() -> None:
    """No row makes more trips than the loop allows; without lengths all make the most, or one."""
    bounded = Lane(loop_spec(5, (1, 2), (3, 4), table=TABLE, trips_max=2, max_batch_size=4))
    assert loop_times(bounded, 1).before_ns[1] == 5 + 2 * 10 + 7
    assert loop_times(bounded, 1).trips == 2
    seen = Lane(
        loop_spec(5, (1, 2), (3, 4), table=TABLE, trips_max=2, max_batch_size=4, lengths=(LengthGuess.of([9]), None))
    )
    assert loop_times(seen, 1).before_ns[1] == 5 + 2 * 10 + 7
    assert loop_times(seen, 0).trips == 2
    assert loop_times(Lane(loop_spec(5, (3, 4), table=TABLE)), 0).trips == 1
