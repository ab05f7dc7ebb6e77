"""Simulation against reality: the same arrivals through the live engine and through the simulator.

Owns: the order of measuring, the runs on both sides, and how far they are apart.
Must not know: the models of overhead (`measure_overheads`), how nodes are scheduled.

In every round a model is profiled anew, so that both sides see the same machine. Before each run that is compared, one
of its own, half as long and with other arrivals, measures what the engine adds at this rate under this policy: five
constants. Callers that submit and take results share the processor with the nodes, so they depend on the rate. Then the
simulator is given the times at which calls were really submitted, decides by the table as the live policy did, and
takes the nodes' times plus those constants ("before"). A machine shared with others changes its pace from one run
to the next, which no simulation can foresee. So a second side fits the constants to the compared run itself ("same
run"): it is told how fast the machine was, and must still get queueing and decisions right. Beside them stands what the
simulator says of the profile alone, as `lazybatch simulate` does: with the engine's time as the profile measured it,
without callers ("table"); the same at the pace that nodes had, moment by moment, in the compared run ("paced"); and of
the nodes' times only ("nodes").
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.common import Report, fill_in, parser, progress_bar, progress_end, run_script
from bench.live import Ends, Forgetting, ends, schedule, serve, warm
from bench.measure_overheads import Overheads, Watched, fit
from bench.models import NAMES, Subject, subject
from bench.pace import Pace
from bench.paired import in_turns
from bench.variants import Variant, joinable, variants
from lazybatch.bounds import graph_capacity_rps
from lazybatch.config import whole
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.metrics import latency_summary
from lazybatch.simulator import requests_from, simulate
from lazybatch.workload import poisson

WITHIN = 0.15
SLA_RUNS = 20
"""The target that policies are told, in bare runs of the model: loose, as both sides judge lateness alike anyway."""
CAPACITY_SEEN_AT = 0.6
"""Share of the table's capacity at which the engine is first watched."""
CALIBRATION_SEEDS = 1000
WARM_UP = 0.1
JUDGED = ("before", "same_run", "paced")
PACE_WITHIN, LATE_MS = 0.05, 2.0
"""Beyond this the machine is said to have been unfit for the comparison."""
EPILOG = f"""\
models     {", ".join(NAMES)}, or ONNX files
loads      shares of what the engine can serve: the best batch size of the table with what a run showed added

Runs last --seconds, or longer where that is needed for --requests. Rounds repeat all of it with other arrivals;
per comparison the median over the rounds of simulated over live counts. Run it on a machine that does nothing else.

examples
  python bench/reality.py --quick
  python bench/reality.py ppocr-cls --json out/bench/reality-cls.json
  python bench/reality.py ppocr-rec --load 0.5 --policy lookahead --rounds 5

status: 0 every mean and p99 within {WITHIN:.0%}, 1 some are not, 2 bad input
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A model with what its runs share. rows_max: largest batch."""

    subject: Subject
    model: Any
    rows: Sequence[Any]
    rows_max: int
    table: LatencyTable

    @property
    def lane(self) -> LaneSpec:
        """The model as the scheduler sees it; the live batcher is given the same."""
        table = self.table
        return LaneSpec(
            NodeGraph.chain(table.model, table.nodes),
            table,
            self.rows_max,
            queue_capacity=100_000,
            sla_ns=self.sla_ns,
            joinable=joinable(table),
        )

    @property
    def sla_ns(self) -> int:
        """The target of every call."""
        return SLA_RUNS * self.table.whole_ns(1)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser((__doc__ or "").split("\n")[0], EPILOG)
    made.add_argument("models", nargs="*", default=["ppocr-cls", "ppocr-rec"], metavar="MODEL", help="(cls and rec)")
    made.add_argument("--load", nargs="+", type=float, help="(0.3 0.6 0.85)")
    made.add_argument("--policy", nargs="+", metavar="P", default=["graph:0", "lazy", "lookahead"])
    made.add_argument("--rounds", type=int, metavar="N", help="(3)")
    made.add_argument("--seconds", type=float, metavar="S", help="of a run, at least (3)")
    made.add_argument("--requests", type=int, metavar="N", help="of a run, at least (120)")
    made.add_argument("--profile-seconds", type=float, metavar="S", help="per model and round (4)")
    made.add_argument("--max-batch-size", type=int, default=8, metavar="N", help="(8)")
    return made


def check(chosen: argparse.Namespace) -> None:
    """Fill in defaults and refuse what cannot be. Raises `InvalidInput`."""
    fill_in(
        chosen,
        ("load", [0.3, 0.6, 0.85], [0.3, 0.7]),
        ("rounds", 3, 1),
        ("seconds", 3.0, 1.0),
        ("requests", 120, 20),
        ("profile_seconds", 4.0, 1.5),
    )
    whole("--rounds", chosen.rounds, 1, 1000)
    whole("--requests", chosen.requests, 10, 1_000_000)
    whole("--max-batch-size", chosen.max_batch_size, 1, 4096)
    for name in ("seconds", "profile_seconds"):
        if not 0 < getattr(chosen, name) < 1e6:
            raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {getattr(chosen, name)}")
    for load in chosen.load:
        if not 0 < load < 1:
            raise InvalidInput(f"--load must be between 0 and 1 (above it queues grow without end), got {load}")


