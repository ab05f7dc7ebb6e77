"""A model with a loop, served live: whole batches, joining at every step, the paper's policy, and ours.

Owns: measuring capacities, the runs in turns, and each run simulated as well.
Must not know: how rows join, what a model computes, what is wanted (`loops_judgement`).

Capacity of a policy is what it serves per second when there is always more than it can. Loads are shares of that of
whole batches ("graph": a batch runs until its longest row is done) and of joining at every step ("continuous"), at the
pace that the machine had a moment before. Every policy serves the same arrivals of the same rows, in turns, seed by
seed, in one process. The rate that ours must still sustain is 1.5 times the largest that whole batches were run at,
within the time that 99 % of theirs took there.

Every run is simulated as well: predicted, with the profile made before it, and once more with nodes as fast as they
were in that very run, which tells a simulator that is wrong from a machine that has changed. And every policy is
simulated at the pace that the machine had in the others' runs: so it is known what a change of pace did to a ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench import loops_judgement
from bench.common import Report, fill_in, parser, progress, progress_bar, progress_end, run_script
from bench.live import Ends, Forgetting, ends, schedule, serve, warm
from bench.loops_judgement import CONTINUOUS, GRAPH, NEAR_CAPACITY, OURS
from bench.pace import Pace, Paced, steady
from bench.paired import AT_PACE, in_turns
from bench.programs import LOOPED, Looped, looped
from bench.variants import Variant, variants
from lazybatch.config import whole
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.base import Policy
from lazybatch.core.request import Request
from lazybatch.demo.load import Offer
from lazybatch.errors import InvalidInput
from lazybatch.lengths import Lengths, guesses_for, load_lengths
from lazybatch.workload import poisson

SUSTAINED = 1.5
WARM_UP = 0.1
CAPACITY_BATCHES = 4
"""Full batches that a capacity is measured with, of which the middle ones count: a multiple of four."""
POOL = 256
"""Different rows that a run draws from."""
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
EPILOG = f"""\
models     {", ".join(LOOPED)}

examples
  python bench/loops_live.py --quick
  python bench/loops_live.py --json out/bench/loops-gnmt.json
  python bench/loops_live.py --model transformer --seconds 20 --json out/bench/loops-transformer.json
  python bench/loops_live.py --model las --policy graph:0 continuous lookahead --json out/bench/loops-las.json
  python bench/loops_judgement.py out/bench/loops-*.json > out/bench/loops.md

