"""Runs of models with loops in virtual time: one policy, one load, several seeds.

Owns: `run`, capacities, and the highest rate that a policy sustains within a target.
Must not know: figures, which policy should win.

Of each run the first tenth of the requests is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from bench.loop_models import LoopModel
from lazybatch.policies import make_policy
from lazybatch.simulator import SimulationResult, simulate
from lazybatch.workload import bursty, poisson

MS = 1e6
WARM_UP = 0.1
BURST_REQUESTS, BURST_FACTOR, BURST_SHARE = 40, 4.0, 0.1
"""A burst brings about so many requests, at so many times the mean rate, and takes so much of the time."""
_BISECTIONS = 6


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals: "poisson" or "bursty", of a mean rate."""

    arrivals: str
    rate_rps: float
    requests: int

    def arrivals_ns(self, seed: int) -> list[int]:
        """Their times."""
        if self.arrivals == "poisson":
            return poisson(self.rate_rps, self.requests, seed)
        burst_s = BURST_REQUESTS / (BURST_FACTOR * self.rate_rps)
        return bursty(
            self.rate_rps,
            self.requests,
            seed,
            burst_factor=BURST_FACTOR,
            burst_share=BURST_SHARE,
            mean_burst_s=burst_s,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy achieved, one entry per seed; batch: mean rows per dispatch. late: share of all requests."""

    mean_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    batch: tuple[float, ...]
    late: tuple[float, ...]

    def over(self, other: Outcome, what: str) -> float:
        """Median over the seeds of this one's over the other's "mean_ms" or "p99_ms"."""
        pairs: Iterable[tuple[float, float]] = zip(getattr(self, what), getattr(other, what), strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def served(model: LoopModel, policy: str, load: Load, seed: int, sla_ns: int | None = None) -> SimulationResult:
    """One run of one policy."""
    spec = model.spec()
    requests = model.requests(load.arrivals_ns(seed), seed, sla_ns)
    result = simulate([spec], make_policy(policy, [spec]), requests, trips=model.trips(load.requests, seed))
    if result.scheduler.policy_error is not None:
        raise result.scheduler.policy_error
    return result


def run(model: LoopModel, policy: str, load: Load, seeds: Sequence[int], sla_ns: int | None = None) -> Outcome:
    """The same load with several seeds."""
    means, tails, batches, late = [], [], [], []
    for seed in seeds:
        result = served(model, policy, load, seed, sla_ns)
        kept = sorted(ns for k, ns in result.latencies_ns.items() if k >= WARM_UP * load.requests)
        means.append(statistics.fmean(kept) / MS)
        tails.append(kept[int(0.99 * len(kept))] / MS)
        batches.append(result.mean_batch)
        late.append(result.violations)
    return Outcome(tuple(means), tuple(tails), tuple(batches), tuple(late))


@cache
def capacity_rps(model: LoopModel, policy: str, requests: int) -> float:
    """What a policy serves per second when there is always more than it can: the middle half of an overloaded run."""
    table = model.spec().latency
    assert table is not None, "models of the laboratory have tables"
    overload = Load("poisson", model.rows_max * 1e9 / table.whole_ns(model.rows_max), requests)
    result = served(model, policy, overload, 0)
    arrivals_ns = overload.arrivals_ns(0)
    ends_ns = sorted(arrivals_ns[k] + latency_ns for k, latency_ns in result.latencies_ns.items())
    first, last = len(ends_ns) // 4, 3 * len(ends_ns) // 4
    return (last - first) * 1e9 / (ends_ns[last] - ends_ns[first])


def sustained(model: LoopModel, policy: str, p99_ms: float, low: Load, seeds: Sequence[int]) -> float:
    """How many times the rate of ``low``, 1 to 4, a policy sustains with its p99 within a target; found by bisection.

    The policy is told the target as every request's deadline. 0.0 where it does not even sustain that rate.
    """

    def holds(factor: float) -> bool:
        load = Load(low.arrivals, low.rate_rps * factor, low.requests)
        return statistics.median(run(model, policy, load, seeds, round(p99_ms * MS)).p99_ms) <= p99_ms

    if not holds(1.0):
        return 0.0
    good, bad = 1.0, 4.0
    for _ in range(_BISECTIONS):
        middle = (good * bad) ** 0.5
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
