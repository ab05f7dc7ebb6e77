"""What a decision costs: the scheduler's time per dispatch, the default policy's own, simulated dispatches per second.

Owns: driving the core on a synthetic table, with a clock around its calls.
Must not know: executors, threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Choice, Policy, View
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.policies import make_policy
from lazybatch.simulator import simulate
from lazybatch.workload import poisson

POLICIES = ("serial", "graph", "lazy", "lookahead")
NODES, ROWS_MAX, SLA_NS = 20, 16, 100_000_000
LOAD = 0.9
"""Offered rate over what full batches, or for serial single rows, could serve."""


def lanes(models: int) -> list[LaneSpec]:
    """Models of 20 nodes that take 4 ms + 1 ms per row."""
    made = []
    for k in range(models):
        table = LatencyTable.uniform(f"m{k}", NODES, 4_000_000, 1_000_000, (1, 2, 4, 8, 16))
        graph = NodeGraph.chain(f"m{k}", table.nodes)
        made.append(LaneSpec(graph, table, max_batch_size=ROWS_MAX, queue_capacity=1 << 20))
    return made


class Timed:
    """A policy with a clock around its decisions.

    fresh_ns: times of those that follow an arrival; the others can often be answered as before.
    """

    needs_table = True

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._inner_arrived = getattr(inner, "arrived", None)
        self._news = False
        self.all_ns: list[int] = []
        self.fresh_ns: list[int] = []

    def clear(self) -> None:
        """Forget the warm-up."""
        self.all_ns.clear()
        self.fresh_ns.clear()

    def arrived(self, request: Request) -> None:
        """Pass it on; the next decision is fresh."""
        self._news = True
        if self._inner_arrived is not None:
            self._inner_arrived(request)

    def decide(self, view: View, now: int) -> Choice:
        """As the policy, timed."""
        start_ns = time.perf_counter_ns()
        choice = self._inner.decide(view, now)
        spent_ns = time.perf_counter_ns() - start_ns
        self.all_ns.append(spent_ns)
        if self._news:
            self.fresh_ns.append(spent_ns)
        self._news = False
        return choice


def trace(specs: Sequence[LaneSpec], policy: str, count: int, seed: int) -> list[Request]:
    """Poisson arrivals at `LOAD`, spread over the models in turn."""
    table = specs[0].latency
    assert table is not None, "lanes() gives every lane a table"
    rows = 1 if policy == "serial" else ROWS_MAX
    rate_rps = LOAD * rows * 1e9 / table.whole_ns(rows)
    names = [spec.graph.model for spec in specs]
    return [
        Request(k, names[k % len(names)], at_ns, at_ns + SLA_NS)
        for k, at_ns in enumerate(poisson(rate_rps, count, seed))
    ]


def decision_times_ns(policy: str, models: int, requests: int, seed: int = 0) -> list[int]:
    """Per dispatch, the time spent in the core since the dispatch before: add, expire, complete, schedule."""
    specs = lanes(models)
    scheduler, pending = Scheduler(specs, make_policy(policy, specs)), trace(specs, policy, requests, seed)
    latency = {lane.model: lane.times_ns for lane in scheduler.lanes}
    clock = time.perf_counter_ns
    arrived, now, spent_ns = 0, 0, 0
    times: list[int] = []
    while True:
        first = arrived
        while arrived < requests and pending[arrived].arrival_ns <= now:
            arrived += 1
        start_ns = clock()
        for request in pending[first:arrived]:
            scheduler.add(request)
        scheduler.expire(now)
        task = scheduler.schedule(now)
        spent_ns += clock() - start_ns
        if task is None:
            if arrived == requests:
                return times
            now = pending[arrived].arrival_ns
            continue
        table = latency[task.model]
        assert table is not None, "lanes() gives every lane a table"
        now += table[task.node][task.rows]
        times.append(spent_ns)
        start_ns = clock()
        scheduler.complete(task, now)
        spent_ns = clock() - start_ns


def measure_decisions(requests: int) -> list[dict[str, Any]]:
    """One row per policy and number of models: median and p99 microseconds per dispatch."""
    rows = []
    for models in (1, 4):
        for policy in POLICIES:
            times = sorted(decision_times_ns(policy, models, requests))
            rows.append(
                {
                    "what": "decision",
                    "policy": policy,
                    "models": models,
                    "dispatches": len(times),
                    "median_us": statistics.median(times) / 1e3,
                    "p99_us": times[int(len(times) * 0.99)] / 1e3,
                }
            )
    return rows


def measure_policy(requests: int, policy: str = "lookahead") -> list[dict[str, Any]]:
    """One row per number of models: what the policy itself takes per decision, on all and on fresh ones."""
    rows = []
    for models in (1, 4):
        specs = lanes(models)
        timed = Timed(make_policy(policy, specs))
        result = simulate(specs, timed, trace(specs, policy, requests, seed=0))
        rows.append(
            {
                "what": "policy",
                "policy": policy,
                "models": models,
                "decisions": len(timed.all_ns),
                "median_us": statistics.median(timed.all_ns) / 1e3,
                "fresh_median_us": statistics.median(timed.fresh_ns) / 1e3,
                "fresh_p99_us": sorted(timed.fresh_ns)[int(len(timed.fresh_ns) * 0.99)] / 1e3,
                "policy_failures": result.scheduler.counts.policy_failures,
            }
        )
    return rows


def measure_simulator(requests: int) -> list[dict[str, Any]]:
    """One row per policy: simulated dispatches per second of wall time (the best of five runs of one trace)."""
    rows = []
    for policy in POLICIES:
        specs = lanes(1)
        arrivals = trace(specs, policy, requests, seed=0)
        walls_s = []
        for _ in range(5):
            made = make_policy(policy, specs)
            start_s = time.perf_counter()
            result = simulate(specs, made, arrivals)
            walls_s.append(time.perf_counter() - start_s)
        rows.append(
            {
                "what": "simulator",
                "policy": policy,
                "requests": requests,
                "dispatches": result.dispatches,
                "dispatches_per_s": result.dispatches / min(walls_s),
                "mean_batch": result.mean_batch,
            }
        )
    return rows