The JSON file is written after every seed.
status: 0 all targets are met, 1 one is not, 2 bad input
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs share. rows: the pool that requests are drawn from. sla_ns: what policies are told, as they are
    told ``table``, the latest profile; paces are over ``first``, the first one."""

    subject: Looped
    model: Any
    first: LatencyTable
    table: LatencyTable
    lengths: Lengths
    rows: Sequence[Any]
    rows_max: int
    sla_ns: int

    def batcher(self, policy: Policy, pace: Pace, sla_ns: int | None = None) -> lb.LazyBatcher:
        """A batcher of its own for a run."""
        return lb.LazyBatcher(
            self.model,
            table=self.table,
            lengths=self.lengths,
            sla=(sla_ns or self.sla_ns) / 1e9,
            max_batch_size=self.rows_max,
            queue_capacity=100_000,
            observers=[pace],
            policy=policy,
        )

    def lane(self) -> LaneSpec:
        """The model as the scheduler sees it; the live batcher is given the same."""
        graph = self.model.graph
        return LaneSpec(
            graph,
            self.table,
            self.rows_max,
            queue_capacity=100_000,
            sla_ns=self.sla_ns,
            lengths=guesses_for(graph, self.lengths),
        )


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser((__doc__ or "").split("\n")[0], EPILOG)
    made.add_argument("--model", metavar="MODEL", help="(gnmt-short; with --quick gnmt-tiny)")
    made.add_argument("--policy", nargs="+", metavar="P", default=[GRAPH, CONTINUOUS, "lazy", OURS])
    made.add_argument("--load", nargs="+", type=float, metavar="L", help="shares of whole batches' capacity (0.5 0.9)")
    made.add_argument("--load-continuous", nargs="+", type=float, metavar="L", help="shares of continuous' (0.95)")
    made.add_argument("--max-batch-size", type=int, default=32, metavar="N", help="(%(default)s)")
    made.add_argument("--sla-x", type=float, default=8.0, metavar="X", help="target in mean rows alone (%(default)s)")
    made.add_argument("--seconds", type=float, metavar="S", help="length of a run (8)")
    made.add_argument("--profile-seconds", type=float, metavar="S", help="before each seed (15)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each (5)")
    return made


def check(chosen: argparse.Namespace) -> None:
    """Fill in defaults and refuse what cannot be. Raises `InvalidInput`."""
    fill_in(
        chosen,
        ("model", "gnmt-short", "gnmt-tiny"),
        ("load", [0.5, 0.9], [0.5, 0.9]),
        ("load_continuous", [NEAR_CAPACITY], [NEAR_CAPACITY]),
        ("seconds", 8.0, 0.4),
        ("profile_seconds", 15.0, 2.0),
        ("seeds", 5, 1),
    )
    whole("--seeds", chosen.seeds, 1, 1000)
    whole("--max-batch-size", chosen.max_batch_size, 1, 4096)
    for name in ("seconds", "sla_x", "profile_seconds"):
        if not 0 < getattr(chosen, name) < 1e6:
            raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {getattr(chosen, name)}")
    for load in (*chosen.load, *chosen.load_continuous):
        if not 0 < load < 1.5:
            raise InvalidInput(f"a load must be above 0 and below 1.5, got {load}")


def prepare(chosen: argparse.Namespace) -> Bench:
    """Load the model, profile it, read the lengths that were seen."""
    target = looped(chosen.model)
    progress(f"{target.name}: loading")
    model = target.load()
    if not model.joinable:
        raise InvalidInput(f"{target.name}: its rows cannot share a batch: {model.reason}")
    rows = target.rows(POOL, seed=1)
    table = profiled(model, rows, chosen)
    lengths = load_lengths(target.lengths)
    mean_ns = alone_ns(
        model, table.dispatched(), [guess.mean_trips for guess in guesses_for(model.graph, lengths) if guess]
    )
    return Bench(target, model, table, table, lengths, rows, chosen.max_batch_size, round(chosen.sla_x * mean_ns))


def profiled(model: Any, rows: Sequence[Any], chosen: argparse.Namespace) -> LatencyTable:
    """The model's latencies now; policies and simulations are told the same."""
    progress(f"{model.name}: profiling")
    most = chosen.max_batch_size
    sizes = sorted({size for size in SIZES if size < most} | {most})
    return lb.profile(model, sizes, budget_s=chosen.profile_seconds, inputs=rows[:most])


def alone_ns(model: Any, table: LatencyTable, trips: Sequence[float]) -> float:
    """A row alone on an idle machine, with so many iterations in each loop."""
    times = [times_ns[0] for times_ns in table.median_ns]
    loops = zip(model.graph.loops, trips, strict=True)
    return sum(times) + sum((count - 1) * sum(times[loop.first : loop.stop]) for loop, count in loops)


def capacity_rps(bench: Bench, one: Variant) -> float:
    """Rows per second with a queue that never empties, at the first profile's pace: the middle half of the rows, by
    their ends."""
    count = CAPACITY_BATCHES * bench.rows_max
    offers, pace = schedule(bench.model.name, bench.rows, range(count), seed=0), Pace(bench.first, bench.rows_max)
    with bench.batcher(one.policy_for(bench.lane()), pace) as batcher:
        warm(batcher, bench.rows, bench.rows_max)
        pace.restart()
        calls = serve(batcher, offers)
    done = sorted(call.done_ns for call in calls if call.latency_ns is not None and call.done_ns is not None)
    if len(done) < count:
        raise InvalidInput(f"{bench.subject.name}: {count - len(done)} of {count} calls failed under {one.title}")
    first, last = count // 4 - 1, 3 * count // 4 - 1
    return pace.ratio * (last - first) * 1e9 / (done[last] - done[first])


