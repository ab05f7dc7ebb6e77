"""One model under load: clients in a closed loop, or arrivals in an open loop, under each policy in turn.

Owns: offering the load and counting what came of it.
Must not know: how batches are formed.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.common import Report, parser, progress, run_script
from bench.live import schedule, serve, warm
from bench.models import NAMES, Batch, Subject, subject
from lazybatch.errors import ExecutionError, InvalidInput, Overloaded
from lazybatch.executors.ort.session import open_session
from lazybatch.metrics import latency_summary
from lazybatch.workload import poisson

POLICIES = ("serial", "graph", "lazy")

EPILOG = f"""\
models     {", ".join(NAMES)}, or an ONNX file whose dimensions other than the batch are fixed
closed     each of --clients sends its next call when the last has been answered; no model of independent arrivals,
           and no overload: a slow server is simply asked less. The policy "direct" calls the whole model instead.
open       Poisson arrivals at --load times the capacity in the model's latency table (or --rate per second), whether
           or not the server keeps up. Latencies are unbounded above load 1, and rejections begin.

Latency runs from the call of submit to the result, and so includes copying, waiting and running; percentiles count
successful calls only and mean nothing without the counts of errors and rejections beside them. Loading, profiling and
warm-up are excluded. Calls/s and rows/s differ where a call has several rows.

examples
  python bench/load.py --quick
  python bench/load.py mobilenetv2 --mode open --load 0.3 0.7 0.95 --seconds 20 --json out/bench/load.json
  python bench/load.py ppocr-rec --mode closed --clients 8 --rows-per-call 4 --max-delay-ms 0 1 5

status: 0 all accepted calls were answered, 1 some were not, 2 bad input
"""


@dataclass(slots=True)
class Tally:
    """What came of a run's calls. latencies_ns: of successful calls."""

    wall_s: float = 0.0
    attempted: int = 0
    errors: int = 0
    rejections: int = 0
    exceptions: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    lags_ns: list[int] = field(default_factory=list)

    def row(self, rows_per_call: int) -> dict[str, Any]:
        """The figures of this run."""
        summary = latency_summary(self.latencies_ns).as_ms()
        done = len(self.latencies_ns)
        lag = latency_summary(self.lags_ns).p99
        return {
            "wall_s": self.wall_s,
            "attempted": self.attempted,
            "successful": done,
            "errors": self.errors,
            "rejections": self.rejections,
            "exceptions": self.exceptions,
            "calls_per_s": done / self.wall_s,
            "rows_per_s": done * rows_per_call / self.wall_s,
            **{key: summary[key] for key in ("mean_ms", "p50_ms", "p95_ms", "p99_ms")},
            "submit_lag_p99_ms": None if lag is None else lag / 1e6,
        }


