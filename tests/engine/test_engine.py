"""The engine with its threads: admission, limits while a node runs, shutdown in every way, forgotten engines."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import Choice, GraphBatching, Policy, View
from lazybatch.engine import Engine, MonotonicClock, ServedModel
from lazybatch.errors import InvalidInput, SelfWait
from lazybatch.executors.base import Row
from lazybatch.executors.callable import BatchFunction, CallableModel
from tests.engine.kit import AddChain, accounts, errors_of, rows, served, stepped

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 60.0
"""Far longer than anything here takes; only a hang reaches it."""


class Gate:
    """A node, or a callable, that stands still until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *_: Any) -> None:
        """Stand still."""
        self.entered.set()
        assert self.opened.wait(LONG_S)


@contextmanager
def running(*models: ServedModel, policy: Policy | None = None, **options: Any) -> Iterator[Engine]:
    """An engine with its thread, ended whatever happens."""
    engine = Engine(models, policy or GraphBatching(), **options)
    try:
        yield engine
    finally:
        assert engine.shutdown(timeout=LONG_S)


def pooled(fn: BatchFunction, **limits: Any) -> ServedModel:
    """A callable served by workers."""
    model = CallableModel(fn, name="fn")
    spec = LaneSpec(NodeGraph.chain("fn", ["call"]), **limits)
    return ServedModel(spec, model.executor(max_batch_size=spec.max_batch_size), pooled=True)


def gated(gate: Gate, nodes: int = 3, **limits: Any) -> tuple[AddChain, ServedModel]:
    """A chain whose first node stands still until the gate opens."""
    model = AddChain(nodes, before=lambda node, _: gate() if node == 0 else None)
    return model, served(model, **limits)


def test_rows_from_many_threads_get_their_own_results() -> None:
    """Concurrent submitters share batches and never each other's answers."""
    with running(served(AddChain())) as engine:
        answers: dict[int, list[Future[Any]]] = {}

        def client(number: int) -> None:
            answers[number] = [engine.submit("chain", rows(number * 100 + k))[0] for k in range(20)]

        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, futures in answers.items():
            assert [future.result(LONG_S) for future in futures] == [number * 100 + k + 111.0 for k in range(20)]
        assert engine.stats().completed == 160
    accounts(engine.stats())


def test_admission_counts_waiting_rows_exactly_and_is_all_or_nothing() -> None:
    """While a node stands still exactly queue_capacity rows wait; a call that does not fit leaves no row behind."""
    gate = Gate()
    _, one = gated(gate, max_batch_size=2, queue_capacity=4)
    with running(one) as engine:
        first = engine.submit("chain", rows(0))
        assert gate.entered.wait(LONG_S)
        assert engine.stats().in_flight == 1
        waiting = engine.submit("chain", rows(1, 2, 3))
        refused = engine.submit("chain", rows(4, 5))
        assert errors_of(refused) == ["Overloaded", "Overloaded"]
        assert refused[0].exception() is not refused[1].exception()
        assert "3 of 4 rows wait, 2 more do not fit" in str(refused[0].exception())
        waiting += engine.submit("chain", rows(6))
        assert engine.stats().queued == 4
        assert "can never fit" in str(engine.submit("chain", rows(*range(5)))[0].exception())
        gate.opened.set()
        assert [future.result(LONG_S) for future in first + waiting] == [111.0, 112.0, 113.0, 114.0, 117.0]
        assert engine.stats().rejected["overloaded"] == 7


def test_a_limit_is_kept_while_a_node_runs() -> None:
    """Rows expire on time, waiting or running, although the engine's thread is stuck in a node."""
    gate = Gate()
    _, one = gated(gate)
    with running(one) as engine:
        limit_ns = engine._clock.now_ns() + 20_000_000
        running_row = engine.submit("chain", rows(1), limit_ns=limit_ns)
        assert gate.entered.wait(LONG_S)
        waiting_row = engine.submit("chain", rows(2), limit_ns=limit_ns)
        kept = engine.submit("chain", rows(3))
        wait(running_row + waiting_row, timeout=LONG_S)
        assert errors_of(running_row + waiting_row) == ["DeadlineExceeded", "DeadlineExceeded"]
        assert not gate.opened.is_set()
        assert engine.stats().expired == 2
        gate.opened.set()
        assert kept[0].result(LONG_S) == 114.0


