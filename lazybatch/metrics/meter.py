"""Counts and distributions per model: what `stats()`, the simulator and the benchmarks report.

Owns: `Meter` and its snapshots, `ModelStats`.
Must not know: the scheduler, the clock, threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Task
from lazybatch.metrics.histogram import Histogram, Summary
from lazybatch.metrics.observer import Observer, Outcome


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One model's figures so far; immutable. Distributions are in nanoseconds.

    outcomes: finished requests by outcome. violations: completed requests whose result came after their deadline.
    latency: submit to result, completed requests only; queue_wait: submit to first node, of all that started;
    service: first node to end, completed requests only.
    preemptions: sub-batches of any model parked for one of this model.
    dispatches: nodes run; mean_rows: rows per dispatch; busy_ns: time spent inside nodes (simulated: the engine's too).
    steps: runs of a whole loop body; iterations: rows in them, summed. left_early: rows that left a loop while others
    of their sub-batch stayed; truncated: rows that a loop's maximum ended.
    reasons: dispatches by `Reason`. Keys are plain text.
    """

    arrived: int
    outcomes: MappingProxyType[str, int]
    violations: int
    latency: Summary
    queue_wait: Summary
    service: Summary
    dispatches: int
    failed_dispatches: int
    mean_rows: float | None
    busy_ns: int
    sub_batches: int
    preemptions: int
    merges: int
    steps: int
    iterations: int
    left_early: int
    truncated: int
    reasons: MappingProxyType[str, int]


@dataclass(slots=True)
class _Counters:
    arrived: int = 0
    violations: int = 0
    dispatches: int = 0
    failed_dispatches: int = 0
    rows: int = 0
    busy_ns: int = 0
    sub_batches: int = 0
    preemptions: int = 0
    merges: int = 0
    steps: int = 0
    iterations: int = 0
    left_early: int = 0
    truncated: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    reasons: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    queue_wait: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)

    def add(self, other: _Counters) -> None:
        """Count all that ``other`` has counted as well."""
        numbers = ("arrived", "violations", "dispatches", "failed_dispatches", "rows", "busy_ns", "sub_batches")
        loops = ("steps", "iterations", "left_early", "truncated")
        for name in (*numbers, "preemptions", "merges", *loops):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] += count
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        for name in ("latency", "queue_wait", "service"):
            getattr(self, name).merge(getattr(other, name))

    def freeze(self) -> ModelStats:
        """A snapshot."""
        return ModelStats(
            arrived=self.arrived,
            outcomes=MappingProxyType({outcome.value: count for outcome, count in self.outcomes.items()}),
            violations=self.violations,
            latency=self.latency.summary(),
            queue_wait=self.queue_wait.summary(),
            service=self.service.summary(),
            dispatches=self.dispatches,
            failed_dispatches=self.failed_dispatches,
            mean_rows=self.rows / self.dispatches if self.dispatches else None,
            busy_ns=self.busy_ns,
            sub_batches=self.sub_batches,
            preemptions=self.preemptions,
            merges=self.merges,
            steps=self.steps,
            iterations=self.iterations,
            left_early=self.left_early,
            truncated=self.truncated,
            reasons=MappingProxyType(dict(self.reasons)),
        )


class Meter(Observer):
    """Counts and distributions per model, in bounded memory.

    ``since_ns``: requests that arrived earlier (warm-up) count in no outcome and no distribution of requests; nodes
    that started earlier count in no dispatch figure.
    Not locked: take `stats` on the driver's thread (the engine does so between two nodes), or after the run.
    """

    def __init__(self, since_ns: int | None = None) -> None:
        self._since_ns = since_ns
        self._models: dict[str, _Counters] = {}

    def stats(self) -> dict[str, ModelStats]:
        """A snapshot per model that has been seen."""
        return {model: counters.freeze() for model, counters in self._models.items()}

    def of(self, *models: str) -> ModelStats:
        """The snapshot of one model, or of several together; all zero and empty where nothing has been seen of them."""
        total = _Counters()
        for model in models:
            if model in self._models:
                total.add(self._models[model])
        return total.freeze()

    def total(self) -> ModelStats:
        """The snapshot of all models together."""
        return self.of(*self._models)

    def _counters(self, model: str) -> _Counters:
        counters = self._models.get(model)
        if counters is None:
            counters = self._models[model] = _Counters()
        return counters

    def _warming_up(self, at_ns: int) -> bool:
        return self._since_ns is not None and at_ns < self._since_ns

    def arrived(self, now_ns: int, request: Request) -> None:
        """Count an admitted request."""
        if not self._warming_up(request.arrival_ns):
            self._counters(request.model).arrived += 1

    def opened(self, now_ns: int, task: Task) -> None:
        """Count a sub-batch, and a merge where it joins another one at once."""
        if not self._warming_up(now_ns):
            counters = self._counters(task.model)
            counters.sub_batches += 1
            counters.merges += task.joined is not None

    def preempted(self, now_ns: int, task: Task) -> None:
        """Count a preemption."""
        if not self._warming_up(now_ns):
            self._counters(task.model).preemptions += 1

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Count a merge."""
        if not self._warming_up(now_ns):
            self._counters(merge.model).merges += 1

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """Count an iteration, and who left."""
        if self._warming_up(now_ns):
            return
        counters = self._counters(task.model)
        counters.steps += 1
        counters.iterations += task.rows
        counters.truncated += len(completion.truncated)
        if completion.split is not None:
            counters.left_early += len(completion.split.requests)
        elif len(completion.finished) + len(completion.evicted) < task.rows:
            counters.left_early += len(completion.finished)

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Count a node run: its rows, its time, its reason."""
        if self._warming_up(start_ns):
            return
        counters = self._counters(task.model)
        counters.dispatches += 1
        counters.failed_dispatches += failed
        counters.rows += task.rows
        counters.busy_ns += end_ns - start_ns
        reason = task.reason.value
        counters.reasons[reason] = counters.reasons.get(reason, 0) + 1

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Count an outcome and, where there is one, the request's times."""
        arrival_ns = request.arrival_ns
        if self._warming_up(arrival_ns):
            return
        counters = self._counters(request.model)
        counters.outcomes[outcome] += 1
        if first_dispatch_ns is not None:
            counters.queue_wait.record(max(0, first_dispatch_ns - arrival_ns))
        if outcome is Outcome.COMPLETED:
            counters.latency.record(max(0, now_ns - arrival_ns))
            counters.violations += now_ns > request.deadline_ns
            if first_dispatch_ns is not None:
                counters.service.record(max(0, now_ns - first_dispatch_ns))
