"""Bad rows, limits, overload, shutdown, cancellation and self-waits, through the public face."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

import lazybatch as lb
from tests.engine.kit import LONG_S, Gate, accounts, errors_of, held, upper


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
    with lb.LazyBatcher(held(gate)) as batcher:
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
    with lb.LazyBatcher(held(gate), max_batch_size=1, queue_capacity=2) as batcher:
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

    with lb.LazyBatcher(held(gate), max_batch_size=1, queue_capacity=8) as batcher:
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


def test_an_interrupted_predict_withdraws_its_row() -> None:
    """When the waiting thread is interrupted, its row does not run on for nobody."""
    gate = Gate()
    with lb.LazyBatcher(held(gate), max_batch_size=1, queue_capacity=8) as batcher:
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


class Unspeakable(Exception):
    """Its text cannot be made: what is given for it is no text."""

    def __str__(self) -> str:
        """A number, which `str` refuses."""
        return self.args[0]  # type: ignore[no-any-return]


class Untellable:
    """What has no name."""

    def __repr__(self) -> str:
        """Not even this."""
        raise SystemExit("no name")


@pytest.mark.parametrize("bad", [Unspeakable(404), KeyError(Untellable())], ids=["str", "repr"])
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("isolate", [True, False], ids=["alone", "together"])
def test_an_exception_that_cannot_be_printed_fails_its_row_like_any_other(
    bad: Exception, raised: bool, isolate: bool
) -> None:
    """Its text is made by the caller's code, which may fail: the row fails with the error as its cause, its mates get
    their answers, later rows are served, and shutdown returns."""

    def fn(values: list[int]) -> list[Any]:
        if raised and -1 in values:
            raise bad
        return [bad if value < 0 else value for value in values]

    with lb.LazyBatcher(fn, isolate_failures=isolate) as batcher:
        first, second = batcher.submit_batch([1, -1])
        error = second.exception(LONG_S)
        assert isinstance(error, lb.ExecutionError)
        assert error.__cause__ is bad
        assert f"{type(bad).__name__} (it cannot be printed)" in str(error)
        if isolate or not raised:
            assert first.result(LONG_S) == 1
        assert batcher.submit(3).result(LONG_S) == 3
        assert batcher.shutdown(timeout=LONG_S)
    accounts(batcher.stats())


class Proxy:
    """Stands for something it cannot reach."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """Whose class nobody knows."""
        raise RuntimeError("not bound")


def test_a_result_that_does_not_say_what_it_is_is_a_result() -> None:
    """An object whose class is computed, and cannot be, comes back as it is."""
    proxy = Proxy()
    with lb.LazyBatcher(lambda values: [proxy for _ in values]) as batcher:
        assert batcher.predict(1, timeout=LONG_S) is proxy
    accounts(batcher.stats())
