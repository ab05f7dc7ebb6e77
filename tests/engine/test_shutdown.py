"""Shutdown in every way: nothing hangs, and no future is left open."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from lazybatch.core.policies import GraphBatching, View
from lazybatch.core.request import Request
from lazybatch.engine import Engine, MonotonicClock
from lazybatch.metrics import Observer, Outcome
from tests.engine.kit import LONG_S, AddChain, Gate, accounts, errors_of, gated, pooled, rows, served, stepped


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


def test_a_callback_that_interrupts_a_shutdown_loses_no_row() -> None:
    """It reaches whoever shuts down, as it is on their thread; but first every row behind it is told."""
    gate = Gate()
    _, one = gated(gate, max_batch_size=1)
    engine = Engine([one], GraphBatching())
    engine.submit("chain", rows(0))
    assert gate.entered.wait(LONG_S)
    waiting = engine.submit("chain", rows(*range(1, 5)))

    class Interrupt(KeyboardInterrupt):
        """One that says of itself that it is false."""

        def __bool__(self) -> bool:
            """So."""
            return False

    def interrupt(number: int) -> None:
        raise Interrupt(number)

    for number, future in enumerate(waiting[:2]):
        future.add_done_callback(lambda _, number=number: interrupt(number))  # type: ignore[misc]
    with pytest.raises(KeyboardInterrupt, match="0"):
        engine.shutdown(drain=False)
    assert errors_of(waiting) == ["ShuttingDown"] * 4
    gate.opened.set()
    assert engine.shutdown(timeout=LONG_S)
    accounts(engine.stats())


class Exits(Observer):
    """Counts rows that were not admitted."""

    def __init__(self) -> None:
        self.rejected = 0

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Count."""
        self.rejected += outcome is Outcome.REJECTED


def test_an_engine_that_has_ended_keeps_nothing_of_what_it_refuses() -> None:
    """Observers hear of refusals while there is a thread to tell them; later ones are only counted."""
    exits = Exits()
    engine, _ = stepped(served(AddChain(), queue_capacity=1), observers=[exits])
    engine.submit("chain", rows(1, 2))
    assert engine.shutdown()
    assert exits.rejected == 2
    for _ in range(10):
        assert errors_of(engine.submit("chain", rows(1))) == ["ShuttingDown"]
        assert engine.shutdown()
    assert len(engine._mailbox) == 0
    assert engine.stats().rejected["shutting_down"] == 10


@pytest.mark.parametrize("failing", ["_timers", "_delivery", "_driver"])
def test_an_engine_that_cannot_go_on_still_frees_its_models(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors are shut down with nothing left in them, rows are told and the end is reported, each although another
    step of the end fails."""
    model, ended, clock = AddChain(), threading.Event(), Stopping()
    one = served(model)
    gate = Gate()
    model.before = lambda node, _: gate() if node == 1 else None
    engine = Engine([one], GraphBatching(), clock=clock, on_end=ended.set)
    part = getattr(engine, failing)
    stop = "end" if failing == "_driver" else "stop"
    stopped = getattr(part, stop)

    def stop_and_fail() -> None:
        stopped()
        raise SystemExit("no")

    monkeypatch.setattr(part, stop, stop_and_fail)
    futures = engine.submit("chain", rows(1))
    assert gate.entered.wait(LONG_S)
    clock.broken = True
    gate.opened.set()
    assert ended.wait(LONG_S)
    assert engine.shutdown(timeout=LONG_S)
    assert errors_of(futures) == ["ShuttingDown"]
    assert model.made[0].ended
    assert model.made[0].batches == {}
