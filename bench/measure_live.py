"""What the live engine adds between two nodes, under load, and what of it the policy takes to decide.

Owns: the observer that sees gaps, and the load it sees them under.
Must not know: how nodes run.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from typing import Any

import lazybatch as lb
from bench.measure_core import Timed
from bench.models import Subject
from lazybatch.core.lane import LaneSpec
from lazybatch.core.task import Task
from lazybatch.metrics import Observer, latency_summary
from lazybatch.policies import make_policy

ROWS_MAX = 8


class Gaps(Observer):
    """Times between the end of one node and the start of the next, apart for nodes of one sub-batch and changes."""

    def __init__(self) -> None:
        self.within_ns: list[int] = []
        self.between_ns: list[int] = []
        self._last: tuple[int, int] | None = None

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note the gap before this node."""
        if self._last is not None:
            last_end_ns, last_sub_batch = self._last
            same = task.sub_batch == last_sub_batch and not task.opened
            (self.within_ns if same else self.between_ns).append(start_ns - last_end_ns)
        self._last = (end_ns, task.sub_batch)

    def clear(self) -> None:
        """Forget the warm-up."""
        self.within_ns.clear()
        self.between_ns.clear()


def measure_gaps(subject: Subject, policy: str, *, clients: int, calls: int) -> dict[str, Any]:
    """Closed loop: each client submits its next row when it has the answer to the last."""
    model = subject.load()
    rows = subject.rows(8)
    table = lb.profile(model, batch_sizes=(1, 2, 4, ROWS_MAX), budget_s=5.0, inputs=rows)
    gaps, timed = Gaps(), Timed(make_policy(policy, [LaneSpec(model.graph, table, ROWS_MAX)]))
    turn = itertools.cycle(rows)
    with lb.LazyBatcher(
        model,
        table=table,
        sla=1.0,
        policy=timed,
        max_batch_size=ROWS_MAX,
        queue_capacity=max(64, clients),
        observers=[gaps],
    ) as batcher:
        for row in rows:
            batcher.predict(row)
        gaps.clear()
        timed.clear()

        def client() -> None:
            for _ in range(calls):
                batcher.predict(next(turn))

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = batcher.stats()
    everything = latency_summary(gaps.within_ns + gaps.between_ns)
    within, between = latency_summary(gaps.within_ns), latency_summary(gaps.between_ns)
    return {
        "what": "live gap",
        "model": subject.name,
        "policy": policy,
        "clients": clients,
        "dispatches": everything.count,
        "median_us": _us(everything.p50),
        "p99_us": _us(everything.p99),
        "within_sub_batch_median_us": _us(within.p50),
        "between_sub_batches_median_us": _us(between.p50),
        "decision_median_us": statistics.median(timed.all_ns) / 1e3 if timed.all_ns else None,
        "fresh_decision_median_us": statistics.median(timed.fresh_ns) / 1e3 if timed.fresh_ns else None,
        "mean_rows": stats.mean_rows,
        "preemptions": stats.preemptions,
        "merges": stats.merges,
    }


def _us(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e3
