"""The solved node-level control: against the graph level, its own simulation, and the default policy."""

from __future__ import annotations

import numpy as np
import pytest

from bench.node_optimum import NodeControl, Solved, solve_nodes
from bench.small_optimum import measure_small, smalls_of
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.simulator import requests_from, simulate
from lazybatch.solver import solve
from lazybatch.workload import poisson

ROWS_MAX = 6
UNEVEN = LatencyTable(
    "m", ("a", "b", "c"), (1, 6), ((2000, 3000), (5000, 9000), (1000, 1200)), ((2000, 3000), (5000, 9000), (1000, 1200))
)


def capacity(table: LatencyTable) -> float:
    """Rows per nanosecond of the best batch."""
    return max(rows / table.whole_ns(rows) for rows in range(1, ROWS_MAX + 1))


@pytest.mark.parametrize("load", [0.1, 0.4, 0.7])
def test_one_node_is_the_graph_level(load: float) -> None:
    """Where there is no boundary to join at, the gain is that of the graph-level solver."""
    table = LatencyTable.uniform("m", 1, 6000, 1500, range(1, ROWS_MAX + 1))
    graph_level = solve(table, ROWS_MAX, loads=[load]).solutions[0]
    node_level = solve_nodes(table, ROWS_MAX, load * capacity(table), 60)
    assert node_level.gain_rows == pytest.approx(graph_level.gain_rows, rel=1e-3)


@pytest.mark.parametrize("load", [0.2, 0.5])
def test_joining_only_helps(load: float) -> None:
    """The same model in several nodes: at most the graph-level gain, and truly less at moderate loads."""
    rate = load * capacity(UNEVEN)
    graph_level = solve(UNEVEN, ROWS_MAX, loads=[load]).solutions[0]
    node_level = solve_nodes(UNEVEN, ROWS_MAX, rate, 60)
    assert node_level.gain_rows < 0.995 * graph_level.gain_rows
    assert (node_level.join[0] == 0).all(), "those at the first node have started: nobody can catch up"
    assert node_level.join.max() > 0


def test_simulated_as_solved() -> None:
    """Following the control in the simulator gives the mean latency it promises, and asks nothing impossible."""
    rate = 0.3 * capacity(UNEVEN)
    control = solve_nodes(UNEVEN, ROWS_MAX, rate, 60)
    lane = LaneSpec(NodeGraph.chain("m", UNEVEN.nodes), UNEVEN, ROWS_MAX, queue_capacity=10**6)
    result = simulate([lane], Solved(control), requests_from(poisson(rate * 1e9, 20_000, 4), "m"))
    assert result.scheduler.counts.policy_failures == 0
    assert result.merges > 0
    mean_ns = sum(result.latencies_ns.values()) / len(result.latencies_ns)
    assert mean_ns == pytest.approx(control.mean_ns, rel=0.02)


def test_a_control_that_waits_ends_with_the_trace() -> None:
    """When no further request can come, waiting for one more is given up."""
    never = NodeControl(1.0, 1.0, np.zeros(5, np.int64), np.zeros((3, ROWS_MAX + 1, 5), np.int64))
    lane = LaneSpec(NodeGraph.chain("m", UNEVEN.nodes), UNEVEN, ROWS_MAX)
    result = simulate([lane], Solved(never), requests_from([0, 10], "m"))
    assert len(result.latencies_ns) == 2
    assert result.scheduler.counts.policy_failures == 0


def test_bad_problems_are_refused() -> None:
    """Fewer states than rows, or no arrivals."""
    with pytest.raises(InvalidInput, match="states >= 6"):
        solve_nodes(UNEVEN, ROWS_MAX, 1e-4, 5)
    with pytest.raises(InvalidInput, match="positive rate"):
        solve_nodes(UNEVEN, ROWS_MAX, 0.0, 60)


def test_nothing_is_much_better_than_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """On small instances neither ours nor GraphB(0) beats the optimum by more than noise."""
    monkeypatch.setattr("bench.small_optimum.LOADS", (0.4,))
    for row in map(measure_small, smalls_of(requests=3_000, seeds=1)):
        assert row["optimum_ms"] == pytest.approx(row["solved_ms"], rel=0.05)
        assert row["over_optimum"] > 0.98
        assert row["graphb0_ms"] > 0.98 * row["optimum_ms"]