def test_a_limit_that_has_passed_is_refused_at_once() -> None:
    """It is counted as rejected, was never accepted, and comes back as a failed future."""
    with running(served(AddChain())) as engine:
        futures = engine.submit("chain", rows(1, 2), limit_ns=engine._clock.now_ns() - 5)
        assert errors_of(futures) == ["DeadlineExceeded", "DeadlineExceeded"]
        stats = engine.stats()
        assert (stats.rejected["deadline"], stats.accepted, stats.expired) == (2, 0, 0)


def test_cancel_resolves_at_once_while_a_node_runs() -> None:
    """A caller that gives up does not wait for the node; the row is gone at its end."""
    gate = Gate()
    _, one = gated(gate)
    with running(one) as engine:
        first, second = engine.submit("chain", rows(1, 2))
        assert gate.entered.wait(LONG_S)
        assert first.running()
        assert first.cancel()
        assert first.cancelled()
        gate.opened.set()
        assert second.result(LONG_S) == 113.0


def test_a_cancelled_call_of_a_callable_drops_only_that_row() -> None:
    """The callable cannot be stopped; the cancelled row's output is dropped, its mate's delivered."""
    gate = Gate()

    def fn(values: list[float]) -> list[float]:
        gate()
        return [value * 2 for value in values]

    with running(pooled(fn)) as engine:
        first, second = engine.submit("fn", rows(1, 2))
        assert gate.entered.wait(LONG_S)
        assert first.cancel()
        gate.opened.set()
        assert second.result(LONG_S) == 4.0
    accounts(engine.stats())


def test_a_row_cancelled_while_a_worker_runs_its_node_leaves_before_the_next() -> None:
    """The scheduler reports it as evicted when the node ends; the executor lets it go and its mate goes on."""
    gate, sizes = Gate(), []

    def before(node: int, values: np.ndarray) -> None:
        sizes.append(len(values))
        if node == 0:
            gate()

    model = AddChain(before=before)
    one = served(model)
    with running(ServedModel(one.spec, one.executor, pooled=True)) as engine:
        first, second = engine.submit("chain", rows(1, 2))
        assert gate.entered.wait(LONG_S)
        assert first.cancel()
        gate.opened.set()
        assert second.result(LONG_S) == 113.0
    assert sizes == [2, 1, 1]


def test_a_call_that_outlives_its_scheduler_is_forgotten() -> None:
    """When the scheduler fails while a worker is in a call, its rows fail at once; its late answer harms nobody."""

    class Once:
        needs_table = False
        decisions = 0

        def decide(self, view: View, now: int) -> Choice:
            self.decisions += 1
            if self.decisions == 2:
                raise SystemExit("second decision")
            return GraphBatching().decide(view, now)

    gate = Gate()

    def fn(values: list[float]) -> list[float]:
        if 1.0 in values:
            gate()
            raise ValueError("too late")
        return values

    with running(pooled(fn), policy=Once(), processors=2) as engine:
        first = engine.submit("fn", rows(1))
        assert gate.entered.wait(LONG_S)
        second = engine.submit("fn", rows(2))
        wait(first + second, timeout=LONG_S)
        assert errors_of(first + second) == ["ExecutionError", "ExecutionError"]
        assert engine.submit("fn", rows(3))[0].result(LONG_S) == 3.0
        gate.opened.set()
        assert engine.submit("fn", rows(4))[0].result(LONG_S) == 4.0
    accounts(engine.stats())


def test_workers_run_calls_at_once_and_the_engine_stays_responsive() -> None:
    """Two workers stand in two calls at the same time, while a third row is admitted and expires on time."""
    both, gate = threading.Barrier(3, timeout=LONG_S), Gate()

    def fn(values: list[float]) -> list[float]:
        both.wait()
        gate()
        return values

    with running(pooled(fn, max_batch_size=1, queue_capacity=8), processors=2) as engine:
        futures = engine.submit("fn", rows(1, 2))
        both.wait()
        assert engine.stats().in_flight == 2
        (late,) = engine.submit("fn", rows(3), limit_ns=engine._clock.now_ns() + 1_000_000)
        wait([late], timeout=LONG_S)
        assert errors_of([late]) == ["DeadlineExceeded"]
        gate.opened.set()
        assert [future.result(LONG_S) for future in futures] == [1.0, 2.0]


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit])
def test_the_engine_survives_whatever_a_callable_or_node_raises(kind: type[BaseException]) -> None:
    """Rows fail with `ExecutionError` from the cause; the next row is served."""

    def fn(values: list[float]) -> list[float]:
        if -1.0 in values:
            raise kind("no")
        return values

    def before(node: int, values: np.ndarray) -> None:
        if node == 1 and values[0] == 0.0:
            raise kind("no")

    with running(pooled(fn), served(AddChain(before=before))) as engine:
        for model, expected in (("fn", 5.0), ("chain", 116.0)):
            (bad,) = engine.submit(model, rows(-1))
            with pytest.raises(Exception, match=kind.__name__) as caught:
                bad.result(LONG_S)
            assert type(caught.value.__cause__) is kind
            assert engine.submit(model, rows(5))[0].result(LONG_S) == expected


