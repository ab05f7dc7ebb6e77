"""How long the scheduler takes per step of a loop: decision and completion together, by policy.

Owns: the run, its timing, and the figures.
Must not know: executors; nothing is executed, steps take no time but the scheduler's own.

    python bench/loop_speed.py --json loop_speed.json        (one minute)

An LSTM decoder of at most 64 rows is offered more than it can serve, so that the loop is full, rows leave and others
come in at almost every step, and somebody always waits. Steps of at least 48 rows count. A target that about half of
all rows miss makes every decision look at deadlines; one that all make must not cost more. The thread's own processor
time is measured, so that a busy machine disturbs less; caches and clock rates still differ there.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import thread_time_ns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, parser, progress, run_script
from bench.loop_models import MODELS, LoopModel
from bench.loop_runs import capacity_rps
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.executors.simulated_loops import TripCounter
from lazybatch.policies import make_policy
from lazybatch.workload import poisson

POLICIES = ("graph", "continuous", "cellular", "lazy", "oracle", "lookahead")
TARGETS_MS = (None, 2500.0, 60_000.0)
MEDIAN_LIMIT_US, P99_LIMIT_US = 60.0, 200.0
JUDGED = ("lookahead", "continuous", "graph")
ROWS_LEAST = 48


def steps_us(model: LoopModel, policy: str, requests: Sequence[Request], seed: int) -> list[float]:
    """The scheduler's own time of every step of a full loop, in microseconds."""
    spec = model.spec()
    scheduler = Scheduler([spec], make_policy(policy, [spec]))
    counter = TripCounter([spec.graph], requests, model.trips(len(requests), seed))
    times_ns = scheduler.lanes[0].times_ns
    assert times_ns is not None, "the model has a table"
    found: list[float] = []
    arrived, now = 0, requests[0].arrival_ns
    gc.collect()
    gc.disable()
    try:
        while arrived < len(requests):
            while arrived < len(requests) and requests[arrived].arrival_ns <= now:
                scheduler.add(requests[arrived])
                arrived += 1
            begin_ns = thread_time_ns()
            task = scheduler.schedule(now)
            decided_ns = thread_time_ns() - begin_ns
            if task is None:
                now = requests[arrived].arrival_ns if arrived < len(requests) else now
                continue
            if task.opened:
                counter.opened(task)
            now += times_ns[task.node][task.padded_rows]
            done = counter.ran(task)
            begin_ns = thread_time_ns()
            completion = scheduler.complete(task, now, done)
            took_ns = decided_ns + thread_time_ns() - begin_ns
            counter.settled(task, completion)
            if task.rows >= ROWS_LEAST and task.node == 1:
                found.append(took_ns / 1e3)
    finally:
        gc.enable()
    return found


def main(chosen: argparse.Namespace) -> int:
    """Time every policy with and without deadlines; report."""
    report = Report("bench/loop_speed.py", settings={"rows_least": ROWS_LEAST})
    model, count = MODELS[0], 1_500 if chosen.quick else 6_000
    rate = 1.3 * capacity_rps(model, "continuous", 2_000)
    for target_ms in TARGETS_MS:
        sla_ns = None if target_ms is None else round(target_ms * 1e6)
        requests = model.requests(poisson(rate, count, 1), 1, sla_ns)
        for policy in POLICIES if target_ms is None or target_ms < 1e4 else ("lazy", "lookahead"):
            progress(f"{policy}, target {target_ms}")
            found = sorted(steps_us(model, policy, requests, 1))
            median, p99 = statistics.median(found), found[int(0.99 * len(found))]
            row = {"policy": policy, "target_ms": target_ms, "median_us": median, "p99_us": p99, "steps": len(found)}
            report.rows.append({"what": "step", **row})
            name = f"{policy}/{'no target' if target_ms is None else f'target of {target_ms:g} ms'}"
            if policy in JUDGED:
                report.at_most(f"step_median/{name}", median, MEDIAN_LIMIT_US, " us")
                report.at_most(f"step_p99/{name}", p99, P99_LIMIT_US, " us")
            else:
                report.figure(f"step_median/{name}", median, "none", None)
                report.figure(f"step_p99/{name}", p99, "none", None)
    return report.finish(chosen.json)


def options() -> argparse.ArgumentParser:
    """The command line."""
    return parser("The scheduler's own time per step of a loop.", "Processor time of the thread.")


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