def closed_loop(call: Callable[[list[Batch]], object], rows: Sequence[Batch], plan: argparse.Namespace) -> Tally:
    """All clients start together; each makes --calls calls of --rows-per-call rows, one after the other."""
    tally, lock = Tally(), threading.Lock()
    barrier = threading.Barrier(plan.clients + 1)

    def client(number: int) -> None:
        rng = random.Random(plan.seed * 1_000_003 + number)
        mine = Tally()
        barrier.wait()
        for _ in range(plan.calls):
            chosen = [rng.choice(rows) for _ in range(plan.rows_per_call)]
            start_ns = time.perf_counter_ns()
            try:
                call(chosen)
            except Overloaded:
                mine.rejections += 1
            except ExecutionError:
                mine.errors += 1
            except Exception:
                mine.exceptions += 1
            else:
                mine.latencies_ns.append(time.perf_counter_ns() - start_ns)
        with lock:
            tally.attempted += plan.calls
            tally.errors += mine.errors
            tally.rejections += mine.rejections
            tally.exceptions += mine.exceptions
            tally.latencies_ns += mine.latencies_ns

    threads = [threading.Thread(target=client, args=(number,)) for number in range(plan.clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start_s = time.perf_counter()
    for thread in threads:
        thread.join()
    tally.wall_s = time.perf_counter() - start_s
    return tally


def open_loop(batcher: lb.LazyBatcher, model: str, rows: Sequence[Batch], rate_rps: float, plan: Any) -> Tally:
    """Poisson arrivals of single rows for --seconds."""
    arrivals_ns = poisson(rate_rps, max(1, round(rate_rps * plan.seconds)), plan.seed)
    offers = schedule(model, rows, arrivals_ns, plan.seed)
    start_s = time.perf_counter()
    calls = serve(batcher, offers)
    tally = Tally(wall_s=time.perf_counter() - start_s, attempted=len(calls))
    for call in calls:
        tally.lags_ns.append(max(0, call.lag_ns))
        if call.latency_ns is not None:
            tally.latencies_ns.append(call.latency_ns)
        elif call.rejected:
            tally.rejections += 1
        elif isinstance(call.error, ExecutionError):
            tally.errors += 1
        else:
            tally.exceptions += 1
    return tally


def counters(batcher: lb.LazyBatcher, before: Any) -> dict[str, Any]:
    """The batcher's own counts since ``before``: rows, except batches and dispatches."""
    now = batcher.stats()
    fields = ("accepted", "completed", "failed", "batches", "dispatches", "preemptions", "merges")
    counted: dict[str, Any] = {name: getattr(now, name) - getattr(before, name) for name in fields}
    counted["rejected"] = sum(now.rejected.values()) - sum(before.rejected.values())
    counted["mean_rows_per_batch"] = counted["completed"] / counted["batches"] if counted["batches"] else None
    counted["reasons"] = {
        reason: count - before.reasons.get(reason, 0)
        for reason, count in now.reasons.items()
        if count > before.reasons.get(reason, 0)
    }
    return counted


def variants(chosen: argparse.Namespace) -> list[tuple[str, float]]:
    """(policy, window in ms); a window belongs to graph batching only."""
    made: list[tuple[str, float]] = []
    for policy in chosen.policy:
        made += [(policy, delay) for delay in chosen.max_delay_ms] if policy == "graph" else [(policy, 0.0)]
    return made


def direct(target: Subject) -> Callable[[list[Batch]], object]:
    """The baseline of a closed loop: every call runs the whole model on its own rows."""
    session = open_session(target.path, optimise=True)
    names = [value.name for value in session.get_outputs()]
    return lambda rows: session.run(names, {key: np.stack([row[key] for row in rows]) for key in rows[0]})


def runs(target: Subject, chosen: argparse.Namespace, table: lb.LatencyTable, model: Any) -> list[dict[str, Any]]:
    """One row per variant and load, interleaved: every load under each variant before the next load."""
    rows = target.rows(32, chosen.seed)
    taken = table.dispatched()
    best = taken.best_rows(min(chosen.max_batch_size, table.batch_sizes[-1])) if model.joinable else 1
    capacity_rps = best * 1e9 / taken.whole_ns(best)
    loads = [None] if chosen.mode == "closed" else chosen.rate or [load * capacity_rps for load in chosen.load]
    measured = []
    for rate_rps in loads:
        for policy, delay_ms in variants(chosen):
            progress(f"{target.name}: {policy} {delay_ms:g} ms, " + (f"{rate_rps:.1f}/s" if rate_rps else "closed"))
            head = {
                "model": target.name,
                "mode": chosen.mode,
                "policy": policy,
                "max_delay_ms": delay_ms if policy == "graph" else None,
                "clients": chosen.clients if rate_rps is None else None,
                "rows_per_call": chosen.rows_per_call if rate_rps is None else 1,
                "rate_rps": rate_rps,
                "load": None if rate_rps is None else rate_rps / capacity_rps,
                "capacity_rps": capacity_rps,
            }
            if policy == "direct":
                call = direct(target)
                call(rows[:1])
                measured.append({**head, **closed_loop(call, rows, chosen).row(chosen.rows_per_call)})
                continue
            measured.append({**head, **_served(policy, delay_ms, rate_rps, rows, chosen, table, model)})
    return measured


def _served(
    policy: str, delay_ms: float, rate_rps: float | None, rows: list[Batch], chosen: Any, table: Any, model: Any
) -> dict[str, Any]:
    """One run through a batcher of its own."""
    with lb.LazyBatcher(
        model,
        table=table,
        sla=chosen.sla_ms / 1e3,
        policy=policy,
        max_batch_size=chosen.max_batch_size,
        max_delay=delay_ms / 1e3 if policy == "graph" else 0.0,
        queue_capacity=chosen.queue_capacity,
    ) as batcher:
        warm(batcher, rows, chosen.max_batch_size)
        before = batcher.stats()
        if rate_rps is None:
            tally, per_call = closed_loop(batcher.predict_batch, rows, chosen), chosen.rows_per_call
        else:
            tally, per_call = open_loop(batcher, model.name, rows, rate_rps, chosen), 1
        return {**tally.row(per_call), "counters": counters(batcher, before)}


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser((__doc__ or "").split("\n")[0], EPILOG)
    made.add_argument("model", nargs="?", default="ppocr-rec", help="name or ONNX file (default ppocr-rec)")
    made.add_argument("--mode", choices=("closed", "open"), default="open")
    made.add_argument("--policy", nargs="+", choices=(*POLICIES, "direct"), default=list(POLICIES))
    made.add_argument("--max-delay-ms", nargs="+", type=float, default=[0.0, 5.0], help="windows of graph batching")
    made.add_argument("--clients", type=int, default=8, help="closed: clients (default 8)")
    made.add_argument("--calls", type=int, default=50, help="closed: calls of each client (default 50)")
    made.add_argument("--rows-per-call", type=int, default=1, help="closed: rows in a call (default 1)")
    made.add_argument("--load", nargs="+", type=float, default=[0.3, 0.7, 0.95], help="open: shares of capacity")
    made.add_argument("--rate", nargs="+", type=float, metavar="RPS", help="open: arrivals per second, not --load")
    made.add_argument("--seconds", type=float, default=20.0, help="open: length of a run (default 20)")
    made.add_argument("--max-batch-size", type=int, default=8)
    made.add_argument("--queue-capacity", type=int, default=256, help="waiting rows (default 256)")
    made.add_argument("--sla-ms", type=float, default=500.0, help="target that lazy keeps (default 500)")
    made.add_argument("--seed", type=int, default=0)
    return made


def check(chosen: argparse.Namespace) -> None:
    """Refuse options that cannot be. Raises `InvalidInput`."""
    for name in ("clients", "calls", "rows_per_call", "seconds", "max_batch_size", "queue_capacity", "sla_ms"):
        if not getattr(chosen, name) > 0:
            raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {getattr(chosen, name)}")
    for name in ("load", "rate"):
        if any(not value > 0 for value in getattr(chosen, name) or ()):
            raise InvalidInput(f"--{name} must be positive, got {getattr(chosen, name)}")
    if chosen.mode == "open" and "direct" in chosen.policy:
        raise InvalidInput("--policy direct has no queue to offer arrivals to; use it with --mode closed")


def main(chosen: argparse.Namespace) -> int:
    """Profile, run every variant, report."""
    check(chosen)
    if chosen.quick:
        chosen.seconds, chosen.calls, chosen.load = min(chosen.seconds, 2.0), min(chosen.calls, 10), [0.3, 0.8]
    target = subject(chosen.model)
    model = target.load()
    progress(f"{target.name}: profiling")
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= chosen.max_batch_size]
    table = lb.profile(model, batch_sizes=sizes, budget_s=3.0 if chosen.quick else 20.0, inputs=target.rows(8))
    report = Report("bench/load.py", settings=vars(chosen))
    report.rows = runs(target, chosen, table, model)
    progress("")
    show(report.rows)
    answered = all(row["errors"] == 0 and row["exceptions"] == 0 for row in report.rows)
    report.figure("every_accepted_call_answered", answered, "True", answered)
    return report.finish(chosen.json)


def show(rows: list[dict[str, Any]]) -> None:
    """A table of what was measured."""
    titles = "".join(f"{title:>9}" for title in ("rows/s", "p50 ms", "p95 ms", "p99 ms"))
    print(f"{'policy':12}{'load':>8}{'ok':>7}{'err':>5}{'rej':>6}{titles}{'rows':>7}")
    for row in rows:
        name = row["policy"] + (f" {row['max_delay_ms']:g} ms" if row["max_delay_ms"] is not None else "")
        load = f"{row['load']:.2f}" if row["load"] is not None else f"{row['clients']} cl"
        mean = (row.get("counters") or {}).get("mean_rows_per_batch")
        cells = [row["p50_ms"], row["p95_ms"], row["p99_ms"]]
        shown = "".join(f"{'-' if value is None else format(value, '.1f'):>9}" for value in cells)
        failed = row["errors"] + row["exceptions"]
        rows_mean = "-" if mean is None else f"{mean:.2f}"
        print(
            f"{name:12}{load:>8}{row['successful']:>7}{failed:>5}{row['rejections']:>6}"
            f"{row['rows_per_s']:>9.1f}{shown}{rows_mean:>7}"
        )


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