def test_own_threads_may_submit_but_not_wait() -> None:
    """From a callable and from a callback, submit works, and anything that would wait for itself raises `SelfWait`."""
    refused: list[str] = []
    inner: list[Future[Any]] = []

    def attempt(where: str) -> None:
        (future,) = engine.submit("fn", rows(100))
        inner.append(future)
        for call in (future.result, future.exception, engine.shutdown):
            try:
                call()
            except SelfWait:
                refused.append(where)

    def fn(values: list[float]) -> list[float]:
        if 1.0 in values:
            attempt("callable")
        return values

    gate = Gate()
    _, one = gated(gate)
    with running(pooled(fn), one) as engine:
        engine.submit("fn", rows(1))[0].result(LONG_S)
        (outer,) = engine.submit("chain", rows(2))
        assert gate.entered.wait(LONG_S)
        done = threading.Event()
        outer.add_done_callback(lambda _: attempt("callback"))
        outer.add_done_callback(lambda _: done.set())
        gate.opened.set()
        assert done.wait(LONG_S)
        assert [future.result(LONG_S) for future in inner] == [100.0, 100.0]
    assert refused == ["callable"] * 3 + ["callback"] * 3


def test_shutdown_drains_and_closes_admission() -> None:
    """Everything accepted gets its result, later rows are refused, the executor is freed, and again is harmless."""
    gate = Gate()
    model, one = gated(gate, max_batch_size=2)
    engine = Engine([one], GraphBatching())
    futures = engine.submit("chain", rows(*range(5)))
    assert gate.entered.wait(LONG_S)
    gate.opened.set()
    assert engine.shutdown(timeout=LONG_S)
    assert errors_of(futures) == [None] * 5
    assert errors_of(engine.submit("chain", rows(1))) == ["ShuttingDown"]
    assert engine.stats().rejected["shutting_down"] == 1
    assert model.made[0].ended
    assert engine.shutdown()
    accounts(engine.stats())


def test_a_window_does_not_delay_a_shutdown() -> None:
    """Rows that wait for mates start at once when no more can come."""
    engine = Engine([served(AddChain())], GraphBatching(window_ns=3_600 * 10**9))
    futures = engine.submit("chain", rows(1))
    assert engine.shutdown(timeout=LONG_S)
    assert errors_of(futures) == [None]


def test_shutdown_without_drain_fails_what_waits_at_once() -> None:
    """Waiting rows fail while the node still runs; those in flight fail at its end, without another node."""
    gate = Gate()
    model, one = gated(gate, max_batch_size=2)
    engine = Engine([one], GraphBatching())
    in_flight = engine.submit("chain", rows(1, 2))
    assert gate.entered.wait(LONG_S)
    waiting = engine.submit("chain", rows(3, 4))
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(engine.shutdown(drain=False)))
    thread.start()
    wait(waiting, timeout=LONG_S)
    assert errors_of(waiting) == ["ShuttingDown", "ShuttingDown"]
    assert not any(future.done() for future in in_flight)
    gate.opened.set()
    thread.join(LONG_S)
    assert ended == [True]
    assert errors_of(in_flight) == ["ShuttingDown", "ShuttingDown"]
    stats = engine.stats()
    assert (stats.cancelled, stats.dispatches) == (4, 1)
    assert model.made[0].batches == {}
    accounts(stats)


def test_shutdown_without_drain_lets_a_running_call_finish() -> None:
    """A call has no boundary before its end: its rows get their results, the waiting ones do not."""
    gate = Gate()

    def fn(values: list[float]) -> list[float]:
        gate()
        return values

    engine = Engine([pooled(fn, max_batch_size=1)], GraphBatching())
    futures = engine.submit("fn", rows(1, 2))
    assert gate.entered.wait(LONG_S)
    gate.opened.set()
    assert engine.shutdown(drain=False, timeout=LONG_S)
    assert errors_of(futures)[0] is None
    accounts(engine.stats())


