"""Watching a run: hooks that both drivers call, and what is usually wanted from them.

Owns: `Observer` (the hooks), `Observers` (the fan-out a driver calls), `Outcome`, `Histogram`, `Summary`, `Meter`
(counts and distributions per model: what `stats()`, the simulator and the benchmarks report).
Must not know: the scheduler, the clock, threads, executors, tensors. The core never sees this module.

All times are integer nanoseconds on the driver's clock (monotonic in the engine, virtual in the simulator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Task
from lazybatch.errors import InvalidInput


class Outcome(StrEnum):
    """How a request ended. Every request that arrived ends in exactly one of these."""

    COMPLETED = "completed"
    """It has a result (also when it came after the deadline)."""
    FAILED = "failed"
    """A node or the callable raised for this row."""
    CANCELLED = "cancelled"
    """The caller withdrew it, or shutdown did."""
    EXPIRED = "expired"
    """Its time limit, or the queue timeout of its priority level, passed first."""
    REJECTED = "rejected"
    """The queue was full: it was never admitted."""


class Observer:
    """Base class of everything that watches a run; override the hooks you need.

    Contract. Hooks run on the driver's thread, between two nodes, one at a time: they need no lock and must be quick
    (microseconds; put I/O behind a buffer), because every request in flight waits for them. A hook must not call
    back into the driver. An exception in a hook is counted by `Observers` and stops neither the other observers nor
    the run. Arguments are immutable and may be kept.

    Order for one request: `arrived`, then `opened` (in ``task.opened``), any number of `dispatched`, then `exited`.
    A request that ends in the queue is never opened. A rejected one is reported by `exited` alone. A request whose
    batch failed and which is run again alone is opened a second time.
    """

    def arrived(self, now_ns: int, request: Request) -> None:
        """A request was admitted to the queue. ``request.arrival_ns`` is when its caller submitted it (<= now)."""

    def opened(self, now_ns: int, task: Task) -> None:
        """A sub-batch begins with the requests ``task.opened``; its first node is about to run."""

    def preempted(self, now_ns: int, task: Task) -> None:
        """Sub-batch ``task.preempted`` was parked for ``task.sub_batch``, for the reason ``task.reason``."""

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """One node ran on one sub-batch from start to end; called after it ended. ``failed``: it raised."""

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Two sub-batches standing at the same node became one: ``merge.source`` lives on in ``merge.target``."""

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """A request ended. ``first_dispatch_ns``: when its first node started, None if it never left the queue."""


