"""Latency tables: interpolation, conservative extrapolation, sums over nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.errors import InvalidInput


def table(*rows: tuple[int, ...], sizes: tuple[int, ...] = (1, 4), high: Any = None) -> LatencyTable:
    """A table of one row of times per node."""
    names = tuple("abcdef"[: len(rows)])
    return LatencyTable("net", names, sizes, rows, rows if high is None else high)


def test_profiled_sizes_are_exact_and_between_them_is_a_line() -> None:
    """100 ns at 1 row and 160 at 4: 120 at 2, 140 at 3, and no rows take no time."""
    net = table((100, 160))
    assert net.dense_ns(4) == ((0, 100, 120, 140, 160),)
    assert [net.node_ns(0, rows) for rows in range(5)] == [0, 100, 120, 140, 160]


def test_the_dense_table_can_be_shorter_than_the_profile() -> None:
    """A lane with a smaller maximum keeps only its own sizes."""
    assert table((100, 160)).dense_ns(2) == ((0, 100, 120),)


def test_beyond_the_profile_the_last_slope_goes_on() -> None:
    """Where time per row still rises, the last segment is prolonged: 100, 400 at 2, so 700 at 3."""
    assert table((100, 400), sizes=(1, 2)).node_ns(0, 3) == 700


def test_beyond_the_profile_no_row_gets_cheaper() -> None:
    """Where the last segment is flat, the time per row of the largest profiled size is kept: 100 at 4 is 200 at 8."""
    assert table((100, 100)).dense_ns(8)[0][5:] == (125, 150, 175, 200)


def test_a_profile_of_size_one_charges_every_row_in_full() -> None:
    """With batch 1 alone nothing is known about batching, so two rows take twice the time."""
    assert table((100,), sizes=(1,)).dense_ns(3) == ((0, 100, 200, 300),)


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(2, 64), st.integers(1, 100))
def test_extrapolation_is_conservative(t_one: int, t_last: int, last: int, beyond: int) -> None:
    """Past the largest profiled size, time per row is never below the profiled one (but for rounding down)."""
    net = table((t_one, t_last), sizes=(1, last))
    rows = last + beyond
    assert net.node_ns(0, rows) >= t_last * rows // last - 1


def test_the_high_quantile_has_its_own_table() -> None:
    """`dense_ns(high=True)` reads the high quantile, the default the median."""
    net = table((100, 160), high=((200, 320),))
    assert net.dense_ns(4, high=True) == ((0, 200, 240, 280, 320),)
    assert net.dense_ns(4)[0][1] == 100


def test_algorithm_one_sums_the_static_nodes() -> None:
    """Graph latency is the sum of NodeLatency over the nodes; what remains after a cursor is the rest of that sum."""
    net = table((10, 40), (20, 50), (30, 60))
    assert net.whole_ns(1) == 60
    assert net.whole_ns(4) == 150
    assert net.remaining_ns() == (60, 50, 30, 0)
    assert net.remaining_ns(4) == (150, 110, 60, 0)


def test_what_the_engine_takes_is_part_of_every_entry_of_the_dispatched_table() -> None:
    """The first node by what opening takes, the others by what going on does, at every size, and only once."""
    plain = table((100, 160), (100, 160))
    measured = replace(plain, engine=EngineTime(7, 2, 5, 1))
    more = measured.dispatched()
    assert measured.whole_ns(1) == plain.whole_ns(1), "what is asked of a table is of its nodes alone"
    assert (more.nodes, more.engine) == (plain.nodes, None)
    for rows in range(1, 5):
        assert more.node_ns(0, rows) == plain.node_ns(0, rows) + 7 + 2 * rows
        assert more.node_ns(1, rows) == plain.node_ns(1, rows) + 5 + rows
        assert more.dense_ns(4, high=True)[1][rows] == plain.dense_ns(4, high=True)[1][rows] + 5 + rows
    assert more.dispatched() is more
    assert plain.dispatched() is plain
    assert measured.weighted((1, 3)).engine is None, "the weights are of the nodes alone"


def test_what_moving_rows_takes_belongs_to_no_node() -> None:
    """It stays beside the dispatched table's times, and is a time per move and one per row."""
    plain = table((100, 160))
    moving = EngineTime(move_ns=50, move_row_ns=3)
    more = replace(plain, engine=replace(moving, open_ns=7)).dispatched()
    assert (more.node_ns(0, 2), more.engine) == (plain.node_ns(0, 2) + 7, moving)
    assert more.dispatched() is more
    assert moving.moving_ns(2, 5) == 115
    assert EngineTime(9, 9, 9, 9).moving_ns(2, 5) == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_an_engine_time_is_whole_nanoseconds(wrong: Any) -> None:
    """What is none names the field and the value; nothing given is nothing taken."""
    with pytest.raises(InvalidInput, match=f"engine time: continue_ns must be a whole number .* got {wrong!r}"):
        EngineTime(1, 1, wrong, 1)
    with pytest.raises(InvalidInput, match="engine time: move_ns is above 2\\*\\*63 nanoseconds"):
        EngineTime(move_ns=10**320)
    assert EngineTime().before_ns(0, 9) == EngineTime().before_ns(1, 9) == 0


