"""One simulated run of the paper's evaluation: a policy, a load, a seed.

Owns: `Cell`, and running it in virtual time; bounds of the same trace.
Must not know: which figure a cell belongs to.

Policies that never preempt run on tables of one node: they do the same there, many times faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from bench.dominance_runs import never_preempts, target_blind
from bench.laboratory import joined
from graphs.npu import NETWORKS, latency_table
from graphs.npu.gnmt import build as gnmt
from graphs.npu.network import Network
from graphs.npu.transformer import build as transformer
from lazybatch import bounds
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.base import Choice, Policy, View
from lazybatch.errors import InvalidInput
from lazybatch.policies import DEFAULT, make_policy, names
from lazybatch.simulator import SimulationResult, simulate
from lazybatch.workload import Stream, merge, poisson

Row = dict[str, Any]
MS = 1e6
WARM_UP = 0.1
"""Share of the requests, the first to come, that no latency is taken of."""
SETTLING = 0.3
"""Share of the time until the last arrival, the first to pass, that no sustained throughput is taken of."""
UNROLLED = {"gnmt": gnmt, "transformer": transformer}
GPU = "gpu-resnet"
"""S(b) = 6.1 + 1.39 b ms over 50 nodes: ResNet on a Titan Xp, fitted to the authors' public prototype's own logs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run. profiles: one or several of the names `table` knows; every one gets the same rate.

    policy: a name, or "graph:W" for a window of W ms, or "bounds" for what bounds every policy. sla_ms: target, seen by
    the policy; sla_runs: the target of each model instead, in runs of one row. late: "drop" gives up rows that can no
    longer be on time. dec_timesteps: what the slack predictor assumes (None: what is run). judged_ms: further targets
    to count violations for, where the policy does not look at the target. cdf: keep the distribution.
    """

    study: str
    profiles: tuple[str, ...]
    policy: str
    rate_rps: float
    seed: int
    requests: int
    sla_ms: float = 100.0
    sla_runs: float | None = None
    late: Literal["serve", "drop"] = "serve"
    max_batch: int = 64
    dec_timesteps: int | None = None
    judged_ms: tuple[float, ...] = ()
    cdf: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@cache
def table(profile: str) -> LatencyTable:
    """A profile's latency table: an NPU network, "name@encoder,decoder" unrolled by other lengths, or the GPU's."""
    if profile == GPU:
        return LatencyTable.uniform(GPU, 50, 6_100_000, 1_390_000, (1, 64))
    name, _, lengths = profile.partition("@")
    if name not in NETWORKS:
        raise InvalidInput(f"unknown profile {profile!r}; known are {', '.join((*NETWORKS, GPU))}")
    network: Network = UNROLLED[name](*map(int, lengths.split(","))) if lengths else NETWORKS[name]()
    return latency_table(network)


@cache
def whole_table(profile: str, rows_max: int) -> LatencyTable:
    """The same in one node."""
    return joined(table(profile), 1, rows_max)


NAMES = tuple(sorted(names(), key=lambda name: name == DEFAULT))
"""Policies that can be asked for, besides graph batching with a window; ours comes last."""


def _made(cell: Cell, lanes: Sequence[LaneSpec]) -> Policy:
    name, _, window = cell.policy.partition(":")
    if window:
        return make_policy(name, lanes, window_ns=round(float(window) * MS))
    return make_policy(name, lanes)


class Predicting:
    """A policy whose slack predictor unrolls the decoder by another length than the requests turn out to have."""

    needs_table = True

    def __init__(self, inner: Policy, left_ns: tuple[int, ...]) -> None:
        self._inner = inner
        self._left_ns = left_ns

    def decide(self, view: View, now: int) -> Choice:
        """As the policy, after its lane's predicted times have been replaced."""
        view.lanes[0].single_left_ns = self._left_ns
        return self._inner.decide(view, now)


def _predicted_left_ns(profile: str, dec_timesteps: int) -> tuple[int, ...]:
    """Per cursor, the time left if ``dec_timesteps`` were decoded in all; at least one step while there is any."""
    made = table(profile)
    network = UNROLLED[profile.partition("@")[0]]
    steps = int(made.provenance["lengths"]["decoder"])  # type: ignore[index]
    encoder = int(made.provenance["lengths"]["encoder"])  # type: ignore[index]
    step_ns = (made.whole_ns(1) - latency_table(network(encoder, 1)).whole_ns(1)) // (steps - 1)
    left = made.remaining_ns(1)
    return tuple(max(ns + (dec_timesteps - steps) * step_ns, min(ns, step_ns)) for ns in left)


def policy_of(cell: Cell, lanes: Sequence[LaneSpec]) -> Policy:
    """The cell's policy, made anew. Raises `InvalidInput` for an unknown one."""
    made = _made(cell, lanes)
    if cell.dec_timesteps is None or target_blind(cell.policy):
        return made
    return Predicting(made, _predicted_left_ns(cell.profiles[0], cell.dec_timesteps))


def sla_ns_of(cell: Cell, profile: str) -> int:
    """The SLA target of one of the cell's models."""
    return round(cell.sla_ms * MS if cell.sla_runs is None else cell.sla_runs * table(profile).whole_ns(1))