def test_shutdown_without_drain_retries_nothing() -> None:
    """Rows of a call that fails during a shutdown without drain are not run again: they end."""
    gate = Gate()

    def fn(values: list[float]) -> list[float]:
        gate()
        raise ValueError("all of them")

    engine = Engine([pooled(fn, max_batch_size=2)], GraphBatching())
    futures = engine.submit("fn", rows(1, 2))
    assert gate.entered.wait(LONG_S)
    engine.close(drain=False)
    gate.opened.set()
    assert engine.shutdown(timeout=LONG_S)
    assert set(errors_of(futures)) <= {"ShuttingDown", "ExecutionError"}
    accounts(engine.stats())


def test_shutdown_with_a_timeout_gives_up_on_a_stuck_node_but_on_no_future() -> None:
    """When time is up every row fails and the answer is False; once the node returns, a later shutdown says True."""
    gate = Gate()
    model, one = gated(gate, max_batch_size=1)
    engine = Engine([one], GraphBatching())
    futures = engine.submit("chain", rows(1, 2))
    assert gate.entered.wait(LONG_S)
    assert engine.shutdown(timeout=0.01) is False
    assert errors_of(futures) == ["ShuttingDown", "ShuttingDown"]
    accounts(engine.stats())
    gate.opened.set()
    assert engine.shutdown(timeout=LONG_S) is True
    assert model.made[0].ended
    assert engine.stats().dispatches == 1


