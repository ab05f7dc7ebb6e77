"""Two models on one processor, live: a short one beside a long one, served whole in order of arrival, or split.

Owns: the two ways of serving, the streams, and what the short model gains and the long one pays.
Must not know: how nodes are scheduled.

Both ways use the same engine, runtime and thread pool. "whole" is what servers without node-level scheduling do: each
model is one node, batches form whenever the processor is free, in order of arrival. The long model's largest batch
there is the one that serves the short model best (1) unless --long-batch says otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.common import Report, parser, progress, progress_bar, progress_end, run_script
from bench.live import schedule, serve, warm
from bench.models import LARGE, NAMES, Subject, subject
from bench.variants import variant
from lazybatch.config import whole
from lazybatch.demo.load import Call, Offer
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model
from lazybatch.metrics import latency_summary
from lazybatch.workload import poisson

WHOLE = "whole"
LONG, SHORT = "long", "short"
FASTER, SAME = 5.0, 0.05
"""The short model's p99 must fall by this factor, and both models' throughput stay within this share."""
EPILOG = f"""\
models     {", ".join(NAMES)}, or ONNX files
loads      shares of the processor's time that each model would take by itself; their sum must stay below 1
ways       whole: one node per model, graph batching in order of arrival; against it the split models under --policy

Arrivals are open loop, Poisson, the same for every way; ways take turns seed by seed in one process. Latency runs from
submit to result. The tenth of the calls that come first is not counted.

examples
  python bench/colocation.py --quick
  python bench/colocation.py --seconds 25 --seeds 5 --json out/bench/colocation.json
  python bench/colocation.py --long resnet50 --short ppocr-cls --load-long 0.3

status: 0 the targets are met, 1 one is not, 2 bad input
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way of serving both models. options: of `lazybatch.LazyBatcher`."""

    title: str
    models: Mapping[str, Model]
    options: Mapping[str, Any]


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser((__doc__ or "").split("\n")[0], EPILOG)
    made.add_argument("--long", default=LARGE, metavar="MODEL", help="the long model (%(default)s)")
    made.add_argument("--short", default="ppocr-cls", metavar="MODEL", help="the short model (%(default)s)")
    made.add_argument(
        "--policy", nargs="+", metavar="P", default=["lookahead"], help="for the split models (lookahead)"
    )
    made.add_argument("--load-long", type=float, default=0.45, metavar="L", help="(%(default)s)")
    made.add_argument("--load-short", type=float, default=0.15, metavar="L", help="(%(default)s)")
    made.add_argument("--long-batch", type=int, default=1, metavar="N", help="rows in a batch of the long model (1)")
    made.add_argument("--short-batch", type=int, default=8, metavar="N", help="rows in a batch of the short model (8)")
    made.add_argument("--sla-short-x", type=float, default=20.0, metavar="X", help="target, as multiple of S(1) (20)")
    made.add_argument("--sla-long-x", type=float, default=10.0, metavar="X", help="target, as multiple of S(1) (10)")
    made.add_argument("--seconds", type=float, metavar="S", help="length of a run (30)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each way (4)")
    return made


def check(chosen: argparse.Namespace) -> None:
    """Fill in defaults and refuse what cannot be. Raises `InvalidInput`."""
    chosen.seconds = chosen.seconds or (4.0 if chosen.quick else 30.0)
    chosen.seeds = 2 if chosen.seeds is None and chosen.quick else 4 if chosen.seeds is None else chosen.seeds
    whole("--seeds", chosen.seeds, 1, 1000)
    whole("--long-batch", chosen.long_batch, 1, 4096)
    whole("--short-batch", chosen.short_batch, 1, 4096)
    for name in ("load_long", "load_short", "sla_short_x", "sla_long_x", "seconds"):
        if not 0 < getattr(chosen, name) < 1e6:
            raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {getattr(chosen, name)}")
    if chosen.load_long + chosen.load_short >= 1:
        raise InvalidInput(
            f"loads {chosen.load_long:g} + {chosen.load_short:g} are too much for one processor; keep the sum below 1"
        )


def ways(
    chosen: argparse.Namespace, subjects: Mapping[str, Subject], report: Report
) -> tuple[list[Way], dict[str, float]]:
    """The ways to serve, and per model S(1) in seconds, split; both sides' tables go into the report."""
    batches = {LONG: chosen.long_batch, SHORT: chosen.short_batch}
    split, unsplit, tables = {}, {}, {}
    alone_s: dict[str, float] = {}
    for name, one in subjects.items():
        progress(f"{one.name}: loading and measuring, split and whole")
        split[name], unsplit[name] = one.load(), one.load_whole()
        sizes = sorted({size for size in (1, 2, 4, 8, 16) if size < batches[name]} | {batches[name]})
        budget_s, inputs = 2.0 if chosen.quick else 6.0, one.rows(4)
        tables[name] = lb.profile(split[name], sizes, budget_s=budget_s, inputs=inputs)
        bare = lb.profile(unsplit[name], (1,), budget_s=budget_s / 2, inputs=inputs)
        alone_s[name] = tables[name].dispatched().whole_ns(1) / 1e9
        report.rows.append(
            {
                "what": "model",
                "stream": name,
                "model": one.name,
                "nodes": len(split[name].graph),
                "alone_ms": alone_s[name] * 1e3,
                "whole_ms": bare.whole_ns(1) / 1e6,
                "longest_node_ms": max(times[0] for times in tables[name].median_ns) / 1e6,
            }
        )
    sla = {LONG: chosen.sla_long_x * alone_s[LONG], SHORT: chosen.sla_short_x * alone_s[SHORT]}
    common = {"max_batch_size": batches, "queue_capacity": 4096}
    made = [Way(WHOLE, unsplit, {**common, "policy": "graph"})]
    for title in chosen.policy:
        one_policy = variant(title)
        made.append(Way(one_policy.title, split, {**common, "table": tables, "sla": sla, **one_policy.live()}))
    return made, alone_s


