"""Bounds and clairvoyant optima: against exhaustive search, against each other, against the simulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.bounds import (
    affine_above,
    best_graph_goodput,
    best_graph_total_latency_ns,
    best_node_total_latency_ns,
    goodput_bound,
    graph_batching_mean,
    graph_capacity_rps,
    node_capacity_rps,
    row_cost_ns,
    shortest_ns,
    total_latency_bound_ns,
    whole_ns,
)
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import by_name
from lazybatch.errors import InvalidInput
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson
from tests.exhaustive import graph_level, node_level


def _table(times: tuple[tuple[int, ...], ...]) -> LatencyTable:
    names = tuple(f"n{k}" for k in range(len(times)))
    return LatencyTable("m", names, tuple(range(1, len(times[0]) + 1)), times, times)


def _tables(nodes: int, rows: int) -> st.SearchStrategy[LatencyTable]:
    """Any positive times, growing with the batch."""
    times = st.lists(st.integers(1, 9), min_size=rows, max_size=rows).map(lambda t: tuple(sorted(t)))
    return st.lists(times, min_size=1, max_size=nodes).map(lambda rows_: _table(tuple(rows_)))


def _simulate(table: LatencyTable, rows_max: int, arrivals: list[int], name: str, sla: int | None) -> SimulationResult:
    lane = LaneSpec(NodeGraph.chain("m", table.nodes), table, rows_max, queue_capacity=10**6, sla_ns=sla)
    return simulate([lane], by_name(name), requests_from(arrivals, "m", sla_ns=sla))


ARRIVALS = st.lists(st.integers(0, 25), min_size=1, max_size=4).map(sorted)


@settings(max_examples=60, deadline=None)
@given(_tables(2, 3), ARRIVALS)
def test_latency_optima_are_those_of_exhaustive_search(table: LatencyTable, arrivals: list[int]) -> None:
    """The dynamic programmes find what trying everything finds; the bound is below, node level below graph level."""
    node = best_node_total_latency_ns(table, 3, arrivals)
    graph = best_graph_total_latency_ns(table, 3, arrivals)
    assert node == node_level(table, 3, arrivals)
    assert graph == graph_level(table, 3, arrivals)
    assert total_latency_bound_ns(table, 3, arrivals) <= node + 1e-6
    assert node <= graph


@settings(max_examples=60, deadline=None)
@given(_tables(2, 3), ARRIVALS, st.integers(1, 40))
def test_goodput_optimum_is_that_of_exhaustive_search(table: LatencyTable, arrivals: list[int], sla: int) -> None:
    """The dynamic programme finds what trying everything finds; the bound is above the best at node level."""
    graph = best_graph_goodput(table, 3, arrivals, sla)
    assert graph == graph_level(table, 3, arrivals, sla)
    node = node_level(table, 3, arrivals, sla)
    assert graph <= node <= goodput_bound(table, 3, arrivals, sla)


@settings(max_examples=40, deadline=None)
@given(
    _tables(4, 4),
    st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
    st.integers(5, 80),
    st.sampled_from(["serial", "graph", "lazy"]),
)
def test_no_policy_beats_a_bound(table: LatencyTable, arrivals: list[int], sla: int, name: str) -> None:
    """Every policy's summed latency is at least the node-level optimum, its goodput at most the bound."""
    run = _simulate(table, 4, arrivals, name, sla)
    total = sum(run.latencies_ns.values())
    assert total >= best_node_total_latency_ns(table, 4, arrivals) >= total_latency_bound_ns(table, 4, arrivals) - 1e-6
    assert len(arrivals) - len(run.late) <= goodput_bound(table, 4, arrivals, sla)
    if name != "lazy":
        assert total >= best_graph_total_latency_ns(table, 4, arrivals)


def test_bounds_hold_on_long_traces() -> None:
    """Two thousand arrivals at three loads: lower bound, clairvoyant optimum, and GraphB(0) come in this order."""
    table = LatencyTable.uniform("m", 10, 6_100_000, 1_390_000, (1, 2, 4, 8, 16))
    for load in (0.2, 0.6, 0.95):
        arrivals = poisson(load * graph_capacity_rps(table, 16), 600, seed=2)
        run = _simulate(table, 16, arrivals, "graph", None)
        total = sum(run.latencies_ns.values())
        best = best_graph_total_latency_ns(table, 16, arrivals)
        assert total_latency_bound_ns(table, 16, arrivals) <= best <= total