def run(bench: Bench, one: Variant, offers: Sequence[Offer], sla_ns: int | None = None) -> tuple[Ends, Pace, float]:
    """One run through a batcher of its own, warmed up; how calls ended, the pace, and mean rows of an iteration."""
    lane, pace = bench.lane(), Pace(bench.first, bench.rows_max)
    policy = Forgetting(lambda: one.policy_for(lane))
    with bench.batcher(policy, pace, sla_ns) as batcher:
        warm(batcher, bench.rows, bench.rows_max)
        policy.forget()
        pace.restart()
        before = batcher.stats()
        outcome = ends(serve(batcher, offers))
        after = batcher.stats()
    steps = after.steps - before.steps
    return outcome, pace, (after.iterations - before.iterations) / steps if steps else 0.0


def simulated_mean_ms(
    bench: Bench, one: Variant, offers: Sequence[Offer], submit_ns: Sequence[int], paced: Paced
) -> float:
    """The mean in virtual time of the same rows, submitted when they really were, at this pace."""
    name, lane = bench.model.name, bench.lane()
    requests, trips = [], {}
    for number, (one_offer, at_ns) in enumerate(zip(offers, submit_ns, strict=True)):
        row = bench.model.admit(one_offer.row)
        deadline_ns = at_ns + bench.sla_ns
        requests.append(Request(number, name, at_ns, deadline_ns, row.signature, row.size, trips=row.trips))
        trips[number] = bench.subject.trips(one_offer.row)
    found = paced.simulated_ns(lane, one.policy_for(lane), requests, trips)
    return statistics.fmean(ns for ns in found[int(WARM_UP * len(found)) :] if ns is not None) / 1e6


def row_of(bench: Bench, one: Variant, offers: Sequence[Offer]) -> tuple[dict[str, Any], Sequence[int], Paced]:
    """One run: live, and predicted by the profile; when calls were submitted, and how fast it went."""
    outcome, pace, mean_rows = run(bench, one, offers)
    first = int(WARM_UP * len(offers))
    kept = [ns for ns in outcome.latencies_ns[first:] if ns is not None]
    if not kept:
        raise InvalidInput("a run answered no call at all: give it more --seconds, or less load")
    row = {
        "what": "run",
        "policy": one.title,
        "requests": len(offers),
        "failed": outcome.failed + outcome.refused,
        "pace": pace.ratio,
        "sla_met": sum(ns <= bench.sla_ns for ns in kept) / (len(offers) - first),
        "mean_rows": mean_rows,
        "latencies_ms": [round(ns / 1e6, 3) for ns in kept],
        "predicted_mean_ms": simulated_mean_ms(bench, one, offers, outcome.submit_ns, steady(bench.table)),
        "submit_lag_p99_ms": outcome.lag_p99_ms,
    }
    return row, outcome.submit_ns, pace.seen(outcome.submit_ns, outcome.latencies_ns)


def runs_of(
    bench: Bench, compared: Sequence[Variant], offers: Sequence[Offer], text: str, done: int, total: int
) -> list[dict[str, Any]]:
    """One run per policy, and each simulated at the pace of all of these runs. text, done, total: for the progress."""
    made = []
    for place, one in enumerate(compared):
        progress_bar(done + place, total, f"{one.title} {text}")
        made.append((one, *row_of(bench, one, offers)))
    for one, row, _, own in made:
        row[AT_PACE] = {
            other.title: simulated_mean_ms(bench, one, offers, submit_ns, paced.under(own))
            for other, _, submit_ns, paced in made
        }
    return [row for _, row, _, _ in made]


