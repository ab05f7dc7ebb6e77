"""How near the default policy comes to the best there is, on models small enough to be solved.

Owns: the small instances, and comparing policies with their solved node-level control on the same arrivals.
Must not know: how they are solved (`node_optimum`).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from bench.laboratory import joined
from bench.node_optimum import Solved, solve_nodes
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching, Policy
from lazybatch.policies import DEFAULT, make_policy
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import poisson

Row = dict[str, Any]
LIMIT = 1.02
"""Ours over the optimum, at most."""
NODES, ROWS_MAX, STATES = 8, 16, 96
INSTANCES = {"gpu": (6_100_000, 1_390_000), "launch": (10_000_000, 150_000), "half": (5_000_000, 5_000_000)}
LOADS = (0.1, 0.2, 0.4, 0.6)
WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Small:
    """An instance at a load, with so many requests in each of so many runs."""

    instance: str
    load: float
    requests: int
    seeds: int


def smalls_of(requests: int, seeds: int) -> list[Small]:
    """Every instance at every load."""
    return [Small(name, load, requests, seeds) for name in INSTANCES for load in LOADS]


def measure_small(small: Small) -> Row:
    """Mean latencies, as solved and simulated, and the ratio of ours to the optimum.

    The ratio is taken between two simulations on the same arrivals, and is the median over the seeds.
    """
    name, load = small.instance, small.load
    table = LatencyTable.uniform(name, NODES, *INSTANCES[name], range(1, ROWS_MAX + 1))
    lane, whole = _lane(table), _lane(joined(table, 1, ROWS_MAX))
    rate_per_ns = load * max(b / table.whole_ns(b) for b in range(1, ROWS_MAX + 1))
    control = solve_nodes(table, ROWS_MAX, rate_per_ns, STATES)
    means: dict[str, list[float]] = {"optimum": [], "ours": [], "graphb0": []}
    for seed in range(1, small.seeds + 1):
        trace = poisson(rate_per_ns * 1e9, small.requests, seed)
        means["optimum"].append(_mean_ms(lane, Solved(control), trace))
        means["ours"].append(_mean_ms(lane, make_policy(DEFAULT, [lane]), trace))
        means["graphb0"].append(_mean_ms(whole, GraphBatching(), trace))
    return {
        "what": "node optimum",
        "instance": name,
        "load": load,
        "solved_ms": control.mean_ns / 1e6,
        **{f"{policy}_ms": statistics.fmean(values) for policy, values in means.items()},
        "over_optimum": statistics.median(a / b for a, b in zip(means["ours"], means["optimum"], strict=True)),
    }


def _lane(table: LatencyTable) -> LaneSpec:
    return LaneSpec(NodeGraph.chain(table.model, table.nodes), table, ROWS_MAX, queue_capacity=10**6)


def _mean_ms(lane: LaneSpec, policy: Policy, trace: list[int]) -> float:
    result = simulate([lane], policy, requests_from(trace, lane.graph.model))
    kept = range(int(WARM_UP * len(trace)), len(trace))
    return statistics.fmean(result.latencies_ns[k] for k in kept) / 1e6