def prepare(name: str, rows_max: int, seconds: float) -> Bench:
    """Load a model and profile it now, at sizes close to one another."""
    target = subject(name)
    model, rows = target.load(), target.rows(16)
    most = rows_max if model.joinable else 1
    sizes = sorted({size for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if size < most} | {most})
    return Bench(target, model, rows, most, lb.profile(model, sizes, budget_s=seconds, inputs=rows[:8]))


def run_live(bench: Bench, one: Variant, arrivals_ns: Sequence[int], seed: int) -> tuple[Watched, Pace, Ends]:
    """One run through a batcher of its own."""
    watched, pace = Watched(), Pace(bench.table, bench.rows_max)
    lane = bench.lane
    policy = Forgetting(lambda: one.policy_for(lane))
    with lb.LazyBatcher(
        bench.model,
        table=bench.table,
        sla=bench.sla_ns / 1e9,
        max_batch_size=bench.rows_max,
        queue_capacity=100_000,
        observers=[watched, pace],
        policy=policy,
    ) as batcher:
        warm(batcher, bench.rows, bench.rows_max)
        policy.forget()
        watched.clear()
        pace.restart()
        outcome = ends(serve(batcher, schedule(bench.model.name, bench.rows, arrivals_ns, seed)))
    return watched, pace, outcome


def run_simulated(bench: Bench, one: Variant, submit_ns: Sequence[int], took: Overheads | LatencyTable) -> list[int]:
    """Latencies in virtual time of calls submitted at these times, in their order.

    took: what nodes take: the profiled times and these constants, or a table's. Policies are told the profile.
    """
    lane, model = bench.lane, bench.table.model
    policy = one.policy_for(lane)
    wake_ns = around_ns = 0
    if isinstance(took, Overheads):
        wake_ns, around_ns = took.wake_ns, took.wake_ns + took.answer_ns
        took = took.over(bench.table, bench.rows_max)
    requests = requests_from([at_ns + wake_ns for at_ns in submit_ns], model, sla_ns=bench.sla_ns)
    found = simulate([lane], policy, requests, durations={model: took}).latencies_ns
    return [found[request.id] + around_ns for request in requests]