def test_overload_is_bounded() -> None:
    """At 1.5 times capacity the clairvoyant optimum loses rows, and stays below the node-level bound."""
    table = LatencyTable.uniform("m", 10, 6_100_000, 1_390_000, (1, 2, 4, 8, 16))
    arrivals = poisson(1.5 * graph_capacity_rps(table, 16), 800, seed=3)
    best = best_graph_goodput(table, 16, arrivals, 100_000_000)
    bound = goodput_bound(table, 16, arrivals, 100_000_000)
    assert 0.55 * 800 < best <= bound < 800


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.95])
def test_the_closed_form_bounds_the_simulator(load: float) -> None:
    """S(b) = 0.7 + 0.4 b ms: simulated GraphB(0) is below the closed form, and near it up to a load of 0.8."""
    table = LatencyTable.uniform("m", 1, 700_000, 400_000, tuple(range(1, 400)))
    rate_rps = load / 0.4e-3
    run = _simulate(table, 399, poisson(rate_rps, 40_000, seed=5), "graph", None)
    mean_ns = sum(run.latencies_ns.values()) / len(run.latencies_ns)
    closed = graph_batching_mean(700_000, 400_000, rate_rps)
    assert mean_ns <= closed.mean_ns * 1.03
    if load <= 0.8:
        assert mean_ns >= closed.mean_ns * 0.93


def test_the_closed_form_by_hand() -> None:
    """Both bounds at a load of one half without a fixed part; and S(1) where so few come that each runs alone."""
    closed = graph_batching_mean(0, 1_000_000, 500.0)
    assert closed.phi0_ns == pytest.approx(1e6 * (1 + 1 / 1.5))
    assert closed.phi1_ns == pytest.approx(0.5e6 * 2.5 / 0.75)
    assert closed.mean_ns == min(closed.phi0_ns, closed.phi1_ns)
    assert graph_batching_mean(5e6, 1e6, 0.001).mean_ns == pytest.approx(6e6, rel=1e-3)


def test_capacities_by_hand() -> None:
    """One node is best at 1, the other at 2: graph level must compromise, node level need not."""
    table = _table(((10, 30), (10, 12)))
    assert whole_ns(table, 2) == [20, 42]
    assert row_cost_ns(table, 2) == 10 + 6
    assert shortest_ns(table, 2) == 20
    assert graph_capacity_rps(table, 2) == pytest.approx(1e9 / 20)
    assert node_capacity_rps(table, 2) == pytest.approx(1e9 / 16)
    assert affine_above(table, 2) == (-2, 22)
    assert affine_above(table, 1) == (20, 0)


def test_an_sla_no_run_can_meet() -> None:
    """Shorter than one bare run: nothing can be on time."""
    table = _table(((10, 12),))
    assert goodput_bound(table, 2, [0, 1], 9) == best_graph_goodput(table, 2, [0, 1], 9) == 0
    assert goodput_bound(table, 2, [], 9) == best_graph_goodput(table, 2, [], 9) == 0
    assert best_graph_total_latency_ns(table, 2, []) == best_node_total_latency_ns(table, 2, []) == 0


def test_bad_input() -> None:
    """Rates that are not positive or not sustainable, batches below 1, traces out of order: each is named."""
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="arrival rate"):
            graph_batching_mean(1.0, 1.0, rate)
    with pytest.raises(InvalidInput, match="exceed the limit"):
        graph_batching_mean(1.0, 1e9, 1.0)
    with pytest.raises(InvalidInput, match="not the time"):
        graph_batching_mean(-1.0, 1.0, 1.0)
    table = _table(((10, 12),))
    with pytest.raises(InvalidInput, match="largest batch"):
        whole_ns(table, 0)
    with pytest.raises(InvalidInput, match="arrival 2 is out of order"):
        total_latency_bound_ns(table, 2, [2, 1])
