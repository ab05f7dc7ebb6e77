"""Runs of a sweep over SLA targets and rates: simulated, or live.

Owns: `Setting` (what all runs share), `Run`, running one in virtual time or through a batcher, and its rows.
Must not know: which runs are wanted, what is concluded from them.

A policy that never looks at the target is run once for all targets: its latencies are judged against each. A live row's
``pace`` is what nodes took in that run over what the profile says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import lazybatch as lb
from bench.live import Ends, Forgetting, ends, schedule, serve, warm
from bench.models import Batch
from bench.pace import Pace, Paced
from bench.paired import in_turns
from bench.sweep_loops import Loops, alone_ns, as_lengths
from bench.variants import Variant, joinable
from lazybatch.core.control import Control
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.joining import LoopControls
from lazybatch.executors.base import Model
from lazybatch.metrics import latency_summary
from lazybatch.simulator import requests_from, simulate
from lazybatch.table_loops import graph_of
from lazybatch.workload import bursty, poisson

Row = dict[str, Any]
MS = 1e6
WARM_UP = 0.1
"""Share of the requests, the first to come, that is not judged."""
BURST_RUNS = 10
"""Mean length of a burst, in bare runs of the model."""
LATE_SHARE = 0.05
"""The load generator was late where its 99th percentile lag exceeds this share of the target."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a sweep share. capacity_rps: of the best batch size. kind: "poisson" or "bursty".

    late: what becomes of waiting requests that can no longer meet their target. loops: of a table with loops, how
    often rows go round.
    """

    table: LatencyTable
    rows_max: int
    queue_capacity: int
    capacity_rps: float
    kind: str = "poisson"
    late: Literal["serve", "drop"] = "serve"
    loops: Loops | None = field(default=None, repr=False)
    controls: Mapping[str, Control] = field(default_factory=dict, repr=False)
    loop_controls: LoopControls = field(default_factory=dict, repr=False)

    @property
    def alone_ms(self) -> float:
        """S(1): one request on an idle processor; of a model with loops, the mean one."""
        return alone_ns(self.lane(), "mean") / MS

    @property
    def least_ms(self) -> float:
        """The same for the shortest request."""
        return alone_ns(self.lane(), "shortest") / MS

    def lane(self, sla_ns: int | None = None) -> LaneSpec:
        """The model as the scheduler sees it."""
        table = self.table
        return LaneSpec(
            graph_of(table),
            table,
            self.rows_max,
            queue_capacity=self.queue_capacity,
            sla_ns=sla_ns,
            joinable=joinable(table),
            late=self.late,
            lengths=() if self.loops is None else self.loops.of(table, 1, 0).guesses,
        )

    def arrivals_ns(self, rate_rps: float, requests: int, seed: int) -> list[int]:
        """When requests come; the same for every policy."""
        if self.kind == "bursty":
            return bursty(rate_rps, requests, seed, mean_burst_s=BURST_RUNS * self.alone_ms / 1e3)
        return poisson(rate_rps, requests, seed)


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one rate with one seed. targets_ms: what it is judged by; the policy is told the first."""

    variant: Variant
    rate_rps: float
    seed: int
    requests: int
    targets_ms: tuple[float, ...]
    refined: bool = False


def runs(
    variants: Sequence[Variant], rates: Sequence[tuple[float, int]], seeds: int, targets_ms: Sequence[float]
) -> Iterator[Run]:
    """All runs, so that those of one seed and rate follow one another, in an order that rotates.

    rates: (requests per second, number of requests).
    """
    for seed in range(1, seeds + 1):
        for place, (rate_rps, requests) in enumerate(rates):
            yield from in_turns(beside(variants, rate_rps, requests, seed, targets_ms), seed + place)


def beside(
    variants: Sequence[Variant], rate_rps: float, requests: int, seed: int, targets_ms: Sequence[float]
) -> list[Run]:
    """The runs of one seed and rate: one per policy, and per target where the policy looks at it."""
    return [
        Run(one, rate_rps, seed, requests, told)
        for one in variants
        for told in (((target,) for target in targets_ms) if one.sees_target else (tuple(targets_ms),))
    ]


def simulated(setting: Setting, run: Run) -> list[Row]:
    """The rows of one run in virtual time, one per target."""
    told_ns = round(run.targets_ms[0] * MS)
    arrivals_ns = setting.arrivals_ns(run.rate_rps, run.requests, run.seed)
    requests = requests_from(arrivals_ns, setting.table.model, sla_ns=told_ns)
    truth: Mapping[int, tuple[int, ...]] = {}
    if setting.loops is not None:
        trips = setting.loops.of(setting.table, run.requests, run.seed)
        requests, truth = trips.told(requests), trips.truth(requests)
    policy = run.variant.simulated(setting.controls, setting.loop_controls)
    result = simulate([setting.lane(told_ns)], policy, requests, trips=truth)
    outcome = Ends(
        tuple(at_ns - arrivals_ns[0] for at_ns in arrivals_ns),
        tuple(result.latencies_ns.get(request.id) for request in requests),
        (0,) * len(requests),
        len(result.dropped),
        0,
    )
    counted = {
        "mean_batch": result.mean_batch,
        "preemptions": result.preemptions,
        "merges": result.merges,
        "policy_failures": result.scheduler.counts.policy_failures,
    }
    return [row | counted for row in _rows(setting, run, outcome, simulated=True)]