def offers_at(bench: Bench, rate_rps: float, seconds: float, seed: int) -> list[Offer]:
    """The arrivals and rows of one seed; the same for every policy."""
    arrivals_ns = poisson(rate_rps, max(20, round(rate_rps * seconds)), seed)
    return schedule(bench.model.name, bench.rows, arrivals_ns, seed)


def sustained(bench: Bench, report: Report, chosen: argparse.Namespace, rate_rps: float) -> None:
    """Ours at 1.5 times the largest rate whole batches were run at, against the time they took there.

    rate_rps: theirs, at the first profile's pace.
    """
    sla_ns = round(1e6 * loops_judgement.p99_ms(report.rows, GRAPH, ("graph", max(chosen.load))))
    ours = variants([OURS])[0]
    met, pace = [], report.rows[-1]["pace"]
    for seed in range(1, chosen.seeds + 1):
        progress_bar(seed - 1, chosen.seeds, "sustained rate")
        offers = offers_at(bench, SUSTAINED * rate_rps / pace, chosen.seconds, seed)
        outcome, seen, _ = run(bench, ours, offers, sla_ns)
        pace = seen.ratio
        kept = outcome.latencies_ns[int(WARM_UP * len(offers)) :]
        met.append(sum(ns is not None and ns <= sla_ns for ns in kept) / len(kept))
    report.rows.append({"what": "sustained", "rate_rps": SUSTAINED * rate_rps, "sla_ms": sla_ns / 1e6, "met": met})


def compare(bench: Bench, report: Report, chosen: argparse.Namespace, capacities: Mapping[str, float]) -> None:
    """All policies at all loads, in turns, seed by seed."""
    compared = variants(chosen.policy)
    cells = [("graph", load) for load in chosen.load] + [(CONTINUOUS, load) for load in chosen.load_continuous]
    pace, total = 1.0, chosen.seeds * len(cells) * len(compared)
    for seed in range(1, chosen.seeds + 1):
        if seed > 1:  # the machine may have changed its pace
            bench = replace(bench, table=profiled(bench.model, bench.rows, chosen))
        for place, (load_of, load) in enumerate(cells, start=(seed - 1) * len(cells)):
            rate_rps = load * capacities[load_of] / pace
            offers = offers_at(bench, rate_rps, chosen.seconds, seed)
            cell = {"model": chosen.model, "load_of": load_of, "load": load, "rate_rps": rate_rps, "seed": seed}
            text = f"at {load:g} of {load_of}, seed {seed}"
            found = runs_of(bench, in_turns(compared, seed), offers, text, place * len(compared), total)
            report.rows += [row | cell for row in found]
            pace = statistics.median(row["pace"] for row in found)
        report.save(chosen.json)


def main(chosen: argparse.Namespace) -> int:
    """Measure capacities, serve all loads under all policies in turn, compare, report."""
    check(chosen)
    titles = {one.title for one in variants(chosen.policy)}
    report = Report("bench/loops_live.py", settings=vars(chosen))
    bench = prepare(chosen)
    capacities = {}
    for load_of, title, loads in (("graph", GRAPH, chosen.load), (CONTINUOUS, CONTINUOUS, chosen.load_continuous)):
        if loads:
            progress(f"capacity of {title}")
            capacities[load_of] = capacity_rps(bench, variants([title])[0])
            report.rows.append({"what": "capacity", "policy": title, "rps": capacities[load_of]})
    compare(bench, report, chosen, capacities)
    if chosen.load and {GRAPH, OURS} <= titles:
        sustained(bench, report, chosen, max(chosen.load) * capacities["graph"])
    progress_end()
    loops_judgement.judge(report)
    graph = bench.model.graph
    steps = ", ".join(f"{loop.name} {loop.stop - loop.first} nodes" for loop in graph.loops)
    print(f"{bench.subject.name}: {len(graph)} nodes ({steps}), SLA {bench.sla_ns / 1e6:.0f} ms")
    print("\n".join(loops_judgement.table(report.rows)))
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
