"""Loops in virtual time: joining and leaving at every step against whole batches, and when joining pays.

Owns: three models with a loop, the sweep over loads, and its figures.
Must not know: executors; everything reported here is simulated.

    python bench/loops.py --json loops.json        (three minutes)
    python bench/loops.py --quick

A model encodes a request once and makes decoder steps until it is done. Loads are shares of what GraphB(0) can serve
("graph"), and of what joining at every step can ("continuous"), both measured by a run under overload.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, parser, progress_bar, run_script
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.policies import make_policy
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson, weighted_lengths

MS = 1_000_000
WARM_UP = 0.1
POLICIES = ("graph", "continuous", "lazy", "lookahead")
LOADS = {"graph": (0.25, 0.5, 0.9), "continuous": (0.5, 0.8, 0.95)}


@dataclass(frozen=True)
class Model:
    """Encoder and step times in ms, fixed and per row; the largest batch; weights of the numbers of steps."""

    name: str
    encode: tuple[float, float]
    step: tuple[float, float]
    rows_max: int
    lengths: tuple[tuple[int, float], ...]

    def spec(self) -> LaneSpec:
        """The lane, characterised by a thousand lengths that are not those of the trace."""
        sizes = (1, self.rows_max)
        times = tuple(
            tuple(round((fixed + per_row * rows) * MS) for rows in sizes) for fixed, per_row in (self.encode, self.step)
        )
        table = LatencyTable(self.name, ("encode", "step"), sizes, times, times, {"synthetic": True})
        graph = NodeGraph.chain(self.name, table.nodes, [Loop("decoder", 1, 2)])
        guess = LengthGuess.of(weighted_lengths(dict(self.lengths), 1000, seed=99))
        return LaneSpec(graph, table, max_batch_size=self.rows_max, queue_capacity=1 << 30, lengths=(guess,))


SENTENCES = ((5, 0.2), (15, 0.45), (25, 0.25), (35, 0.1))
MODELS = (
    Model("lstm-cpu", (20.0, 3.0), (13.0, 0.95), 64, SENTENCES),  # 8 LSTM layers of 1024 on two cores: 14 to 74 ms
    Model("decoder-gpu", (6.0, 0.8), (4.0, 0.03), 32, SENTENCES),  # steps bound by memory, an encoder by arithmetic
    Model("speech", (80.0, 20.0), (8.0, 1.5), 16, ((10, 0.5), (40, 0.4), (120, 0.1))),  # a dear encoder, long tails
)


def served(model: Model, policy: str, rate_rps: float, requests: int, seed: int) -> SimulationResult:
    """One run of one policy."""
    lane = _spec(model)
    trips = {k: (steps,) for k, steps in enumerate(weighted_lengths(dict(model.lengths), requests, seed + 1000))}
    trace = requests_from(poisson(rate_rps, requests, seed), model.name)
    made = make_policy(policy, [lane])
    return simulate([lane], made, trace, trips=trips)


@cache
def _spec(model: Model) -> LaneSpec:
    return model.spec()


def capacity_rps(model: Model, policy: str, requests: int) -> float:
    """What a policy serves per second when there is always more than it can: the middle half of an overloaded run."""
    encode, step = model.encode, model.step
    offered_rps = 1e3 * model.rows_max / (encode[0] + step[0] + model.rows_max * (encode[1] + step[1]))
    result = served(model, policy, offered_rps, requests, seed=0)
    arrivals_ns = poisson(offered_rps, requests, 0)
    ends_ns = sorted(arrivals_ns[k] + latency_ns for k, latency_ns in result.latencies_ns.items())
    first, last = len(ends_ns) // 4, 3 * len(ends_ns) // 4
    return (last - first) * 1e9 / (ends_ns[last] - ends_ns[first])


def measure(model: Model, rate_rps: float, requests: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per policy: mean and p99 latency in ms, mean rows per dispatch; medians over the seeds."""
    rows = []
    for policy in POLICIES:
        means, tails, batches = [], [], []
        for seed in seeds:
            result = served(model, policy, rate_rps, requests, seed)
            kept = sorted(ns for k, ns in result.latencies_ns.items() if k >= WARM_UP * requests)
            means.append(statistics.fmean(kept) / MS)
            tails.append(kept[int(0.99 * len(kept))] / MS)
            batches.append(result.mean_batch)
        rows.append(
            {
                "what": "loop",
                "model": model.name,
                "policy": policy,
                "rate_rps": rate_rps,
                "mean_ms": statistics.median(means),
                "p99_ms": statistics.median(tails),
                "mean_batch": statistics.median(batches),
            }
        )
    return rows


def judge(report: Report, rows: Sequence[dict[str, Any]]) -> None:
    """The figures of one model at one load.

    How far whole batches must fall behind is a figure of the LSTM decoder alone; the rows say it of all models. Where a
    step hardly grows with its rows, or the encoder takes most of the time, whole batches lose less.
    """
    by_policy = {row["policy"]: row for row in rows}
    ours, graph, continuous = (by_policy[name] for name in ("lookahead", "graph", "continuous"))
    name = f"{ours['model']}/{ours['load']:g} of {ours['load_of']}"
    if ours["load_of"] == "graph":
        least = {0.5: 2.0, 0.9: 4.0}.get(ours["load"])
        if least is not None and ours["model"] == MODELS[0].name:
            report.at_least(f"mean_graph_over_lookahead/{name}", graph["mean_ms"] / ours["mean_ms"], least)
        report.at_most(f"p99_over_graph/{name}", ours["p99_ms"] / graph["p99_ms"], 1.0)
    report.at_most(f"mean_over_continuous/{name}", ours["mean_ms"] / continuous["mean_ms"], 1.01)
    report.at_most(f"p99_over_continuous/{name}", ours["p99_ms"] / continuous["p99_ms"], 1.02)
    if ours["load_of"] == "continuous" and ours["load"] == 0.95:
        report.at_least(f"mean_continuous_over_lookahead/{name}", continuous["mean_ms"] / ours["mean_ms"], 1.5)


def main(chosen: argparse.Namespace) -> int:
    """Sweep, report."""
    requests, seeds = (1_500, (1,)) if chosen.quick else (8_000, (1, 2, 3))
    models = [model for model in MODELS if not chosen.models or model.name in chosen.models]
    if chosen.quick and not chosen.models:
        models = models[1:]
    report = Report("bench/loops.py", settings={"requests": requests, "seeds": list(seeds), "simulated": True})
    cells = [(model, base, load) for model in models for base, loads in LOADS.items() for load in loads]
    capacities: dict[tuple[str, str], float] = {}
    for done, (model, base, load) in enumerate(cells):
        progress_bar(done, len(cells), f"{model.name} at {load:g} of {base}")
        key = (model.name, base)
        if key not in capacities:
            capacities[key] = capacity_rps(model, base, max(2_000, requests // 2))
        rows = measure(model, load * capacities[key], requests, seeds)
        ours_ms = next(row["mean_ms"] for row in rows if row["policy"] == "lookahead")
        rows = [{**row, "load_of": base, "load": load, "mean_over_lookahead": row["mean_ms"] / ours_ms} for row in rows]
        report.rows += rows
        judge(report, rows)
    for model in models:
        ratio = capacities[model.name, "continuous"] / capacities[model.name, "graph"]
        report.rows.append({"what": "capacity", "model": model.name, "continuous_over_graph": ratio})
    return report.finish(chosen.json)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("Loops in virtual time.", "Everything is simulated; a run is the same on every machine.")
    made.add_argument("--models", nargs="+", choices=[model.name for model in MODELS], help="some of the models only")
    return made


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