def test_concurrent_shutdowns_all_return() -> None:
    """Any number of threads may shut down, with and without drain; all of them come back with True."""
    engine = Engine([served(AddChain())], GraphBatching())
    futures = engine.submit("chain", rows(*range(16)))
    ended: list[bool] = []

    def end(drain: bool) -> None:
        ended.append(engine.shutdown(drain=drain, timeout=LONG_S))

    threads = [threading.Thread(target=end, args=(k % 4 != 3,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert ended == [True] * 8
    assert all(future.done() for future in futures)
    accounts(engine.stats())


def test_an_executor_that_cannot_shut_down_does_not_keep_the_engine() -> None:
    """The error is logged, the rest ends as ever."""
    model = AddChain()
    one = served(model)
    model.made[0].broken = {"shutdown"}
    engine = Engine([one], GraphBatching(), on_end=lambda: 1 / 0)  # type: ignore[arg-type]
    assert engine.shutdown(timeout=LONG_S)


class Hopeless:
    """A policy that never works, in a way the scheduler does not catch."""

    needs_table = False

    def decide(self, view: View, now: int) -> None:
        """Never."""
        raise SystemExit("never")


def test_an_engine_that_cannot_go_on_fails_all_rows_and_closes() -> None:
    """A scheduler that fails again and again: rows fail each time, none hangs, and shutdown still returns."""
    engine = Engine([served(AddChain())], Hopeless())
    futures = [engine.submit("chain", rows(k))[0] for k in range(10)]
    wait(futures, timeout=LONG_S)
    assert set(errors_of(futures)) <= {"ExecutionError", "ShuttingDown"}
    assert engine.shutdown(timeout=LONG_S)
    accounts(engine.stats())


class Stopping(MonotonicClock):
    """A clock that breaks when told to."""

    broken = False

    def now_ns(self) -> int:  # type: ignore[override]
        """The time, or an error."""
        if self.broken and threading.current_thread().name.endswith("-engine"):
            raise OSError("no clock")
        return super().now_ns()


def test_an_engine_whose_thread_dies_still_ends() -> None:
    """The worst case, in which not even resetting works: admission closes, shutdown returns and leaves no row open."""
    clock = Stopping()
    engine = Engine([served(AddChain())], GraphBatching(), clock=clock)
    assert engine.submit("chain", rows(1))[0].result(LONG_S) == 112.0
    clock.broken = True
    left = engine.submit("chain", rows(2))
    assert engine.shutdown(timeout=LONG_S)
    assert errors_of(left + engine.submit("chain", rows(3))) == ["ShuttingDown", "ShuttingDown"]


def test_a_stepped_engine_shuts_down_without_a_thread() -> None:
    """Draining steps it to the end on its own clock; later steps do nothing."""
    engine, _ = stepped(served(AddChain()), policy=GraphBatching(window_ns=10**15))
    futures = engine.submit("chain", rows(1, 2))
    assert engine.shutdown()
    assert errors_of(futures) == [None, None]
    assert not engine.step()


def test_an_engine_with_a_thread_is_not_stepped() -> None:
    """Only the engine's own thread may touch its scheduler."""
    with running(served(AddChain())) as engine, pytest.raises(InvalidInput, match="own thread"):
        engine.step()


def test_unknown_models_are_refused() -> None:
    """The error names the models there are."""
    with running(served(AddChain())) as engine, pytest.raises(InvalidInput, match=r"'nope'.*'chain'"):
        engine.submit("nope", rows(1))


def test_an_ended_engine_leaves_nothing_behind() -> None:
    """Threads end, and neither a future nor the module keeps the engine or its model alive."""
    engine = Engine([served(AddChain())], GraphBatching(), name="ending")
    (future,) = engine.submit("chain", rows(1), limit_ns=engine._clock.now_ns() + 10**12)
    future.result(LONG_S)
    assert engine.shutdown(timeout=LONG_S)
    for thread in threading.enumerate():
        if thread.name.startswith("ending-"):
            thread.join(LONG_S)
    assert not any(thread.name.startswith("ending-") for thread in threading.enumerate())
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert future.result() == 112.0


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own; a hang fails by the timeout."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        cwd=ROOT,
        check=False,
    )


PREAMBLE = """
import threading, time
import lazybatch as lb
def slow(values):
    time.sleep(0.02)
    return values
"""


@pytest.mark.parametrize(
    "body",
    [
        "b = lb.LazyBatcher(slow); fs = [b.submit(k) for k in range(100)]",
        "b = lb.LazyBatcher(slow, workers=3); fs = [b.submit(k, timeout=9) for k in range(100)]; fs[0].result()",
        "b = lb.LazyBatcher(slow); b.predict(1); b.cycle = b",
        "b = lb.LazyBatcher(lambda v: time.sleep(3600)); b.submit(1); time.sleep(0.05)",
        "f = lb.LazyBatcher(slow).submit(1)",
        "b = lb.LazyBatcher(slow); b.submit(1).add_done_callback(lambda f: b.submit(2))",
        "b = lb.LazyBatcher(slow); threading.Thread(target=lambda: print(b.predict(3))).start()",
    ],
)
def test_a_forgotten_batcher_does_not_keep_the_process_from_ending(body: str) -> None:
    """Whatever is left undone at exit, a stuck callable included: the process ends, silently, with status 0."""
    done = run_script(PREAMBLE + body)
    assert (done.returncode, done.stderr) == (0, "")


def test_rows_left_at_exit_still_resolve() -> None:
    """At interpreter exit waiting rows fail with `ShuttingDown`; their callbacks run."""
    body = """
    b = lb.LazyBatcher(slow, max_batch_size=1, queue_capacity=8)
    for k in range(8):
        b.submit(k).add_done_callback(lambda f: print(type(f.exception()).__name__, flush=True))
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert len(outcomes) == 8
    assert "ShuttingDown" in outcomes
    assert set(outcomes) <= {"NoneType", "ShuttingDown"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_that_its_batcher_stayed_behind() -> None:
    """In the child submit fails at once instead of waiting for threads that are not there; the decorator restarts."""
    body = """
    import os
    b = lb.LazyBatcher(slow)
    d = lb.batched(slow)
    b.predict(1), d(1)
    pid = os.fork()
    if pid == 0:
        error = b.submit(2).exception(timeout=5)
        ok = type(error) is lb.ShuttingDown and "after the fork" in str(error) and b.shutdown() and d(7) == 7
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert b.predict(3) == 3
    """
    done = run_script(PREAMBLE + textwrap.dedent(body))
    assert done.returncode == 0, done.stderr


def test_rows_are_what_the_model_admitted() -> None:
    """The engine passes rows through untouched: signatures decide who shares a batch."""
    sizes: list[int] = []
    gate = Gate()

    def fn(values: list[float]) -> list[float]:
        gate()
        sizes.append(len(values))
        return values

    with running(pooled(fn)) as engine:
        first = engine.submit("fn", [Row(0.0)])
        assert gate.entered.wait(LONG_S)
        mixed = engine.submit("fn", [Row(1.0, "a"), Row(2.0, "b"), Row(3.0, "a")])
        gate.opened.set()
        assert [future.result(LONG_S) for future in first + mixed] == [0.0, 1.0, 2.0, 3.0]
    assert sorted(sizes) == [1, 1, 2]
