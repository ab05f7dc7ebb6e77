"""What users hold: every way to call the batcher, and what it tells about itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from tests.engine.kit import LONG_S, Gate, accounts, held, upper

ROOT = Path(__file__).resolve().parents[1]


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
    with lb.LazyBatcher(held(gate)) as batcher:
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
    with lb.LazyBatcher(held(gate), max_batch_size=1, levels={1: lb.Level(queue_timeout=0.001)}) as batcher:
        batcher.submit(0)
        assert gate.entered.wait(LONG_S)
        waiting = batcher.submit(1, priority=1)
        with pytest.raises(lb.DeadlineExceeded, match="in the queue"):
            waiting.result(LONG_S)
        gate.opened.set()
    assert batcher.stats().expired == 1


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
