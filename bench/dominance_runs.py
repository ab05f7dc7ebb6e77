"""The runs behind `bench/dominance.py`: one spot (profile, load, arrivals), every policy, both SLA targets, all seeds.

Owns: `Spot`, and running it in virtual time into one row per policy and target; running many, and small instances.
Must not know: who wins, figures, files.

Of each run the first tenth of the requests is left out. A row holds the mean latency per seed; the 99th percentile and
the share of late requests are taken of all seeds' requests together.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.laboratory import Profile, profile
from bench.pace import slowed
from bench.small_optimum import Small, measure_small
from lazybatch.controls import cached_control
from lazybatch.core import policies
from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.core.control import Control
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Policy
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import bursty, poisson

Row = dict[str, Any]
OURS = "lookahead"
FAST, SLOW = "lookahead, rate taken for double", "lookahead, rate taken for half"
SLOWED, SPED = "lookahead, nodes take twice their table's time", "lookahead, nodes take half their table's time"
MISJUDGED = {FAST: "rate_taken_double", SLOW: "rate_taken_half", SLOWED: "twice_the_table", SPED: "half_the_table"}
"""Ours, told what is wrong: the names of figures."""
WINDOWS_MS = (0, 1, 5, 25)
SHARES = (0.1, 0.5)
CAPS = (2, 4, 8, 16, 32)
WARM_UP = 0.1
BURST_REQUESTS, BURST_FACTOR, BURST_SHARE = 40, 4.0, 0.1
"""A burst brings about so many requests, at so many times the mean rate, and takes so much of the time."""


class Misjudged(ArrivalRate):
    """An estimate that is ``factor`` times the arrival rate."""

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def per_ns(self, now: int) -> float | None:
        """The misjudged rate."""
        rate = super().per_ns(now)
        return None if rate is None else rate * self.factor

    def recent_per_ns(self, now: int) -> float | None:
        """The misjudged rate of the last few arrivals."""
        rate = super().recent_per_ns(now)
        return None if rate is None else rate * self.factor


@dataclass(frozen=True, slots=True)
class Spot:
    """What is run together. targets: of "tight" and "loose". misjudging: run ours as well with a wrong rate, and with a
    table of another machine."""

    profile: str
    load: float
    arrivals: str
    seeds: tuple[int, ...]
    requests: int
    targets: tuple[str, ...] = ("tight", "loose")
    policies: tuple[str, ...] | None = None
    misjudging: bool = False


def names_for(rows_max: int) -> tuple[str, ...]:
    """Every policy that is compared with ours: "graph:W" has a window of W ms, "graph:xS" one of x times S(1).

    "cap:B" is GraphB(0) with that maximum; a maximum of one is serial, one of ``rows_max`` is "graph:0" itself.
    """
    windows = [f"graph:{window}" for window in WINDOWS_MS] + [f"graph:{share:g}S" for share in SHARES]
    caps = [f"cap:{cap}" for cap in CAPS if cap < rows_max]
    others = [name for name in policies.names() if name not in ("serial", "graph", OURS)]
    return ("serial", *windows, *caps, *others)


def never_preempts(policy: str) -> bool:
    """Whether a policy starts batches of a chain only when nothing is in flight, so that one node stands for all."""
    return policy.partition(":")[0] in ("serial", "graph", "cap", "cellular", "continuous", "aimd")


def target_blind(policy: str) -> bool:
    """Whether a policy does the same whatever the SLA target."""
    return never_preempts(policy) and policy != "aimd"


@cache
def control(name: str) -> Control:
    """The solved control of a profile."""
    made = profile(name)
    return cached_control(made.whole.model, made.whole.median_ns[0])


def policy_of(name: str, made: Profile) -> Policy:
    """A policy, made anew."""
    kind, _, argument = name.partition(":")
    model = made.nodes.model
    if kind == "graph":
        share = float(argument[:-1]) * made.whole_ns(1) if argument.endswith("S") else int(argument) * 1e6
        return policies.by_name("graph", window_ns=round(share))
    if kind == "cap":
        return policies.by_name("graph", max_batch_size=int(argument))
    if name == OURS:
        return Lookahead({model: control(made.name)})
    if name in (FAST, SLOW):
        return Lookahead({model: control(made.name)}, rates=partial(Misjudged, 2.0 if name == FAST else 0.5))
    if name in (SLOWED, SPED):
        return Lookahead({model: cached_control(made.whole.model, told(name, made.whole).median_ns[0])})
    return policies.by_name(name)


def told(name: str, table: LatencyTable) -> LatencyTable:
    """The table that a policy is told, where this is what nodes really take."""
    factor = {SLOWED: 0.5, SPED: 2.0}.get(name)
    return table if factor is None else slowed(table, [factor] * len(table.nodes))


def arrivals_of(spot: Spot, seed: int) -> list[int]:
    """The arrival times of one seed."""
    rate = spot.load * profile(spot.profile).capacity_rps
    if spot.arrivals == "poisson":
        return poisson(rate, spot.requests, seed)
    seconds = BURST_REQUESTS / (BURST_FACTOR * rate)
    return bursty(rate, spot.requests, seed, burst_factor=BURST_FACTOR, mean_burst_s=seconds, burst_share=BURST_SHARE)


def run(spot: Spot) -> list[Row]:
    """A row per policy and target."""
    made = profile(spot.profile)
    traces = [arrivals_of(spot, seed) for seed in spot.seeds]
    names = [name for name in (*names_for(made.rows_max), OURS) if spot.policies is None or name in spot.policies]
    if spot.misjudging:
        names += MISJUDGED
    rows = []
    for name in names:
        table = made.whole if never_preempts(name) else made.nodes
        blind = [_Outcome.of(made, table, name, traces, None)] if target_blind(name) else []
        for target in spot.targets:
            sla_ns = made.tight_ns if target == "tight" else made.loose_ns
            outcome = blind[0] if blind else _Outcome.of(made, table, name, traces, sla_ns)
            rows.append(
                {
                    "profile": spot.profile,
                    "load": spot.load,
                    "arrivals": spot.arrivals,
                    "target": target,
                    "policy": name,
                    **outcome.row(sla_ns),
                }
            )
    return rows


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Latencies per seed, in nanoseconds, and counts over all seeds."""

    latencies_ns: list[NDArray[np.int64]]
    dispatches: int
    rows_run: int
    preemptions: int
    policy_failures: int

    @classmethod
    def of(
        cls, made: Profile, table: LatencyTable, name: str, traces: Sequence[Sequence[int]], sla_ns: int | None
    ) -> _Outcome:
        """Run every trace."""
        graph = NodeGraph.chain(table.model, table.nodes)
        lane = LaneSpec(graph, told(name, table), made.rows_max, queue_capacity=10**6, sla_ns=sla_ns)
        kept, counts = [], np.zeros(4, np.int64)
        for trace in traces:
            requests = requests_from(trace, table.model, sla_ns=sla_ns)
            result = simulate([lane], policy_of(name, made), requests, durations={table.model: table})
            latencies = [result.latencies_ns[k] for k in range(int(WARM_UP * len(trace)), len(trace))]
            kept.append(np.array(latencies, np.int64))
            failures = result.scheduler.counts.policy_failures
            counts += (result.dispatches, result.rows_run, result.preemptions, failures)
        return cls(kept, *map(int, counts))

    def row(self, sla_ns: int) -> Row:
        """What is kept of it."""
        together = np.concatenate(self.latencies_ns)
        means = [float(latencies.mean()) / 1e6 for latencies in self.latencies_ns]
        return {
            "sla_ms": sla_ns / 1e6,
            "mean_ms": float(together.mean()) / 1e6,
            "seed_means_ms": means,
            "p50_ms": float(np.percentile(together, 50)) / 1e6,
            "p99_ms": float(np.percentile(together, 99)) / 1e6,
            "violations": float((together > sla_ns).mean()),
            "requests": len(together),
            "mean_batch": self.rows_run / self.dispatches,
            "preemptions": self.preemptions,
            "policy_failures": self.policy_failures,
        }


Job = Spot | Small


def rows_of(job: Job) -> tuple[Job, list[Row]]:
    """A job and its rows."""
    return job, run(job) if isinstance(job, Spot) else [measure_small(job)]


def run_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Row]]]:
    """Every job with its rows, as they come; on several processes unless one is asked for."""
    if workers == 1:
        yield from map(rows_of, jobs)
        return
    # Each process is single-threaded: a linear algebra pool in each would fight for the cores.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(workers, _set_up) as pool:
        yield from pool.imap_unordered(rows_of, jobs)


def _set_up() -> None:
    """In a worker: an interruption is its parent's to handle, and simulations leave few cycles to look for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(100_000, 50, 50)
