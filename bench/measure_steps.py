"""What one iteration of a loop costs outside of its model, live: engine, scheduler, policy, and the keeping of rows.

Owns: the clock around the model's nodes, the observer that sees steps, and the load they are seen under.
Must not know: how rows are kept, what a model computes.

A step is the time from the end of one node to the end of the next. What of it the model does not need is the overhead:
"engine" from the end of a node to the start of the next one (who leaves, what joins, what to run), "rows" within the
node's run (inputs of the iteration, flags, outputs, states).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import lazybatch as lb
from bench.programs import Looped
from lazybatch.core.task import Task
from lazybatch.lengths import load_lengths
from lazybatch.metrics import Observer, latency_summary

MODEL = "gnmt-tiny"
"""A small one: what does not depend on the model's size shows best beside little work."""
POLICIES = ("graph", "continuous", "lookahead")


class Steps(Observer):
    """Overhead of nodes in full sub-batches that merely go on. full: rows of a full one."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.model_ns = 0
        self.engine_ns: list[int] = []
        self.rows_ns: list[int] = []
        self._last_end_ns: int | None = None

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note what was no model's time."""
        model_ns, self.model_ns = self.model_ns, 0
        if self._last_end_ns is not None and task.rows == self.full and not task.opened:
            self.engine_ns.append(start_ns - self._last_end_ns)
            self.rows_ns.append(end_ns - start_ns - model_ns)
        self._last_end_ns = end_ns

    def watch(self, executor: Any) -> None:
        """Put a clock around every node of every stage."""
        for stage in executor._stages:
            inner = stage.chain._advance

            def advance(state: Any, node: int, inner: Any = inner) -> None:
                start_ns = time.perf_counter_ns()
                try:
                    inner(state, node)
                finally:
                    self.model_ns += time.perf_counter_ns() - start_ns

            stage.chain._advance = advance


def measure_steps(subject: Looped, policy: str, *, rows_max: int, calls: int) -> dict[str, Any]:
    """Three times as many rows as fit into a sub-batch are always there, handed in by one thread."""
    model = subject.load()
    rows = subject.rows(min(calls, 256))
    table = lb.profile(model, batch_sizes=(1, rows_max // 4, rows_max), budget_s=5.0, inputs=rows[:rows_max])
    steps = Steps(rows_max)
    with lb.LazyBatcher(
        model,
        table=table,
        lengths=load_lengths(subject.lengths),
        sla=60.0,
        policy=policy,
        max_batch_size=rows_max,
        queue_capacity=4 * rows_max,
        observers=[steps],
    ) as batcher:
        steps.watch(batcher._executors[next(iter(batcher.models))])
        places = threading.Semaphore(3 * rows_max)
        futures = []
        for call in range(calls):
            places.acquire()
            futures.append(batcher.submit(rows[call % len(rows)]))
            futures[-1].add_done_callback(lambda _: places.release())
        for future in futures:
            future.result()
        stats = batcher.stats()
    engine, kept = latency_summary(steps.engine_ns), latency_summary(steps.rows_ns)
    both = latency_summary([a + b for a, b in zip(steps.engine_ns, steps.rows_ns, strict=True)])
    return {
        "what": "step overhead",
        "model": subject.name,
        "policy": policy,
        "rows": rows_max,
        "steps": both.count,
        "median_us": _us(both.p50),
        "p99_us": _us(both.p99),
        "engine_median_us": _us(engine.p50),
        "rows_median_us": _us(kept.p50),
        "mean_rows": stats.mean_rows,
        "left_early": stats.left_early,
        "merges": stats.merges,
    }


def _us(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e3
