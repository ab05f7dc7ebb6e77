"""The engine with its threads: admission, limits while a node runs, failures, its own threads."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest

from lazybatch.core.policies import Choice, GraphBatching, View
from lazybatch.engine import ServedModel
from lazybatch.errors import DeadlineExceeded, ExecutionError, InvalidInput, SelfWait
from lazybatch.executors.base import Row
from tests.engine.kit import LONG_S, AddChain, Gate, accounts, errors_of, gated, pooled, rows, running, served


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


def test_an_idle_engine_wakes_to_drop_what_became_hopeless() -> None:
    """Nothing arrives and nothing runs, for the window is an hour; the row fails all the same."""
    one = served(AddChain(), late="drop")
    with running(one, policy=GraphBatching(window_ns=3_600_000_000_000)) as engine:
        (future,) = engine.submit("chain", rows(1), sla_ns=20_000_000)
        assert isinstance(future.exception(LONG_S), DeadlineExceeded)
        assert engine.stats().dropped == 1


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


def test_threads_that_cannot_be_had_cost_one_task_and_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a worker thread the task of the moment fails, saying why; without one for limits the row is admitted all
    the same. What comes later is served."""
    refused, start = {"lazybatch-worker-0", "lazybatch-timers"}, threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with running(pooled(lambda values: values)) as engine:
        monkeypatch.setattr(threading.Thread, "start", start_some)
        far_ns = engine._clock.now_ns() + 3_600 * 10**9
        error = engine.submit("fn", rows(1), limit_ns=far_ns)[0].exception(LONG_S)
        assert isinstance(error, ExecutionError)
        assert "can't start new thread" in str(error)
        assert engine.submit("fn", rows(2), limit_ns=far_ns)[0].result(LONG_S) == 2.0
        assert refused == set()
    accounts(engine.stats())


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


def test_an_engine_with_a_thread_is_not_stepped() -> None:
    """Only the engine's own thread may touch its scheduler."""
    with running(served(AddChain())) as engine, pytest.raises(InvalidInput, match="own thread"):
        engine.step()


def test_unknown_models_are_refused() -> None:
    """The error names the models there are."""
    with running(served(AddChain())) as engine, pytest.raises(InvalidInput, match=r"'nope'.*'chain'"):
        engine.submit("nope", rows(1))


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
