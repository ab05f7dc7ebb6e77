"""Observers, histograms and the meter."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Reason, Split, Task
from lazybatch.errors import InvalidInput
from lazybatch.metrics import Histogram, Meter, Observer, Observers, Outcome, Summary, latency_summary


def task(*, sub_batch: int = 1, rows: int = 2, opened: tuple[int, ...] = (), preempted: int | None = None) -> Task:
    """A task of model "m" at node 0."""
    return Task("m", sub_batch, 0, rows, rows, opened, preempted, Reason.START_IDLE)


def exact(values: list[int], share: float) -> int:
    """Nearest-rank quantile by definition."""
    return sorted(values)[max(1, math.ceil(round(share * len(values), 9))) - 1]


class TestHistogram:
    """Histogram: accuracy, bounds, merging."""

    @given(st.lists(st.integers(0, 1 << 62), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
    def test_quantiles_are_within_two_percent(self, values: list[int], share: float) -> None:
        """Whatever is recorded, a quantile is within 1.6 % of the exact nearest-rank one; count and mean are exact."""
        histogram = Histogram()
        for value in values:
            histogram.record(value)
        got, want = histogram.quantile(share), exact(values, share)
        assert got is not None
        assert abs(got - want) <= want / 64
        assert histogram.count == len(values)
        assert histogram.mean == sum(values) / len(values)
        assert (histogram.low, histogram.high) == (min(values), max(values))

    def test_empty_says_none(self) -> None:
        """An empty histogram has no quantiles and no mean, rather than zeros."""
        assert Histogram().summary() == Summary(0, None, None, None, None, None, None)
        assert Histogram().summary().as_ms() == dict.fromkeys(("mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"))

    @given(st.lists(st.integers(0, 10**12)), st.lists(st.integers(0, 10**12)))
    def test_merge_equals_recording_all(self, left: list[int], right: list[int]) -> None:
        """Merging two histograms gives what one histogram of all values gives."""
        one, two, both = Histogram(), Histogram(), Histogram()
        for value in left:
            one.record(value)
            both.record(value)
        for value in right:
            two.record(value)
            both.record(value)
        one.merge(two)
        assert one.summary() == both.summary()

    def test_memory_is_bounded(self) -> None:
        """Values over sixty powers of two need no more than 2,000 counters."""
        histogram, rng = Histogram(), random.Random(1)
        for _ in range(30_000):
            histogram.record(int(2 ** (rng.random() * 62)))
        assert len(histogram._buckets) < 2_000

    def test_bad_values_are_refused(self) -> None:
        """Negative values and impossible quantiles are the caller's fault."""
        histogram = Histogram()
        with pytest.raises(InvalidInput, match="-1"):
            histogram.record(-1)
        with pytest.raises(InvalidInput, match=r"1\.5"):
            histogram.quantile(1.5)
        assert histogram.count == 0

    def test_several_at_once(self) -> None:
        """``times`` counts a value as often as given."""
        histogram = Histogram()
        histogram.record(10, times=3)
        histogram.record(50)
        assert (histogram.count, histogram.total, histogram.quantile(0.75)) == (4, 80, 10)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_latency_summary_is_exact(values: list[int]) -> None:
    """The summary of a list is the nearest-rank one, to the nanosecond."""
    summary = latency_summary(values)
    assert (summary.p50, summary.p95, summary.p99) == tuple(exact(values, share) for share in (0.5, 0.95, 0.99))
    assert (summary.count, summary.low, summary.high) == (len(values), min(values), max(values))


def test_latency_summary_of_hundred() -> None:
    """p99 of 1..100 is 99 (not 100, as a rounding error in 0.99 * 100 would have it); none of nothing."""
    assert latency_summary(range(1, 101)).p99 == 99
    assert latency_summary([]) == Summary()


class TestObservers:
    """The fan-out: who is called, and what a broken observer does."""

    def test_only_overridden_hooks_are_called(self) -> None:
        """Every hook reaches an observer that overrides it, with the driver's arguments unchanged."""
        calls: list[tuple[object, ...]] = []

        class Spy(Observer):
            def merged(self, now_ns: int, merge: Merge) -> None:
                calls.append((now_ns, merge))

            def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
                calls.append((start_ns, end_ns, task, failed))

        watching = Observers([Spy(), Observer()])
        watching.arrived(0, Request(1, "m", 0))
        watching.opened(1, task())
        watching.preempted(1, task())
        watching.dispatched(1, 5, task(), True)
        watching.merged(5, Merge("m", 1, 2))
        watching.exited(6, Request(1, "m", 0), Outcome.COMPLETED, 1)
        assert calls == [(1, 5, task(), True), (5, Merge("m", 1, 2))]
        assert len(watching) == 2

    def test_a_raising_hook_is_counted_and_stops_nothing(self) -> None:
        """An observer's exception neither reaches the driver nor keeps the call from the next observer."""

        class Broken(Observer):
            def opened(self, now_ns: int, task: Task) -> None:
                raise RuntimeError("broken observer")

        meter = Meter()
        watching = Observers([Broken(), meter])
        watching.opened(1, task())
        watching.opened(2, task())
        assert watching.errors == 2
        assert str(watching.last_error) == "broken observer"
        assert meter.of("m").sub_batches == 2