def run(
    way: Way, inputs: Mapping[str, Sequence[Any]], offers: Sequence[Offer], batches: Mapping[str, int]
) -> list[Call]:
    """One run through a batcher of its own, warmed up."""
    with lb.LazyBatcher(way.models, **way.options) as batcher:
        for name, rows in inputs.items():
            warm(batcher, rows, batches[name], name)
        return serve(batcher, offers)


def rows_of(way: str, seed: int, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Per model: latency of the calls after the first tenth, and answers per second until the last of them."""
    start_ns = min(call.submit_ns for call in calls)
    lag = latency_summary([max(0, call.lag_ns) for call in calls]).p99
    made = []
    for name in (SHORT, LONG):
        mine = [call for call in calls if call.offer.model == name]
        kept = mine[len(mine) // 10 :]
        ended = [call.done_ns for call in mine if call.latency_ns is not None and call.done_ns is not None]
        latencies_ns = [call.latency_ns for call in kept if call.latency_ns is not None]
        made.append(
            {
                "what": "run",
                "way": way,
                "seed": seed,
                "stream": name,
                "calls": len(mine),
                "failed": len(mine) - len(ended),
                "answered_rps": len(ended) * 1e9 / (max(ended, default=start_ns + 1) - start_ns),
                **latency_summary(latencies_ns).as_ms(),
                "latencies_ms": [round(ns / 1e6, 3) for ns in latencies_ns],
                "submit_lag_p99_ms": None if lag is None else lag / 1e6,
            }
        )
    return made


def judge(report: Report, titles: Sequence[str]) -> None:
    """Each split way against the whole one: over all seeds together, and seed by seed for the spread."""
    found = [row for row in report.rows if row["what"] == "run"]

    def pooled(way: str, stream: str) -> list[float]:
        return [ms for row in found if (row["way"], row["stream"]) == (way, stream) for ms in row["latencies_ms"]]

    def rate(way: str, stream: str) -> float:
        return statistics.fmean(row["answered_rps"] for row in found if (row["way"], row["stream"]) == (way, stream))

    for title in titles:
        row: dict[str, Any] = {"what": "comparison", "way": title}
        for stream in (SHORT, LONG):
            before, after = (_summary(pooled(way, stream)) for way in (WHOLE, title))
            for key in ("mean", "p50", "p99"):
                row[f"{stream}_{key}_ms"], row[f"{stream}_{key}_whole_ms"] = after[key], before[key]
            row[f"{stream}_throughput_ratio"] = rate(title, stream) / rate(WHOLE, stream)
        row["short_p99_gain"] = row["short_p99_whole_ms"] / row["short_p99_ms"]
        row["short_p99_gain_by_seed"] = _by_seed(found, title)
        row["long_mean_ratio"] = row["long_mean_ms"] / row["long_mean_whole_ms"]
        row["long_p99_ratio"] = row["long_p99_ms"] / row["long_p99_whole_ms"]
        report.rows.append(row)
        report.at_least(f"short_p99_times_lower/{title}", row["short_p99_gain"], FASTER)
        for stream in (SHORT, LONG):
            off = abs(row[f"{stream}_throughput_ratio"] - 1)
            report.at_most(f"{stream}_throughput_off/{title}", off, SAME)
    failed = sum(row["failed"] for row in found)
    report.figure("failed_calls", failed, "0", failed == 0)


def _summary(values_ms: Sequence[float]) -> dict[str, float]:
    made = latency_summary([round(ms * 1e6) for ms in values_ms]).as_ms()
    if made["mean_ms"] is None:
        raise InvalidInput("a run answered no call at all: give it more --seconds, or less load")
    return {key: float(made[f"{key}_ms"] or 0.0) for key in ("mean", "p50", "p99")}


def _by_seed(found: Sequence[dict[str, Any]], title: str) -> list[float]:
    p99 = {(row["way"], row["seed"]): row["p99_ms"] for row in found if row["stream"] == SHORT}
    return [p99[WHOLE, seed] / ms for (way, seed), ms in sorted(p99.items()) if way == title]


def show(report: Report) -> None:
    """Models, then latencies of both ways."""
    for row in report.rows:
        if row["what"] == "model":
            print(
                f"{row['stream']:6} {row['model']:16} {row['nodes']:>3} nodes, one row {row['alone_ms']:.2f} ms split, "
                f"{row['whole_ms']:.2f} ms whole, longest node {row['longest_node_ms']:.2f} ms"
            )
    print(f"{'way':12}{'short mean':>12}{'p50':>9}{'p99 ms':>9}{'long mean':>12}{'p50':>9}{'p99 ms':>9}")
    for row in report.rows:
        if row["what"] != "comparison":
            continue
        for title, suffix in ((WHOLE, "_whole_ms"), (row["way"], "_ms")):
            cells = [
                f"{row[f'{stream}_{key}{suffix}']:.1f}" for stream in (SHORT, LONG) for key in ("mean", "p50", "p99")
            ]
            print(
                f"{title:12}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, (12, 9, 9) * 2, strict=True))
            )
        gains = ", ".join(f"{gain:.1f}" for gain in row["short_p99_gain_by_seed"])
        print(
            f"short p99 {row['short_p99_gain']:.1f} times lower (by seed {gains}), "
            f"long mean {row['long_mean_ratio']:.2f} times"
        )


def main(chosen: argparse.Namespace) -> int:
    """Serve both ways in turn, compare, report."""
    check(chosen)
    subjects = {LONG: subject(chosen.long), SHORT: subject(chosen.short)}
    report = Report("bench/colocation.py", settings=vars(chosen))
    made, alone_s = ways(chosen, subjects, report)
    inputs = {LONG: subjects[LONG].rows(4), SHORT: subjects[SHORT].rows(16)}
    batches = {LONG: chosen.long_batch, SHORT: chosen.short_batch}
    loads = {LONG: chosen.load_long, SHORT: chosen.load_short}
    total = chosen.seeds * len(made)
    for seed in range(1, chosen.seeds + 1):
        offers: list[Offer] = []
        for place, name in enumerate((LONG, SHORT)):
            rate_rps = loads[name] / alone_s[name]
            arrivals_ns = poisson(rate_rps, max(10, round(rate_rps * chosen.seconds)), 1000 * place + seed)
            offers += schedule(name, inputs[name], arrivals_ns, seed)
        shift = seed % len(made)
        for number, way in enumerate(made[shift:] + made[:shift]):
            progress_bar((seed - 1) * len(made) + number, total, f"{way.title}, seed {seed}")
            report.rows += rows_of(way.title, seed, run(way, inputs, offers, batches))
    progress_end()
    judge(report, [way.title for way in made if way.title != WHOLE])
    show(report)
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
