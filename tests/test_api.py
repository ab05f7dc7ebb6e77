"""What users hold: every promise of the batcher, through its public face."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.latency import LatencyTable
from tests.engine.kit import AddChain, accounts, errors_of
from tests.engine.test_engine import LONG_S, Gate

ROOT = Path(__file__).resolve().parents[1]


def upper(texts: list[str]) -> list[str]:
    """The callable of most tests."""
    return [text.upper() for text in texts]


def gated(gate: Gate) -> Any:
    """A callable that stands still, then returns its inputs."""

    def fn(values: list[Any]) -> list[Any]:
        gate()
        return values

    return fn


# -- calls -------------------------------------------------------------------------------------------------------


def test_every_way_to_call_gives_the_same_answer() -> None:
    """Submit, predict, predict_batch and their asyncio twins agree."""

    async def twins() -> list[Any]:
        return [await batcher.apredict("a"), await batcher.apredict_batch(["a", "b"])]

    with lb.LazyBatcher(upper) as batcher:
        assert batcher.submit("a").result(LONG_S) == "A"
        assert batcher.predict("a") == "A"
        assert batcher.predict_batch(["a", "b"]) == ["A", "B"]
        assert [future.result(LONG_S) for future in batcher.submit_batch(iter("ab"))] == ["A", "B"]
        assert asyncio.run(twins()) == ["A", ["A", "B"]]
        assert asyncio.run(twins()) == ["A", ["A", "B"]], "a second event loop does as well"
        assert isinstance(batcher.submit("a"), Future)
    stats = batcher.stats()
    assert stats.completed == 13
    accounts(stats)


def test_results_come_back_in_the_callers_order_whatever_the_buckets() -> None:
    """Rows of different lengths run in different calls; the caller's order is restored, and no call mixes buckets."""
    calls: list[list[str]] = []

    def fn(texts: list[str]) -> list[str]:
        calls.append(texts)
        return upper(texts)

    words = ["a" * (1 + k % 7) for k in range(40)]
    with lb.LazyBatcher(fn, length_bucket_width=2, max_batch_size=8) as batcher:
        assert batcher.predict_batch(words) == upper(words)
    assert all(len({len(text) // 2 for text in call}) == 1 for call in calls)


def test_inputs_are_copied_before_submit_returns() -> None:
    """The caller may reuse its buffer at once."""
    gate = Gate()
    with lb.LazyBatcher(gated(gate)) as batcher:
        buffer = np.zeros(2)
        futures = []
        for k in range(4):
            buffer[:] = k
            futures.append(batcher.submit(buffer))
        buffer[:] = 99
        gate.opened.set()
        assert [future.result(LONG_S).tolist() for future in futures] == [[k, k] for k in range(4)]


def test_a_full_batch_does_not_wait_for_the_window() -> None:
    """With a window of an hour, as many rows as fill a batch run at once."""
    with lb.LazyBatcher(upper, max_batch_size=4, max_delay=3600) as batcher:
        assert batcher.predict_batch(list("abcd")) == list("ABCD")
        assert batcher.stats().reasons == {"start: batch is full": 1}
        left = batcher.submit("e")
    assert left.result(0) == "E"
    assert batcher.stats().reasons["start: draining, no further row can come"] == 1


def test_batches_never_exceed_their_limits() -> None:
    """max_batch_size caps rows, size_budget the sum of sizes; a row larger than the budget runs alone."""
    calls: list[list[str]] = []

    def fn(texts: list[str]) -> list[str]:
        calls.append(texts)
        return texts

    words = ["a" * (1 + k % 5) for k in range(30)] + ["b" * 50]
    with lb.LazyBatcher(fn, max_batch_size=6, size_budget=12) as batcher:
        assert batcher.predict_batch(words) == words
    assert all(len(call) <= 6 and (len(call) == 1 or sum(map(len, call)) <= 12) for call in calls)
    assert ["b" * 50] in calls


def test_allowed_sizes_are_executed_and_metered() -> None:
    """The callable only ever sees allowed sizes; padding shows up in the statistics, not in results."""
    sizes: list[int] = []

    def fn(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return values

    with lb.LazyBatcher(fn, max_batch_size=8, allowed_batch_sizes=(1, 4, 8)) as batcher:
        assert batcher.predict_batch(range(3)) == [0, 1, 2]
        assert batcher.predict(5) == 5
        assert batcher.stats().padding_rows == 1
    assert sizes == [4, 1]


def test_the_urgent_go_first_and_the_old_age() -> None:
    """Among waiting rows the higher priority runs first."""
    gate, order = Gate(), []

    def fn(values: list[str]) -> list[str]:
        gate()
        order.extend(values)
        return values

    with lb.LazyBatcher(fn, max_batch_size=1, queue_capacity=8) as batcher:
        batcher.submit("first")
        assert gate.entered.wait(LONG_S)
        for name, priority in (("low", -1), ("middle", 0), ("high", 5)):
            batcher.submit(name, priority=priority)
        gate.opened.set()
    assert order == ["first", "high", "middle", "low"]


def test_a_levels_queue_timeout_ends_waiting_rows() -> None:
    """While the only worker is busy, a row of a limited level expires and says why."""
    gate = Gate()
    with lb.LazyBatcher(gated(gate), max_batch_size=1, levels={1: lb.Level(queue_timeout=0.001)}) as batcher:
        batcher.submit(0)
        assert gate.entered.wait(LONG_S)
        waiting = batcher.submit(1, priority=1)
        with pytest.raises(lb.DeadlineExceeded, match="in the queue"):
            waiting.result(LONG_S)
        gate.opened.set()
    assert batcher.stats().expired == 1


# -- failures ----------------------------------------------------------------------------------------------------


def picky(values: list[int]) -> list[int]:
    """Fails for the whole call when a negative number is in it."""
    if min(values) < 0:
        raise ValueError(f"negative: {min(values)}")
    return values


def test_one_bad_row_never_fails_its_mates() -> None:
    """The bad rows get `ExecutionError` from what was raised; everyone else gets the answer."""
    with lb.LazyBatcher(picky) as batcher:
        outcomes = batcher.predict_batch([1, -2, 3, -4, 5], return_exceptions=True)
        assert [outcomes[0], outcomes[2], outcomes[4]] == [1, 3, 5]
        for k, text in ((1, "negative: -2"), (3, "negative: -4")):
            assert isinstance(outcomes[k], lb.ExecutionError)
            assert text in str(outcomes[k])
            assert isinstance(outcomes[k].__cause__, ValueError)
    stats = batcher.stats()
    assert (stats.completed, stats.failed) == (3, 2)
    accounts(stats)


def test_predict_batch_raises_the_first_failed_rows_error_and_cancels_the_rest() -> None:
    """Once a row has failed nobody will read the others: those that are not done are withdrawn."""
    gate = Gate()

    def fn(values: list[int]) -> list[Any]:
        if 9 in values:
            gate()
        return [KeyError(value) if value < 0 else value for value in values]

    with lb.LazyBatcher(fn, max_batch_size=2, queue_capacity=8) as batcher:
        with pytest.raises(lb.ExecutionError, match="KeyError: -1"):
            batcher.predict_batch([1, -1, 9, 2, 3])
        gate.opened.set()
    stats = batcher.stats()
    assert stats.failed == 1
    assert stats.cancelled >= 2
    accounts(stats)


def test_a_wrong_number_of_outputs_is_an_execution_error_for_every_row() -> None:
    """It is not retried row by row: the callable is wrong, not a row."""
    with lb.LazyBatcher(lambda values: values[:-1]) as batcher:
        outcomes = batcher.predict_batch([1, 2, 3], return_exceptions=True)
        assert {str(outcome) for outcome in outcomes} == {
            "model '<lambda>': the callable got 3 inputs and returned 2 outputs"
        }
        assert all(isinstance(outcome, lb.ExecutionError) for outcome in outcomes)
        assert (batcher.stats().retried, batcher.stats().dispatches) == (0, 1)


def test_deadlines_and_timeouts_are_hard() -> None:
    """A waiting predict ends on time with `DeadlineExceeded`, which is a `TimeoutError`; a passed one is refused."""
    gate = Gate()
    with lb.LazyBatcher(gated(gate)) as batcher:
        with pytest.raises(TimeoutError, match="limit of"):
            batcher.predict(1, timeout=0.005)
        late = batcher.submit(1, deadline=time.monotonic() - 1)
        assert late.done()
        with pytest.raises(lb.DeadlineExceeded, match="had passed"):
            late.result()
        with pytest.raises(lb.DeadlineExceeded):
            batcher.predict(1, timeout=0)
        with pytest.raises(lb.DeadlineExceeded):
            asyncio.run(batcher.apredict(1, deadline=time.monotonic() + 0.005))
        gate.opened.set()
    stats = batcher.stats()
    assert (stats.expired, stats.rejected["deadline"], stats.accepted) == (2, 2, 2)
    accounts(stats)


def test_a_soft_target_never_drops_a_row() -> None:
    """Late rows are answered and counted as violations."""
    with lb.LazyBatcher(upper) as batcher:
        assert batcher.predict("a", sla=1e-9) == "A"
        assert batcher.predict("a", sla=3600) == "A"
    assert batcher.stats().violations == 1


def test_overload_is_a_failed_future_or_a_raised_error() -> None:
    """submit never raises for load; the waiting calls do, and admit nothing."""
    gate = Gate()
    with lb.LazyBatcher(gated(gate), max_batch_size=1, queue_capacity=2) as batcher:
        first = batcher.submit(0)
        assert gate.entered.wait(LONG_S)
        batcher.submit(1)
        with pytest.raises(lb.Overloaded, match="1 of 2 rows wait, 2 more do not fit"):
            batcher.predict_batch([2, 3])
        batcher.submit(4)
        assert errors_of([batcher.submit(5)]) == ["Overloaded"]
        with pytest.raises(lb.Overloaded):
            batcher.predict(6)
        with pytest.raises(lb.Overloaded):
            asyncio.run(batcher.apredict_batch([7, 8]))
        assert batcher.stats().rejected["overloaded"] == 6
        gate.opened.set()
        assert first.result(LONG_S) == 0
    assert batcher.stats().completed == 3


def test_after_shutdown_every_call_says_so() -> None:
    """submit through its future, the others by raising; stats stay readable."""
    batcher = lb.LazyBatcher(upper)
    assert batcher.shutdown() is True
    assert errors_of([batcher.submit("a")]) == ["ShuttingDown"]
    for call in (batcher.predict, lambda x: batcher.predict_batch([x]), lambda x: asyncio.run(batcher.apredict(x))):
        with pytest.raises(lb.ShuttingDown):
            call("a")
    assert batcher.stats().rejected["shutting_down"] == 4
    with pytest.raises(lb.InvalidInput, match="timeout"):
        batcher.shutdown(timeout=-1)
    with pytest.raises(lb.InvalidInput, match="drain"):
        batcher.shutdown(drain=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [[], (), iter([]), "abc", b"abc", {"x": 1}, 5, None])
def test_bad_batches_are_invalid(batch: Any) -> None:
    """Empty ones, and those that are one row by mistake."""
    with lb.LazyBatcher(upper) as batcher, pytest.raises(lb.InvalidInput, match="batch"):
        batcher.predict_batch(batch)


def test_a_bad_row_in_a_batch_admits_nothing_and_is_named() -> None:
    """The error says which row; none of its mates was admitted; the rows are counted as invalid."""
    with lb.LazyBatcher(AddChain(), policy="graph") as batcher:
        with pytest.raises(lb.InvalidInput, match="row 2 of the batch: input 'x' must be a number"):
            batcher.predict_batch([1, 2, "three", 4])
        with pytest.raises(lb.InvalidInput, match="must be a number"):
            batcher.submit("one")
        assert batcher.stats().rejected["invalid"] == 5
        assert batcher.stats().accepted == 0


# -- threads and event loops -------------------------------------------------------------------------------------


def test_calls_that_would_wait_for_themselves_are_refused() -> None:
    """On a worker, from the callable: predict, predict_batch, apredict and shutdown raise `SelfWait`; submit works."""
    refused: list[str] = []

    def fn(values: list[int]) -> list[int]:
        if values == [1]:
            calls = {
                "predict": lambda: batcher.predict(2),
                "predict_batch": lambda: batcher.predict_batch([2]),
                "apredict": lambda: asyncio.run(batcher.apredict(2)),
                "shutdown": batcher.shutdown,
            }
            for name, call in calls.items():
                try:
                    call()
                except lb.SelfWait:
                    refused.append(name)
            batcher.submit(3)
        return values

    with lb.LazyBatcher(fn) as batcher:
        assert batcher.predict(1) == 1
    assert refused == ["predict", "predict_batch", "apredict", "shutdown"]
    assert batcher.stats().completed == 2


def test_cancelling_the_task_cancels_the_row() -> None:
    """An HTTP handler whose client went away: its row leaves, alone or as part of a batch."""
    gate = Gate()

    async def impatient(call: Any) -> None:
        task = asyncio.ensure_future(call)
        await asyncio.to_thread(gate.entered.wait, LONG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with lb.LazyBatcher(gated(gate), max_batch_size=1, queue_capacity=8) as batcher:
        blocking = batcher.submit(0)
        asyncio.run(impatient(batcher.apredict(1)))
        asyncio.run(impatient(batcher.apredict_batch([2, 3])))
        assert batcher.stats().cancelled == 3
        gate.opened.set()
        assert blocking.result(LONG_S) == 0
    accounts(batcher.stats())


def test_errors_in_an_async_batch_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first failed row's error is raised, the others do not show up in asyncio's log."""

    async def main() -> None:
        with pytest.raises(lb.ExecutionError, match="negative: -1"):
            await batcher.apredict_batch([-1, -2, -3])
        outcomes = await batcher.apredict_batch([1, -2], return_exceptions=True)
        assert outcomes[0] == 1
        assert isinstance(outcomes[1], lb.ExecutionError)
        gc.collect()
        await asyncio.sleep(0)

    with lb.LazyBatcher(picky) as batcher:
        asyncio.run(main(), debug=True)
    assert [record for record in caplog.records if record.name == "asyncio" and record.levelname == "ERROR"] == []


def test_a_row_cancelled_by_someone_else_is_a_cancelled_error() -> None:
    """predict_batch reports it like any other end of a row."""
    gate = Gate()
    held: list[Future[Any]] = []
    with lb.LazyBatcher(gated(gate), max_batch_size=1, queue_capacity=8) as batcher:
        submit_batch = batcher.submit_batch

        def spy(*arguments: Any, **options: Any) -> list[Future[Any]]:
            held.extend(submit_batch(*arguments, **options))
            held[1].cancel()
            gate.opened.set()
            return held

        batcher.submit_batch = spy  # type: ignore[method-assign]
        outcomes = batcher.predict_batch([1, 2], return_exceptions=True)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], CancelledError)


def test_an_interrupted_predict_withdraws_its_row() -> None:
    """When the waiting thread is interrupted, its row does not run on for nobody."""
    gate = Gate()
    with lb.LazyBatcher(gated(gate), max_batch_size=1, queue_capacity=8) as batcher:
        blocking = batcher.submit(0)
        assert gate.entered.wait(LONG_S)
        submit = batcher.submit

        def interrupted(*arguments: Any, **options: Any) -> Future[Any]:
            future = submit(*arguments, **options)

            def result(timeout: float | None = None) -> Any:
                raise KeyboardInterrupt

            future.result = result  # type: ignore[method-assign]
            return future

        batcher.submit = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            batcher.predict(1)
        assert batcher.stats().cancelled == 1
        gate.opened.set()
        assert blocking.result(LONG_S) == 0


def test_a_dropped_batcher_finishes_what_it_accepted() -> None:
    """Without shutdown and without a reference the rows still resolve, and the object is collected at once."""
    batcher = lb.LazyBatcher(upper)
    futures = batcher.submit_batch(list("abc"))
    reference = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert reference() is None
    assert [future.result(LONG_S) for future in futures] == list("ABC")


# -- several models, tables, policies ----------------------------------------------------------------------------


def test_several_models_behind_one_batcher() -> None:
    """Calls say which model; limits are per model where they are given so; counters are kept apart."""
    models = {"det": AddChain(2), "rec": AddChain(3), "text": upper}
    with lb.LazyBatcher(models, max_batch_size={"det": 2}, queue_capacity={"det": 2}) as batcher:
        assert batcher.predict(1, model="det") == 12.0
        assert batcher.predict_batch([1, 2], model="rec") == [112.0, 113.0]
        assert batcher.predict("a", model="text") == "A"
        with pytest.raises(lb.InvalidInput, match="say model= with one of det, rec, text"):
            batcher.predict(1)
        with pytest.raises(lb.InvalidInput, match="unknown model 'cls'; known are det, rec, text"):
            batcher.submit(1, model="cls")
        with pytest.raises(lb.Overloaded, match="never fit"):
            batcher.predict_batch([1, 2, 3], model="det")
        assert set(batcher.models) == {"det", "rec", "text"}
    stats = batcher.stats()
    assert {name: part.completed for name, part in stats.models.items()} == {"det": 1, "rec": 2, "text": 1}
    accounts(stats)


def test_lazy_is_the_default_and_measures_what_it_needs() -> None:
    """A model without a table is profiled briefly; callables without one fall back to graph batching."""
    with lb.LazyBatcher(AddChain(), sla=10) as batcher:
        assert batcher.predict(1) == 112.0
        table = batcher.tables["chain"]
        assert table is not None
        assert table.nodes == ("add0", "add1", "add2")
    with lb.LazyBatcher(upper) as batcher:
        assert batcher.tables == {"upper": None}


def test_a_given_table_is_used_and_checked() -> None:
    """A table of another model, partition or machine is refused with both sides named, unless it is allowed."""
    model = AddChain()
    table = model.table()
    with lb.LazyBatcher(model, table=table) as batcher:
        assert batcher.tables["chain"] is table
    other = AddChain(2)
    with pytest.raises(lb.TableMismatch, match="chain"):
        lb.LazyBatcher(other, table=table)
    twin = AddChain()
    twin.fingerprint = "another-file"
    with pytest.raises(lb.TableMismatch, match=r"chain-3.*another-file"):
        lb.LazyBatcher(twin, table=table)
    with lb.LazyBatcher(twin, table=table, allow_foreign_table=True) as batcher:
        assert batcher.predict(1) == 112.0
    elsewhere = LatencyTable(
        table.model, table.nodes, table.batch_sizes, table.median_ns, table.high_ns, {"machine": {"cpu": "abacus"}}
    )
    with pytest.raises(lb.TableMismatch, match="abacus"):
        lb.LazyBatcher(model, table=elsewhere)
    with pytest.raises(lb.InvalidInput, match="must be a LatencyTable"):
        lb.LazyBatcher(model, table="table.json")  # type: ignore[arg-type]


def test_a_callable_with_a_table_can_be_served_lazily() -> None:
    """The measured table decides; without one, the policy says what it lacks."""
    model = lb.CallableModel(upper)
    table = lb.profile(model, (1, 2), inputs=["a", "b"], budget_s=0.05)
    with lb.LazyBatcher(model, table=table) as batcher:
        assert batcher.predict("a") == "A"
        assert batcher.tables["upper"] is table
    with pytest.raises(lb.InvalidInput, match="callable without a latency table"):
        lb.LazyBatcher(upper, policy="lazy")


def test_a_target_that_no_row_can_meet_is_refused() -> None:
    """The SLA is compared with one bare run, and both numbers are named."""
    model = AddChain()
    with pytest.raises(lb.InvalidInput, match=r"sla=0.001 s cannot be met: one row alone takes 0.003000 s"):
        lb.LazyBatcher(model, table=model.table(1_000_000), sla=0.001)


def test_what_cannot_be_joined_is_served_alone() -> None:
    """A model that is not joinable never gets two rows in a sub-batch, and still serves all of them."""
    sizes: list[int] = []
    model = AddChain(joinable=False, before=lambda _, values: sizes.append(len(values)))
    with lb.LazyBatcher(model, policy="graph") as batcher:
        assert batcher.predict_batch(range(5)) == [k + 111.0 for k in range(5)]
    assert set(sizes) == {1}
    assert model.made[0].max_batch_size == 1


@pytest.mark.parametrize(
    ("models", "options", "text"),
    [
        (3, {}, "expected a model"),
        ("model.onnx", {}, "expected a model from lazybatch.load"),
        ({}, {}, "at least one model"),
        ({1: upper}, {}, "non-empty strings"),
        ({"a": upper, "b": 3}, {}, "expected a model"),
        (upper, {"policy": "best"}, "unknown policy 'best'; known are"),
        (upper, {"max_batch_size": 0}, "max_batch_size must be"),
        (upper, {"max_batch_size": 64, "queue_capacity": 32}, "queue_capacity=32 is smaller"),
        (upper, {"max_batch_size": {"nope": 3}}, "max_batch_size names the unknown model 'nope'"),
        (upper, {"workers": -1}, "workers must be"),
        (upper, {"sla": float("nan")}, "sla must be"),
        (upper, {"observers": [3]}, "observers must derive"),
        (upper, {"trace": "/nonexistent/folder/trace.json"}, "trace"),
        (upper, {"allow_foreign_table": 1}, "allow_foreign_table must be True or False"),
        ({"chain": AddChain()}, {"workers": 2}, "workers=2 is for callables"),
        ({"chain": AddChain()}, {"length_bucket_width": 2}, "length_bucket_width=2 is for plain callables"),
        ({"chain": AddChain(), "b": upper}, {"table": AddChain().table()}, "give a mapping"),
    ],
)
def test_bad_options_are_refused_at_construction(models: Any, options: dict[str, Any], text: str) -> None:
    """Each names the culprit and what was expected; no thread is left behind."""
    before = threading.active_count()
    with pytest.raises(lb.InvalidInput, match=text):
        lb.LazyBatcher(models, **options)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sla": -1}, "sla"),
        ({"timeout": float("inf")}, "timeout"),
        ({"deadline": "x"}, "deadline"),
        ({"priority": 1.5}, "p"),
    ],
)
def test_bad_limits_are_refused_at_submit(options: dict[str, Any], text: str) -> None:
    """They are the caller's mistake, so they are raised."""
    with lb.LazyBatcher(upper) as batcher, pytest.raises(lb.InvalidInput, match=text):
        batcher.submit("a", **options)


# -- seeing it ---------------------------------------------------------------------------------------------------


def test_a_trace_is_written_and_is_json(tmp_path: Path) -> None:
    """The schedule of the run is in the file once the batcher has ended."""
    path = tmp_path / "trace.json"
    with lb.LazyBatcher(upper, trace=path) as batcher:
        batcher.predict_batch(list("abc"))
    events = json.loads(path.read_text())
    assert any("sub-batch" in event.get("name", "") for event in events)


def test_statistics_explain_every_dispatch() -> None:
    """Reasons add up to dispatches, rows to accepted rows, and the whole is JSON."""
    with lb.LazyBatcher(upper, max_batch_size=4, queue_capacity=64) as batcher:
        batcher.predict_batch(["a"] * 30)
        stats = batcher.stats()
    assert sum(stats.reasons.values()) == stats.dispatches == stats.batches
    assert stats.mean_rows is not None
    assert round(stats.mean_rows * stats.dispatches) == 30
    assert stats.queue_wait.count == stats.service.count == stats.latency.count == 30
    plain = json.loads(json.dumps(stats.as_dict()))
    assert plain["latency"]["p99_ms"] >= plain["latency"]["p50_ms"] > 0


def test_planned_memory_is_told_where_executors_plan() -> None:
    """Callables plan nothing, so they are left out."""
    with lb.LazyBatcher(upper) as batcher:
        assert dict(batcher.memory) == {}


# -- the decorator -----------------------------------------------------------------------------------------------


def test_a_decorated_function_batches_its_callers() -> None:
    """Calling it waits for one output; everything else is the batcher's; the function's own face is kept."""

    @lb.batched(max_batch_size=16, max_delay=0.001)
    def embed(texts: list[str]) -> list[str]:
        """Embeds."""
        return upper(texts)

    assert embed("one") == "ONE"
    assert embed("one", timeout=LONG_S) == "ONE"
    assert embed.submit("a").result(LONG_S) == "A"
    assert embed.submit_batch(["a"])[0].result(LONG_S) == "A"
    assert embed.predict("a") == "A"
    assert embed.predict_batch(["a", "b"]) == ["A", "B"]
    assert asyncio.run(embed.apredict("a")) == "A"
    assert asyncio.run(embed.apredict_batch(["a", "b"])) == ["A", "B"]
    assert embed.stats().completed == 10
    assert (embed.__name__, embed.__doc__) == ("embed", "Embeds.")
    assert embed.__wrapped__(["x"]) == ["X"]
    assert repr(embed) == "<batched embed>"
    assert embed.shutdown(timeout=LONG_S)
    with pytest.raises(lb.ShuttingDown):
        embed("two")


def test_decorating_needs_no_parentheses_and_takes_all_options() -> None:
    """Bare, and with options of the batcher and of the callable."""
    with lb.batched(upper) as plain:
        assert plain("a") == "A"
    chosen = lb.batched(size_fn=len, length_bucket_width=4, copy=False, name="up", workers=2, observers=[])
    with chosen(upper) as fancy:
        assert fancy.predict_batch(["a", "abcdef"]) == ["A", "ABCDEF"]
        assert set(fancy.stats().models) == {"up"}


def test_decorating_starts_nothing_and_refuses_bad_options() -> None:
    """Import time costs no thread, and mistakes are found there rather than at the first call."""
    before = threading.active_count()
    lb.batched(upper)
    assert threading.active_count() <= before
    with pytest.raises(lb.InvalidInput, match="does not take 'max_batch'"):
        lb.batched(max_batch=3)(upper)
    with pytest.raises(lb.InvalidInput, match="max_batch_size must be"):
        lb.batched(max_batch_size=0)(upper)
    with pytest.raises(lb.InvalidInput, match="belongs to policy 'graph'"):
        lb.batched(policy="serial", max_delay=0.1)(upper)


class Scaler:
    """An object with a batched method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @lb.batched(max_batch_size=4)
    def scale(self, values: list[int]) -> list[int]:
        """Multiply."""
        return [value * self.factor for value in values]


def test_methods_batch_per_instance_and_end_with_it() -> None:
    """Two objects never share a call; an object that is dropped is collected, with its batcher."""
    two, three = Scaler(2), Scaler(3)
    assert two.scale(5) == 10
    assert three.scale.predict_batch([1, 2]) == [3, 6]
    assert two.scale is two.scale
    assert two.scale.stats().completed == 1
    assert two.scale.__name__ == "scale"
    assert isinstance(Scaler.scale, lb.BatchedFunction)
    reference = weakref.ref(three)
    del three
    gc.collect()
    assert reference() is None


def test_methods_of_objects_without_a_dict_are_refused() -> None:
    """There is nowhere to keep the batcher; the error says so."""

    class Slotted:
        __slots__ = ()

        @lb.batched
        def call(self, values: list[int]) -> list[int]:
            return values

    with pytest.raises(lb.InvalidInput, match="Slotted objects have no __dict__"):
        Slotted().call(1)


# -- the package -------------------------------------------------------------------------------------------------


def test_the_public_names_are_all_there() -> None:
    """Every name of `__all__` can be imported, and nothing else pretends to exist."""
    for name in lb.__all__:
        assert getattr(lb, name) is not None
    assert set(lb.__all__) <= set(dir(lb))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = lb.nothing


def test_importing_needs_numpy_only() -> None:
    """In a process in which runtimes and command-line packages cannot be imported, callables are served."""
    script = """
import sys
for name in ("onnx", "onnxruntime", "torch", "networkx", "typer", "rich", "matplotlib"):
    sys.modules[name] = None
import lazybatch as lb
with lb.LazyBatcher(lambda values: values) as batcher:
    assert batcher.predict(1) == 1
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