class Observers:
    """The fan-out a driver calls: the same hooks, passed on to those observers that override them.

    ``errors`` counts exceptions raised by hooks, ``last_error`` keeps the latest of them; neither stops the run.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers: tuple[Observer, ...] = ()
        self.errors = 0
        self.last_error: Exception | None = None
        self._bind(tuple(observers))

    def _bind(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self._arrived = _overridden(observers, "arrived")
        self._opened = _overridden(observers, "opened")
        self._preempted = _overridden(observers, "preempted")
        self._dispatched = _overridden(observers, "dispatched")
        self._merged = _overridden(observers, "merged")
        self._exited = _overridden(observers, "exited")

    def add(self, observer: Observer) -> None:
        """Attach one more observer; call it from the driver's thread or before the run."""
        self._bind((*self._observers, observer))

    def remove(self, observer: Observer) -> None:
        """Detach an observer; one that is not attached is ignored."""
        self._bind(tuple(one for one in self._observers if one is not observer))

    def __len__(self) -> int:
        return len(self._observers)

    def _call(self, hooks: Sequence[Callable[..., None]], *arguments: Any) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except Exception as error:
                self.errors += 1
                self.last_error = error

    def arrived(self, now_ns: int, request: Request) -> None:
        """See `Observer.arrived`."""
        self._call(self._arrived, now_ns, request)

    def opened(self, now_ns: int, task: Task) -> None:
        """See `Observer.opened`."""
        self._call(self._opened, now_ns, task)

    def preempted(self, now_ns: int, task: Task) -> None:
        """See `Observer.preempted`."""
        self._call(self._preempted, now_ns, task)

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`."""
        self._call(self._dispatched, start_ns, end_ns, task, failed)

    def merged(self, now_ns: int, merge: Merge) -> None:
        """See `Observer.merged`."""
        self._call(self._merged, now_ns, merge)

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """See `Observer.exited`."""
        self._call(self._exited, now_ns, request, outcome, first_dispatch_ns)


def _overridden(observers: Iterable[Observer], hook: str) -> tuple[Callable[..., None], ...]:
    return tuple(getattr(one, hook) for one in observers if getattr(type(one), hook) is not getattr(Observer, hook))


_SUB_BITS = 5


def _middle(bucket: int) -> int:
    """The middle of a bucket: at most 1/64 (1.6 %) away from any value in it."""
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS)) << shift) + ((1 << shift) >> 1)


class Histogram:
    """Distribution of non-negative whole numbers in bounded memory: at most about 2,000 counters, whatever comes.

    Quantiles are within 1.6 % of a value that was recorded at that rank (32 buckets per power of two; exact below
    64); count, mean, smallest and largest are exact. Two histograms add up without loss.
    """

    __slots__ = ("_buckets", "count", "high", "low", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.low: int | None = None
        self.high: int | None = None

    def record(self, value: int, times: int = 1) -> None:
        """Count a value. Raises `InvalidInput` for a negative one."""
        if value < 0:
            raise InvalidInput(f"a histogram counts non-negative numbers, got {value}")
        # 32 equal steps per power of two; each value below 64 has a bucket of its own.
        shift = value.bit_length() - _SUB_BITS - 1
        bucket = (shift << _SUB_BITS) + (value >> shift) if shift > 0 else value
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        if self.low is None or value < self.low:
            self.low = value
        if self.high is None or value > self.high:
            self.high = value

    def merge(self, other: Histogram) -> None:
        """Add all that ``other`` has counted."""
        for bucket, times in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += other.count
        self.total += other.total
        self.low = min((low for low in (self.low, other.low) if low is not None), default=None)
        self.high = max((high for high in (self.high, other.high) if high is not None), default=None)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None while empty."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> int | None:
        """The value at rank ceil(share * count), e.g. 0.99 for p99; None while empty."""
        if not 0.0 <= share <= 1.0:
            raise InvalidInput(f"a quantile lies between 0 and 1, got {share}")
        if self.low is None or self.high is None:
            return None
        rank = max(1, _ceil(share * self.count))
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return min(max(_middle(bucket), self.low), self.high)
        return self.high

    def summary(self) -> Summary:
        """A frozen summary of what has been counted so far."""
        p50, p95, p99 = (self.quantile(share) for share in (0.50, 0.95, 0.99))
        return Summary(self.count, self.mean, p50, p95, p99, self.low, self.high)


def _ceil(value: float) -> int:
    # 0.99 * 100 is 99.00000000000001 in floating point: the rank wanted is 99, so forgive a relative 1e-9.
    return -int(-(value - 1e-9 * max(1.0, value)) // 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in seven numbers, in the unit of what was recorded; all but ``count`` are None when empty."""

    count: int = 0
    mean: float | None = None
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    low: int | None = None
    high: int | None = None

    def as_ms(self) -> dict[str, float | None]:
        """Nanoseconds as JSON values in milliseconds: mean_ms, p50_ms, p95_ms, p99_ms, max_ms."""
        named = {"mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.high}
        return {f"{name}_ms": None if value is None else value / 1e6 for name, value in named.items()}


def latency_summary(values_ns: Iterable[int]) -> Summary:
    """The exact summary of a list of durations (nearest-rank quantiles); use it where all values are at hand."""
    ordered = sorted(values_ns)
    if not ordered:
        return Summary()
    count = len(ordered)
    p50, p95, p99 = (ordered[max(1, _ceil(share * count)) - 1] for share in (0.50, 0.95, 0.99))
    return Summary(count, sum(ordered) / count, p50, p95, p99, ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One model's figures so far; immutable. Distributions are in nanoseconds.

    outcomes: finished requests by outcome. violations: completed requests whose result came after their deadline.
    latency: submit to result, completed requests only; queue_wait: submit to first node, of all that started;
    service: first node to end, completed requests only.
    preemptions: sub-batches of any model parked for one of this model.
    dispatches: nodes run; mean_rows: rows per dispatch; busy_ns: time spent inside nodes.
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
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    reasons: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    queue_wait: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)

    def add(self, other: _Counters) -> None:
        """Count all that ``other`` has counted as well."""
        numbers = ("arrived", "violations", "dispatches", "failed_dispatches", "rows", "busy_ns", "sub_batches")
        for name in (*numbers, "preemptions", "merges"):
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

    def of(self, model: str) -> ModelStats:
        """The snapshot of one model; all zero and empty where nothing has been seen of it."""
        return self._models.get(model, _Counters()).freeze()

    def total(self) -> ModelStats:
        """The snapshot of all models together."""
        total = _Counters()
        for counters in self._models.values():
            total.add(counters)
        return total.freeze()

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
        """Count a sub-batch."""
        if not self._warming_up(now_ns):
            self._counters(task.model).sub_batches += 1

    def preempted(self, now_ns: int, task: Task) -> None:
        """Count a preemption."""
        if not self._warming_up(now_ns):
            self._counters(task.model).preemptions += 1

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Count a merge."""
        if not self._warming_up(now_ns):
            self._counters(merge.model).merges += 1

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