def calibrate(bench: Bench, one: Variant, rate_rps: float, plan: Any) -> Overheads:
    """What the engine adds under this policy at this rate, from a run of its own with other arrivals."""
    count = max(plan.requests // 2, round(rate_rps * plan.seconds / 2))
    seed = CALIBRATION_SEEDS + plan.seed
    watched, _, outcome = run_live(bench, one, poisson(rate_rps, count, seed), seed)
    return fitted(bench, watched, outcome)


def fitted(bench: Bench, watched: Watched, outcome: Ends) -> Overheads:
    """The constants that explain a run."""
    return fit(watched, bench.table, bench.rows_max, [ns for ns in outcome.latencies_ns if ns is not None])


def compare(
    bench: Bench, one: Variant, overheads: Overheads, load: float, rate_rps: float, plan: Any
) -> dict[str, Any]:
    """One run on both sides, with all latencies of what came after the warm-up."""
    count = max(plan.requests, round(rate_rps * plan.seconds))
    watched, pace, outcome = run_live(bench, one, poisson(rate_rps, count, plan.seed), plan.seed)
    if None in outcome.latencies_ns:
        raise InvalidInput(f"{bench.subject.name}: {outcome.failed} calls failed, {outcome.refused} were refused")
    first = int(WARM_UP * count)
    sides = {
        "live": outcome.latencies_ns,
        "before": run_simulated(bench, one, outcome.submit_ns, overheads),
        "same_run": run_simulated(bench, one, outcome.submit_ns, fitted(bench, watched, outcome)),
        "paced": _paced(bench, one, pace, outcome),
        "table": run_simulated(bench, one, outcome.submit_ns, bench.table),
        "nodes": run_simulated(bench, one, outcome.submit_ns, replace(bench.table, engine=None)),
    }
    ms = {side: latency_summary([ns or 0 for ns in found[first:]]).as_ms() for side, found in sides.items()}
    return {
        "what": "run",
        "model": bench.subject.name,
        "policy": one.title,
        "load": load,
        "rate_rps": rate_rps,
        "seed": plan.seed,
        "requests": count,
        "submit_lag_p99_ms": outcome.lag_p99_ms,
        "overheads": overheads.as_us(),
        **{f"{side}_{of}": ms[side][of] for side in sides for of in ("mean_ms", "p99_ms")},
    }


def _paced(bench: Bench, one: Variant, pace: Pace, outcome: Ends) -> list[int | None]:
    lane, seen = bench.lane, pace.seen(outcome.submit_ns, outcome.latencies_ns)
    requests = requests_from(outcome.submit_ns, bench.table.model, sla_ns=bench.sla_ns)
    return seen.simulated_ns(lane, one.policy_for(lane), requests)


def drift(bench: Bench, seed: int) -> dict[str, Any]:
    """How the machine's pace has changed since the model was profiled; where it has, no simulation can be right."""
    again = lb.profile(bench.model, (1,), budget_s=1.0, inputs=bench.rows[:8])
    pace = again.whole_ns(1) / bench.table.whole_ns(1)
    return {"what": "drift", "model": bench.subject.name, "seed": seed, "pace": pace}


def measure(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds: per model profile, calibrate, and run every load under every policy, in an order that rotates."""
    compared = variants(chosen.policy)
    total = chosen.rounds * len(chosen.models) * len(compared) * len(chosen.load)
    rows: list[dict[str, Any]] = []
    done = 0
    for seed in range(1, chosen.rounds + 1):
        chosen.seed = seed
        for name in chosen.models:
            progress_bar(done, total, f"{name}: profiling")
            bench = prepare(name, chosen.max_batch_size, chosen.profile_seconds)
            # Loads are shares of what the engine serves, under the first policy; rates are the same for all of them.
            table_rps = graph_capacity_rps(bench.table.dispatched(), bench.rows_max)
            first = calibrate(bench, compared[0], CAPACITY_SEEN_AT * table_rps, chosen)
            capacity_rps = graph_capacity_rps(first.over(bench.table, bench.rows_max), bench.rows_max)
            for load in chosen.load:
                for one in in_turns(compared, seed):
                    progress_bar(done, total, f"{name}: {one.title} at load {load:g}")
                    overheads = calibrate(bench, one, load * capacity_rps, chosen)
                    rows.append(compare(bench, one, overheads, load, load * capacity_rps, chosen))
                    done += 1
            rows.append(drift(bench, seed))
    progress_end()
    return rows


def judge(report: Report) -> None:
    """Means and p99, simulated over live, the median over the rounds; a figure each."""
    runs = [row for row in report.rows if row["what"] == "run"]
    heads = "".join(
        f"{title:>11}{'before':>9}{'same run':>9}{'paced':>8}{'table':>8}{'nodes':>8}"
        for title in ("live mean", "live p99")
    )
    print(f"{'model':12}{'policy':12}{'load':>6}{heads}   (ms; simulated over live, medians over rounds)")
    for key in dict.fromkeys((row["model"], row["policy"], row["load"]) for row in runs):
        mine = [row for row in runs if (row["model"], row["policy"], row["load"]) == key]
        model, policy, load = key
        row: dict[str, Any] = {"what": "comparison", "model": model, "policy": policy, "load": load}
        cells = ""
        for of in ("mean", "p99"):
            row[f"live_{of}_ms"] = median(one[f"live_{of}_ms"] for one in mine)
            cells += f"{row[f'live_{of}_ms']:>11.2f}"
            for side, width in (("before", 9), ("same_run", 9), ("paced", 8), ("table", 8), ("nodes", 8)):
                ratio = median(one[f"{side}_{of}_ms"] / one[f"live_{of}_ms"] for one in mine)
                row[f"{side}_over_live_{of}"] = ratio
                cells += f"{ratio:>{width}.3f}"
                if side in JUDGED:
                    report.at_most(f"{of}_off/{side}/{model}/{policy}/load{load:g}", abs(ratio - 1), WITHIN)
        report.rows.append(row)
        print(f"{model:12}{policy:12}{load:>6.2f}{cells}")


def explain(report: Report) -> None:
    """What the engine added, and whether the machine kept its pace."""
    runs = [row for row in report.rows if row["what"] == "run"]
    for model, policy in dict.fromkeys((row["model"], row["policy"]) for row in runs):
        mine = [row["overheads"] for row in runs if (row["model"], row["policy"]) == (model, policy)]
        words = ", ".join(f"{name[:-3]} {median(one[name] for one in mine):.0f}" for name in mine[0])
        print(f"{model} under {policy}, microseconds besides the table: {words}")
    for row in report.rows:
        if row["what"] == "drift" and abs(row["pace"] - 1) > PACE_WITHIN:
            print(
                f"note: in round {row['seed']} {row['model']} took {row['pace']:.2f} times as long after the runs as "
                "before them: the machine did not keep its pace, and the comparison says little"
            )
    late = max(row["submit_lag_p99_ms"] for row in runs)
    if late > LATE_MS:
        print(f"note: the load generator was up to {late:.1f} ms late (99th percentile); the machine was busy")


def main(chosen: argparse.Namespace) -> int:
    """Measure both sides and say how far they are apart."""
    check(chosen)
    for name in chosen.models:
        subject(name)  # unknown names are refused before anything is measured
    report = Report("bench/reality.py", settings=vars(chosen))
    report.rows = measure(chosen)
    judge(report)
    explain(report)
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
