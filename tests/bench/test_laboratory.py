"""Profiles: known by name, the same model at every number of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.laboratory import NODES, SYNTHETIC, chosen, joined, known, profile
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput


@pytest.mark.parametrize("name", known())
def test_profiles_keep_the_whole_time(name: str) -> None:
    """A profile's two tables agree at every batch size; long ones have at most the stated number of nodes."""
    made = profile(name)
    assert len(made.nodes.nodes) <= max(NODES, SYNTHETIC.get(name, (0, 0, 0, 0))[2])
    assert len(made.whole.nodes) == 1
    for rows in range(1, made.rows_max + 1):
        assert made.nodes.whole_ns(rows) == made.whole.whole_ns(rows) == made.whole_ns(rows)
    assert made.tight_ns < made.loose_ns
    assert made.capacity_rps >= 1e9 / made.whole_ns(1)


def test_synthetic_profiles_are_what_they_say() -> None:
    """S(b) = F + c b, to the rounding of a node's nanoseconds."""
    for name, (fixed_ms, per_row_ms, nodes, rows_max) in SYNTHETIC.items():
        made = profile(name)
        assert (len(made.nodes.nodes), made.rows_max) == (nodes, rows_max)
        assert made.whole_ns(8) == pytest.approx((fixed_ms + 8 * per_row_ms) * 1e6, abs=2 * nodes)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    times=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), min_size=1, max_size=60),
    nodes=st.integers(1, 12),
)
def test_joining_keeps_times_and_order(times: list[tuple[int, int]], nodes: int) -> None:
    """Any table: at most so many nodes, and every whole time as it was; short tables are left as they are."""
    per_node = tuple((low, low + more) for low, more in times)
    table = LatencyTable("m", tuple(f"n{k}" for k in range(len(times))), (1, 4), per_node, per_node)
    short = joined(table, nodes, 4)
    assert 1 <= len(short.nodes) <= max(nodes, 1)
    assert [short.whole_ns(rows) for rows in (1, 2, 3, 4)] == [table.whole_ns(rows) for rows in (1, 2, 3, 4)]
    if len(times) <= nodes:
        assert len(short.nodes) == len(times)


def test_names() -> None:
    """A folder stands for its tables, nothing for all; unknown names are refused with what is known."""
    assert len(chosen(["npu-128x128"])) == 7
    assert chosen(["gpu", "gpu"]) == ("gpu",)
    assert chosen(None) == known()
    with pytest.raises(InvalidInput, match="unknown profile 'cpu-z'; known are gpu, launch"):
        chosen(["cpu-z"])
    with pytest.raises(InvalidInput, match="unknown profile 'npu-128x128'"):
        profile("npu-128x128")