class TestMeter:
    """The meter: counts and distributions per model."""

    def test_a_small_run(self) -> None:
        """Counts, reasons, rows, and queue wait apart from service time, for two requests of one sub-batch."""
        meter = Meter()
        first, second = Request(1, "m", 0, deadline_ns=90), Request(2, "m", 10, deadline_ns=200)
        for request in (first, second):
            meter.arrived(request.arrival_ns, request)
        meter.opened(20, task(opened=(1, 2)))
        meter.dispatched(20, 50, task(opened=(1, 2)))
        meter.dispatched(50, 100, task(rows=1)._replace(reason=Reason.CONTINUE), failed=True)
        meter.preempted(50, task(preempted=7))
        meter.merged(50, Merge("m", 1, 7))
        meter.exited(100, first, Outcome.COMPLETED, 20)
        meter.exited(100, second, Outcome.FAILED, 20)
        meter.exited(100, Request(3, "m", 5), Outcome.REJECTED, None)
        stats = meter.stats()["m"]
        assert (stats.arrived, stats.violations) == (2, 1)
        assert {outcome: count for outcome, count in stats.outcomes.items() if count} == {
            "completed": 1,
            "failed": 1,
            "rejected": 1,
        }
        assert set(stats.outcomes) == {outcome.value for outcome in Outcome}
        assert (stats.dispatches, stats.failed_dispatches, stats.mean_rows, stats.busy_ns) == (2, 1, 1.5, 80)
        assert stats.reasons == {"start: processor is free": 1, "continue": 1}
        assert (stats.sub_batches, stats.preemptions, stats.merges) == (1, 1, 1)
        assert (stats.queue_wait.low, stats.queue_wait.high) == (10, 20)
        assert (stats.latency.count, stats.latency.p50, stats.service.p50) == (1, 100, 80)

    def test_warm_up_is_left_out(self) -> None:
        """Requests and nodes before ``since_ns`` count nowhere."""
        meter = Meter(since_ns=100)
        early, late = Request(1, "m", 99), Request(2, "m", 100)
        for request in (early, late):
            meter.arrived(request.arrival_ns, request)
            meter.exited(200, request, Outcome.COMPLETED, 150)
        meter.opened(99, task())
        meter.preempted(99, task())
        meter.merged(99, Merge("m", 1, 2))
        meter.dispatched(99, 120, task())
        stats = meter.of("m")
        assert (stats.arrived, stats.outcomes["completed"], stats.latency.count) == (1, 1, 1)
        assert (stats.dispatches, stats.sub_batches, stats.preemptions, stats.merges) == (0, 0, 0, 0)

    def test_iterations_and_who_leaves(self) -> None:
        """Steps, rows in them, rows that left before others, rows that a maximum ended; also in the total."""
        meter = Meter(since_ns=5)
        meter.stepped(4, task(rows=9), Completion())
        meter.stepped(5, task(rows=4), Completion(split=Split("m", 1, 2, (1, 2))))
        meter.stepped(6, task(rows=3), Completion(finished=(3,), truncated=(3,)))
        meter.stepped(7, task(rows=2), Completion(evicted=(4,), finished=(5,)))
        meter.stepped(8, task(rows=1), Completion(truncated=(6,)))
        for stats in (meter.of("m"), meter.total()):
            assert (stats.steps, stats.iterations, stats.left_early, stats.truncated) == (4, 10, 3, 2)

    def test_rows_that_join_at_once(self) -> None:
        """A sub-batch that is merged the moment it begins counts as both, as in the simulator's result."""
        meter = Meter()
        meter.opened(0, task(opened=(1,))._replace(joined=3))
        assert (meter.of("m").sub_batches, meter.of("m").merges) == (1, 1)

    def test_unknown_model_is_all_zero(self) -> None:
        """A model never seen has zero counts and no distributions; a snapshot does not change afterwards."""
        meter = Meter()
        before = meter.of("m")
        meter.arrived(0, Request(1, "m", 0))
        assert (before.arrived, meter.of("m").arrived, before.mean_rows) == (0, 1, None)

    def test_total_adds_models_up(self) -> None:
        """The total of two models has the sum of their counts and the joint distributions."""
        meter = Meter()
        for model, latency_ns in (("a", 10), ("b", 30)):
            request = Request(1, model, 0, deadline_ns=20)
            meter.arrived(0, request)
            meter.dispatched(5, latency_ns, task(rows=3)._replace(model=model))
            meter.exited(latency_ns, request, Outcome.COMPLETED, 5)
        total = meter.total()
        assert (total.arrived, total.violations, total.dispatches, total.mean_rows, total.busy_ns) == (2, 1, 2, 3, 30)
        assert (total.outcomes["completed"], total.reasons) == (2, {"start: processor is free": 2})
        assert (total.latency.count, total.latency.low, total.latency.high) == (2, 10, 30)
        assert meter.of("a").latency.count == 1
        assert Meter().total().latency == Summary()