def live(setting: Setting, model: Model, inputs: Sequence[Batch], run: Run) -> list[Row]:
    """The rows of one run through a batcher of its own: warmed up, then offered open loop."""
    return seen_live(setting, model, inputs, run)[0]


def seen_live(setting: Setting, model: Model, inputs: Sequence[Batch], run: Run) -> tuple[list[Row], Ends, Paced]:
    """The same, with what happened, for `mean_ms_at_pace`."""
    arrivals_ns = setting.arrivals_ns(run.rate_rps, run.requests, run.seed)
    pace = Pace(setting.table, setting.rows_max)
    lane = setting.lane()
    policy = Forgetting(lambda: run.variant.policy_for(lane))
    with lb.LazyBatcher(
        model,
        table=setting.table,
        sla=run.targets_ms[0] / 1e3,
        max_batch_size=setting.rows_max,
        queue_capacity=setting.queue_capacity,
        late=setting.late,
        lengths=as_lengths(setting.loops, setting.table),
        observers=[pace],
        policy=policy,
    ) as batcher:
        warm(batcher, inputs, setting.rows_max)
        policy.forget()
        pace.restart()
        before = batcher.stats()
        outcome = ends(serve(batcher, schedule(model.name, inputs, arrivals_ns, run.seed)))
        after = batcher.stats()
    counted = {
        "pace": pace.ratio,
        "mean_batch": _quotient(after.completed - before.completed, after.batches - before.batches),
        "preemptions": after.preemptions - before.preemptions,
        "merges": after.merges - before.merges,
        "policy_failures": after.policy_failures - before.policy_failures,
    }
    rows = [row | counted for row in _rows(setting, run, outcome, simulated=False)]
    return rows, outcome, pace.seen(outcome.submit_ns, outcome.latencies_ns)


def mean_ms_at_pace(setting: Setting, run: Run, outcome: Ends, paced: Paced) -> float:
    """The mean of a run in virtual time, with calls as they were submitted in a live one of the same arrivals, and at
    this pace. For models without loops."""
    told_ns = round(run.targets_ms[0] * MS)
    lane, requests = setting.lane(told_ns), requests_from(outcome.submit_ns, setting.table.model, sla_ns=told_ns)
    found = paced.simulated_ns(lane, run.variant.policy_for(lane), requests)
    judged = [latency_ns for latency_ns in found[int(WARM_UP * len(found)) :] if latency_ns is not None]
    return sum(judged) / max(1, len(judged)) / MS


def _rows(setting: Setting, run: Run, outcome: Ends, *, simulated: bool) -> list[Row]:
    first = int(WARM_UP * len(outcome.latencies_ns))
    judged = outcome.latencies_ns[first:]
    answered = [latency_ns for latency_ns in judged if latency_ns is not None]
    span_s = max(1, outcome.submit_ns[-1] - outcome.submit_ns[first]) / 1e9
    summary = latency_summary(answered).as_ms()
    common: Row = {
        "simulated": simulated,
        "model": setting.table.model,
        "arrivals": setting.kind,
        "policy": run.variant.title,
        "rate_rps": run.rate_rps,
        "load": run.rate_rps / setting.capacity_rps,
        "seed": run.seed,
        "requests": run.requests,
        "judged": len(judged),
        "answered": len(answered),
        "refused": outcome.refused,
        "failed": outcome.failed,
        "answered_rps": len(answered) / span_s,
        **{key: summary[key] for key in ("mean_ms", "p50_ms", "p95_ms", "p99_ms")},
        "refined": run.refined,
    }
    if not simulated:
        common["submit_lag_p99_ms"] = outcome.lag_p99_ms
    made = []
    for target_ms in run.targets_ms:
        met = sum(latency_ns <= target_ms * MS for latency_ns in answered)
        row = {**common, "sla_ms": target_ms, "met": met, "violations": 1 - met / len(judged)}
        row["goodput_rps"] = met / span_s
        if not simulated:
            row["generator_late"] = outcome.lag_p99_ms > LATE_SHARE * target_ms
        made.append(row)
    return made


def _quotient(a: int, b: int) -> float | None:
    return a / b if b else None