def test_best_rows_is_the_size_of_highest_throughput() -> None:
    """The largest size wins where batching pays, 1 where it does not, and the smallest of equals."""
    assert table((100, 160)).best_rows(4) == 4
    assert table((100, 500)).best_rows(4) == 1
    assert table((100, 400)).best_rows(4) == 1


def test_uniform_is_fixed_plus_per_row_over_equal_nodes() -> None:
    """S(b) = 60 + 20 b over 2 nodes: 40 and 70 each; times never fall below one nanosecond."""
    net = LatencyTable.uniform("net", 2, 60, 20, (1, 4))
    assert net.nodes == ("node0", "node1")
    assert net.median_ns == ((40, 70), (40, 70)) == net.high_ns
    assert net.provenance == {"synthetic": True}
    assert LatencyTable.uniform("net", 8, 1, 0, (1,)).node_ns(0, 1) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ()}, "'net': no nodes"),
        ({"batch_sizes": ()}, "batch sizes must increase from 1, got \\[\\]"),
        ({"batch_sizes": (2, 4)}, "batch sizes must increase from 1, got \\[2, 4\\]"),
        ({"batch_sizes": (1, 1)}, "batch sizes must increase from 1"),
        ({"batch_sizes": (1, 10**30)}, "is above 65536"),
        ({"median_ns": ((1, 2),)}, "1 median rows for 2 nodes"),
        ({"high_ns": ((1, 2),) * 3}, "3 high rows for 2 nodes"),
        ({"median_ns": ((1, 2), (1,))}, "node 'b' has 1 median times for 2 batch sizes"),
        ({"median_ns": ((1, 2), (1, 10**320))}, "node 'b' at batch 4: median time is above 2\\*\\*63"),
        ({"median_ns": ((1, 2), (1, 0))}, "node 'b' at batch 4: median time 0 is not a positive"),
        ({"high_ns": ((1, 2.5), (1, 2))}, "node 'a' at batch 4: high time 2.5 is not a positive whole"),
    ],
)
def test_bad_tables_are_refused_by_node_and_size(changes: dict[str, Any], message: str) -> None:
    """Holes, sizes out of order and times that are not positive whole numbers are errors that name the place."""
    fields: dict[str, Any] = {
        "model": "net",
        "nodes": ("a", "b"),
        "batch_sizes": (1, 4),
        "median_ns": ((1, 2), (1, 2)),
        "high_ns": ((1, 2), (1, 2)),
    }
    with pytest.raises(InvalidInput, match=message):
        LatencyTable(**(fields | changes))


def test_tables_of_shorter_rows_are_of_the_same_nodes() -> None:
    """A padded model's table holds those of its other lengths; a length without one is reckoned as the longest."""
    long, short = table((100, 160), (50, 60)), table((10, 16), (5, 6))
    both = replace(long, shorter={16: short})
    assert both.at(16) is short
    assert both.at(None) is both.at(64) is both
    with pytest.raises(InvalidInput, match="that of length 16 is not of the same nodes"):
        replace(long, shorter={16: table((1, 2))})
    with pytest.raises(InvalidInput, match="that of length 16 is not of the same nodes"):
        replace(long, shorter={16: both})
