"""Rows of many lengths: exact lengths only, one padded length, a few, and a few with rows that ride along.

Owns: the models and lengths in virtual time, the live run of a trained encoder, and the figures of both.
Must not know: how rows are padded, how riders are chosen.

Waste is padded tokens over true tokens: what is over 1 was computed for nobody.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.common import Report, parser, progress, progress_bar, run_script
from bench.live import ends, schedule, serve, warm
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.request import Request
from lazybatch.core.task import Task
from lazybatch.metrics import Observer, latency_summary
from lazybatch.policies import make_policy
from lazybatch.simulator import simulate
from lazybatch.workload import lognormal_lengths, poisson

MS = 1_000_000
ROWS_MAX = 16
TO = (16, 32, 64, 128)
FINE = tuple(range(8, 129, 8))
MEAN, SIGMA = 24.0, 0.7
"""Tokens of a row: log-normal."""
WARM_UP = 0.1
LOADS = (0.3, 0.6, 0.9)
SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Machine:
    """What a batch takes, in ms: a fixed part, and a part per token that is executed. nodes: of the chain.

    gains: whether batches gain enough for padding to pay at all.
    """

    name: str
    fixed_ms: float
    token_ms: float
    gains: bool
    nodes: int = 6

    def table(self, model: str, length: int) -> LatencyTable:
        """The table of rows padded to one length."""
        fixed_ns, row_ns = round(self.fixed_ms * MS), round(self.token_ms * length * MS)
        return LatencyTable.uniform(model, self.nodes, fixed_ns, row_ns, SIZES)


MACHINES = (
    Machine("arithmetic", 0.5, 0.15, False),  # a CPU: a batch takes what its tokens take
    Machine("launches", 3.0, 0.004, True),  # a GPU with a small model: hardly anything but launches
    Machine("between", 3.0, 0.04, True),
)


@dataclass(frozen=True)
class Way:
    """One way to serve many lengths. to: padded lengths; empty for rows of exactly equal lengths."""

    name: str
    policy: str
    to: tuple[int, ...]
    ride: bool = False


WAYS = (
    Way("exact lengths, graph", "graph", ()),
    Way("one length, lookahead", "lookahead", TO[-1:]),
    Way("buckets, graph", "graph", TO),
    Way("buckets, lookahead", "lookahead", TO),
    Way("buckets and riders, graph", "graph", TO, True),
    Way("buckets and riders, lookahead", "lookahead", TO, True),
    Way("fine buckets and riders, graph", "graph", FINE, True),
)


class Waste(Observer):
    """Adds up true and padded tokens of every sub-batch that begins."""

    def __init__(self, sizes: Mapping[int, int], lengths: Mapping[str, int]) -> None:
        self.true = self.padded = 0
        self._sizes, self._lengths = sizes, lengths

    def opened(self, now_ns: int, task: Task) -> None:
        """Count its rows."""
        self.true += sum(self._sizes[request_id] for request_id in task.opened)
        self.padded += self._lengths[task.model] * len(task.opened)


@cache
def lanes(machine: Machine, way: Way) -> tuple[LaneSpec, ...]:
    """A lane per padded length, or per length that there is."""
    to = way.to or tuple(range(1, TO[-1] + 1))
    names = [f"m/{length}" for length in to]
    return tuple(
        LaneSpec(
            NodeGraph.chain(name, machine.table(name, length).nodes),
            machine.table(name, length),
            max_batch_size=ROWS_MAX,
            queue_capacity=1 << 30,
            length=length,
            wider=tuple(names[number + 1 :]) if way.ride else (),
        )
        for number, (name, length) in enumerate(zip(names, to, strict=True))
    )


def lengths_of(requests: int, seed: int) -> list[int]:
    """Lengths of so many rows, none longer than the longest padded length."""
    return lognormal_lengths(MEAN, requests, seed + 1000, sigma=SIGMA, longest=TO[-1])


def bucket(to: Sequence[int], length: int) -> int:
    """The padded length of a row."""
    return next((most for most in to if most >= length), length)


def capacity_rps(machine: Machine, requests: int = 5_000) -> float:
    """Rows per second in full batches of one bucket each."""
    lengths = [bucket(TO, length) for length in lengths_of(requests, 0)]
    each_ms = [machine.fixed_ms / ROWS_MAX + machine.token_ms * length for length in lengths]
    return 1e3 / statistics.fmean(each_ms)


def simulated(machine: Machine, way: Way, rate_rps: float, requests: int, seed: int) -> dict[str, float]:
    """One run of one way in virtual time: mean and p99 latency in ms, waste."""
    specs = lanes(machine, way)
    of = {spec.length: spec.graph.model for spec in specs}
    sizes = dict(enumerate(lengths_of(requests, seed)))
    trace = [
        Request(k, of[bucket(way.to, sizes[k])], at_ns, size=sizes[k])
        for k, at_ns in enumerate(poisson(rate_rps, requests, seed))
    ]
    waste = Waste(sizes, {spec.graph.model: spec.length or 0 for spec in specs})
    result = simulate(specs, make_policy(way.policy, specs), trace, observers=[waste])
    kept = sorted(ns for k, ns in result.latencies_ns.items() if k >= WARM_UP * requests)
    return {
        "mean_ms": statistics.fmean(kept) / MS,
        "p99_ms": kept[int(0.99 * len(kept))] / MS,
        "waste": waste.padded / waste.true,
    }


def sweep(report: Report, machines: Sequence[Machine], requests: int, seeds: Sequence[int]) -> None:
    """All machines, loads and ways in virtual time."""
    cells = [(machine, load) for machine in machines for load in LOADS]
    for done, (machine, load) in enumerate(cells):
        progress_bar(done, len(cells), f"{machine.name} at {load:g}")
        rate = load * capacity_rps(machine)
        found = {}
        for way in WAYS:
            runs = [simulated(machine, way, rate, requests, seed) for seed in seeds]
            found[way.name] = _medians(runs)
            row = {"what": "simulated", "model": machine.name, "load": load, "way": way.name, **found[way.name]}
            report.rows.append(row)
        judge(report, f"{machine.name}/{load:g}", found, machine.gains)


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def judge(report: Report, cell: str, found: Mapping[str, Mapping[str, float]], gains: bool) -> None:
    """Riders must not cost latency; where batches gain, the default must not lose to serving exact lengths only."""
    ours, apart = found["buckets and riders, lookahead"], found["buckets, lookahead"]
    exact = found["exact lengths, graph"]
    report.at_most(f"mean_riders_over_buckets/{cell}", ours["mean_ms"] / apart["mean_ms"], 1.02)
    report.at_most(f"p99_riders_over_buckets/{cell}", ours["p99_ms"] / apart["p99_ms"], 1.05)
    if gains:
        report.at_most(f"mean_over_exact/{cell}", ours["mean_ms"] / exact["mean_ms"], 1.0)


# -- live --------------------------------------------------------------------------------------------------------------


def live(report: Report, seconds: float, rounds: int, loads: Sequence[float]) -> None:
    """MiniLM on this machine, ways taking turns."""
    from bench.models import ZOO_FOLDER
    from graphs.export import ensure

    progress("exporting and loading minilm")
    path = ensure("minilm", ZOO_FOLDER, length=None)
    pad = lb.Pad(inputs={"input_ids": 0}, to=TO, mask="attention_mask")
    plain, apart = lb.load(path), lb.load(path, pad=replace(pad, ride=False))
    riding = lb.load(path, pad=pad)
    ways = [way for way in WAYS if way.to in ((), TO)]
    models = {way: riding if way.ride else apart if way.to else plain for way in ways}
    progress("measuring minilm")
    table = lb.profile(apart, SIZES, budget_s=max(8.0, seconds))
    full_ns = {length: table.at(length).whole_ns(ROWS_MAX) / ROWS_MAX for length in TO}
    lengths = lengths_of(512, 0)
    capacity = 1e9 / statistics.fmean(full_ns[bucket(TO, length)] for length in lengths)
    rows = [{"input_ids": _ids(length, k), "attention_mask": _ones(length)} for k, length in enumerate(lengths)]
    for load in loads:
        runs: dict[str, list[dict[str, float]]] = {}
        for turn in range(rounds):
            arrivals = poisson(load * capacity, max(20, round(load * capacity * seconds)), turn + 1)
            for number, way in enumerate(models):
                progress_bar(number, len(models), f"round {turn + 1}/{rounds} at {load:g}: {way.name}")
                runs.setdefault(way.name, []).append(_served(models[way], table, way, rows, arrivals, turn))
        found = {name: _medians(some) for name, some in runs.items()}
        for name, values in found.items():
            report.rows.append({"what": "live", "model": "minilm", "load": load, "way": name, **values})
        judge(report, f"minilm live/{load:g}", found, gains=False)


def _served(
    model: Any, table: lb.LatencyTable, way: Way, rows: Sequence[Any], arrivals: Sequence[int], seed: int
) -> dict[str, float]:
    """One live run."""
    known = table if way.to else None
    with lb.LazyBatcher(
        model, table=known, policy=way.policy, max_batch_size=ROWS_MAX, queue_capacity=100_000
    ) as batcher:
        warm(batcher, rows, ROWS_MAX)
        before = batcher.stats()
        done = ends(serve(batcher, schedule(model.name, rows, arrivals, seed)))
        after = batcher.stats()
    kept = [ns for ns in done.latencies_ns[int(WARM_UP * len(done.latencies_ns)) :] if ns is not None]
    found = latency_summary(kept)
    true = after.tokens - before.tokens
    return {
        "mean_ms": (found.mean or 0) / MS,
        "p99_ms": (found.p99 or 0) / MS,
        "waste": (after.padded_tokens - before.padded_tokens) / true if true else 1.0,
        "lag_p99_ms": done.lag_p99_ms,
    }


def _ids(length: int, seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).integers(1000, 30_000, length)


def _ones(length: int) -> Any:
    import numpy as np

    return np.ones(length, dtype=np.int64)


def show(report: Report) -> None:
    """The rows as a table."""
    print(f"{'':10} {'model':12} {'load':>5} {'way':32} {'waste':>6} {'mean ms':>9} {'p99 ms':>9}")
    for row in report.rows:
        print(
            f"{row['what']:10} {row['model']:12} {row['load']:5g} {row['way']:32} {row['waste']:6.2f} "
            f"{row['mean_ms']:9.2f} {row['p99_ms']:9.2f}"
        )


def main(chosen: argparse.Namespace) -> int:
    """Sweep, perhaps live, report."""
    requests, seeds = (1_500, (1,)) if chosen.quick else (10_000, (1, 2, 3))
    settings = {
        "requests": requests,
        "seeds": list(seeds),
        "live": chosen.live,
        "to": list(TO),
        "mean": MEAN,
        "sigma": SIGMA,
    }
    report = Report("bench/padding.py", settings=settings)
    if chosen.live:
        seconds, rounds = (3.0, 1) if chosen.quick else (chosen.seconds, 3)
        live(report, seconds, rounds, LOADS[1:2] if chosen.quick else LOADS)
    else:
        sweep(report, MACHINES, requests, seeds)
    show(report)
    return report.finish(chosen.json)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("Rows of many lengths, padded or not.", "Without --live everything is simulated.")
    made.add_argument("--live", action="store_true", help="serve MiniLM on this machine instead")
    made.add_argument("--seconds", type=float, default=20.0, help="length of each live run (default 20)")
    return made


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
