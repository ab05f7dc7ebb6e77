"""Loops in virtual time: joining and leaving at every step against whole batches, and when joining pays.

Owns: the sweep over models, loads and arrivals, and its figures.
Must not know: executors; everything reported here is simulated.

    python bench/loops.py --json loops.json        (fifteen minutes)
    python bench/loops.py --quick

Loads are shares of what GraphB(0) can serve ("graph"), and of what joining at every step can ("continuous"), both
measured by a run under overload. Ratios are taken seed by seed; figures are medians over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, parser, progress_bar, run_script
from bench.loop_models import MODELS, LoopModel
from bench.loop_runs import Load, Outcome, capacity_rps, run, sustained

POLICIES = ("graph", "continuous", "lazy", "lookahead")
LOADS = (
    ("graph", 0.1, "poisson"),
    ("graph", 0.25, "poisson"),
    ("graph", 0.5, "poisson"),
    ("graph", 0.5, "bursty"),
    ("graph", 0.9, "poisson"),
    ("continuous", 0.5, "poisson"),
    ("continuous", 0.8, "poisson"),
    ("continuous", 0.8, "bursty"),
    ("continuous", 0.95, "poisson"),
)
TARGETS = (0.5, 0.9)
"""Loads of GraphB(0) whose 99th percentile is taken as the target it just meets."""
LSTM = MODELS[0].name


def measure(
    model: LoopModel, load: Load, seeds: Sequence[int], policies: Sequence[str]
) -> tuple[dict[str, Outcome], list[dict[str, Any]]]:
    """Outcomes by policy, and a row for each: medians over the seeds."""
    found = {policy: run(model, policy, load, seeds) for policy in policies}
    rows = [
        {
            "what": "loop",
            "model": model.name,
            "policy": policy,
            "arrivals": load.arrivals,
            "rate_rps": load.rate_rps,
            "mean_ms": statistics.median(outcome.mean_ms),
            "p99_ms": statistics.median(outcome.p99_ms),
            "mean_batch": statistics.median(outcome.batch),
            "mean_over_lookahead": outcome.over(found["lookahead"], "mean_ms"),
            "p99_over_lookahead": outcome.over(found["lookahead"], "p99_ms"),
        }
        for policy, outcome in found.items()
    ]
    return found, rows


def judge(report: Report, model: str, cell: tuple[str, float, str], found: Mapping[str, Outcome]) -> None:
    """The figures of one model at one load.

    How far whole batches and joining at every step must fall behind are figures of the LSTM decoder; the rows say it of
    all models. Where a step hardly grows with its rows, or the encoder takes most of the time, there is less to win.
    """
    base, share, arrivals = cell
    ours, graph, continuous = (found[name] for name in ("lookahead", "graph", "continuous"))
    name = f"{model}/{share:g} of {base}" + ("" if arrivals == "poisson" else f", {arrivals}")
    if base == "graph":
        least = {0.5: 2.0, 0.9: 4.0}.get(share)
        if least is not None and model == LSTM and arrivals == "poisson":
            report.at_least(f"mean_graph_over_lookahead/{name}", graph.over(ours, "mean_ms"), least)
        report.at_most(f"mean_over_graph/{name}", ours.over(graph, "mean_ms"), 1.01)
        report.at_most(f"p99_over_graph/{name}", ours.over(graph, "p99_ms"), 1.02)
    report.at_most(f"mean_over_continuous/{name}", ours.over(continuous, "mean_ms"), 1.01)
    report.at_most(f"p99_over_continuous/{name}", ours.over(continuous, "p99_ms"), 1.02)
    if base == "continuous" and share == 0.95 and model == LSTM:
        report.at_least(f"mean_continuous_over_lookahead/{name}", continuous.over(ours, "mean_ms"), 1.5)


def judge_targets(report: Report, model: LoopModel, requests: int, seeds: Sequence[int]) -> None:
    """How much more than GraphB(0) is sustained at the target which it just meets at some load."""
    for share in TARGETS:
        load = Load("poisson", share * capacity_rps(model, "graph", requests), requests)
        p99_ms = statistics.median(run(model, "graph", load, seeds).p99_ms)
        row: dict[str, Any] = {"what": "sustained", "model": model.name, "target_of": share, "p99_ms": p99_ms}
        for policy in ("continuous", "lookahead"):
            row[policy] = sustained(model, policy, p99_ms, load, seeds)
        report.rows.append(row)
        name = f"sustained_over_graph/{model.name}/target of {share:g}"
        if model.name == LSTM:
            report.at_least(name, row["lookahead"], 1.5)
        report.at_least(f"{name}, no less than continuous", row["lookahead"], 0.99 * row["continuous"])


def main(chosen: argparse.Namespace) -> int:
    """Sweep, report."""
    requests, seeds = (1_500, (1,)) if chosen.quick else (6_000, (1, 2, 3))
    models = [model for model in MODELS if not chosen.models or model.name in chosen.models]
    if chosen.quick and not chosen.models:
        models = [model for model in models if model.name in ("decoder-gpu", "seq2seq")]
    policies = tuple(dict.fromkeys((*POLICIES, *chosen.policies)))
    if chosen.only_ours:
        policies = tuple(policy for policy in policies if policy != "lazy")
    report = Report("bench/loops.py", settings={"requests": requests, "seeds": list(seeds), "simulated": True})
    cells = [(model, cell) for model in models for cell in LOADS]
    for done, (model, cell) in enumerate(cells):
        base, share, arrivals = cell
        progress_bar(done, len(cells), f"{model.name} at {share:g} of {base}, {arrivals}")
        load = Load(arrivals, share * capacity_rps(model, base, requests), requests)
        found, rows = measure(model, load, seeds, policies)
        report.rows += [{**row, "load_of": base, "load": share} for row in rows]
        judge(report, model.name, cell, found)
    for number, model in enumerate(models):
        progress_bar(number, len(models), f"{model.name}: targets")
        ratio = capacity_rps(model, "continuous", requests) / capacity_rps(model, "graph", requests)
        report.rows.append({"what": "capacity", "model": model.name, "continuous_over_graph": ratio})
        if chosen.targets or not chosen.quick:
            judge_targets(report, model, requests, seeds)
    return report.finish(chosen.json)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("Loops in virtual time.", "Everything is simulated; a run is the same on every machine.")
    made.add_argument("--models", nargs="+", choices=[model.name for model in MODELS], help="some of the models only")
    made.add_argument("--policies", nargs="+", default=[], metavar="P", help="further policies, beside the usual ones")
    made.add_argument("--only-ours", action="store_true", help="leave the paper's policy out, which takes longest")
    made.add_argument("--targets", action="store_true", help="measure sustained rates in a quick run, too")
    return made


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