def run(cell: Cell) -> list[Row]:
    """Rows of one cell: one over all its requests, and one per model where there are several."""
    streams = [
        Stream(
            table(profile).model,
            poisson(cell.rate_rps, cell.requests, 1000 * cell.seed + number),
            sla_ns=sla_ns_of(cell, profile),
        )
        for number, profile in enumerate(cell.profiles)
    ]
    if cell.policy == "bounds":
        return _bounds(cell, table(cell.profiles[0]), streams[0].arrivals_ns)
    lanes = [lane_of(cell, profile) for profile in cell.profiles]
    requests = merge(streams)
    result = simulate(lanes, policy_of(cell, lanes), requests)
    common = {
        "batches": result.batches,
        "mean_batch": result.mean_batch,
        "preemptions": result.preemptions,
        "policy_failures": result.scheduler.counts.policy_failures,
    }
    ids = [request.id for request in requests]
    rows = [_row(cell, "+".join(cell.profiles), ids, requests, result) | common]
    if len(lanes) > 1:
        for lane in lanes:
            mine = [request.id for request in requests if request.model == lane.graph.model]
            rows.append(_row(cell, lane.graph.model, mine, requests, result))
    return rows


def lane_of(cell: Cell, profile: str) -> LaneSpec:
    """One of the cell's models, as its policy is given it."""
    made = whole_table(profile, cell.max_batch) if never_preempts(cell.policy) else table(profile)
    return LaneSpec(
        NodeGraph.chain(made.model, made.nodes),
        made,
        cell.max_batch,
        queue_capacity=10**6,
        sla_ns=sla_ns_of(cell, profile),
        late=cell.late,
    )


def _row(cell: Cell, model: str, ids: Sequence[int], requests: Sequence[Any], result: SimulationResult) -> Row:
    kept = ids[int(WARM_UP * len(ids)) :]
    latencies = sorted(result.latencies_ns[k] for k in kept if k in result.latencies_ns)
    every = {k: result.latencies_ns[k] for k in ids if k in result.latencies_ns}
    ends_ns = [requests[k].arrival_ns + latency_ns for k, latency_ns in every.items()]
    on_time = sum(requests[k].arrival_ns + latency_ns <= requests[k].deadline_ns for k, latency_ns in every.items())
    kept_on_time = sum(k in every and requests[k].arrival_ns + every[k] <= requests[k].deadline_ns for k in kept)
    first_ns, last_ns = requests[ids[0]].arrival_ns, requests[ids[-1]].arrival_ns
    settled_ns = first_ns + int(SETTLING * (last_ns - first_ns))
    row = _identity(cell, model) | {
        "mean_ms": statistics.fmean(latencies) / MS if latencies else None,
        "p50_ms": latencies[len(latencies) // 2] / MS if latencies else None,
        "p99_ms": latencies[int(0.99 * (len(latencies) - 1))] / MS if latencies else None,
        "mean_all_ms": statistics.fmean(every.values()) / MS if every else None,
        "throughput_rps": sum(end_ns <= last_ns for end_ns in ends_ns) * 1e9 / max(1, last_ns - first_ns),
        "sustained_rps": sum(settled_ns < end_ns <= last_ns for end_ns in ends_ns) * 1e9 / max(1, last_ns - settled_ns),
        "violations": 1 - kept_on_time / len(kept),
        "goodput": on_time / len(ids),
    }
    if cell.judged_ms:
        row["violations_at"] = {f"{target:g}": _late(latencies, len(kept), target) for target in cell.judged_ms}
    if cell.cdf:
        row["cdf_ms"] = [latencies[round(q * (len(latencies) - 1) / 200)] / MS for q in range(201)]
    return row


def _late(latencies: Sequence[int], total: int, target_ms: float) -> float:
    """Share of the requests that are late, or have no result at all."""
    return 1 - sum(ns <= target_ms * MS for ns in latencies) / total


def _identity(cell: Cell, model: str) -> Row:
    return {
        "study": cell.study,
        "model": model,
        "policy": cell.policy,
        "rate_rps": cell.rate_rps,
        "seed": cell.seed,
        "requests": cell.requests,
        "sla_ms": cell.sla_ms if cell.sla_runs is None else None,
        "sla_runs": cell.sla_runs,
        "late": cell.late,
        "max_batch": cell.max_batch,
        "dec_timesteps": cell.dec_timesteps,
        **cell.extra,
    }


def _bounds(cell: Cell, made: LatencyTable, arrivals_ns: Sequence[int]) -> list[Row]:
    """What bounds the mean latency of this trace; the clairvoyant optimum only where a queue does not grow for ever."""
    count, rows_max = len(arrivals_ns), cell.max_batch
    row = _identity(cell, made.model)
    row["capacity_rps"] = bounds.graph_capacity_rps(made, rows_max)
    row["node_capacity_rps"] = bounds.node_capacity_rps(made, rows_max)
    row["lower_bound_ms"] = bounds.total_latency_bound_ns(made, rows_max, arrivals_ns) / count / MS
    sla_ns = sla_ns_of(cell, cell.profiles[0])
    row["goodput_bound"] = bounds.goodput_bound(made, rows_max, arrivals_ns, sla_ns) / count
    if cell.late == "drop":
        row["goodput_clairvoyant"] = bounds.best_graph_goodput(made, rows_max, arrivals_ns, sla_ns) / count
    if cell.rate_rps < 0.97 * row["capacity_rps"]:
        row["clairvoyant_ms"] = bounds.best_graph_total_latency_ns(made, rows_max, arrivals_ns) / count / MS
        fixed_ns, per_row_ns = bounds.affine_above(made, rows_max)
        if cell.rate_rps * per_row_ns < 0.97e9 and fixed_ns >= 0:
            row["closed_form_ms"] = bounds.graph_batching_mean(fixed_ns, per_row_ns, cell.rate_rps).mean_ns / MS
    return [row]
