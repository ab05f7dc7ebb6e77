"""Streaming: steps of a row as they are made, its result behind them, and its end when nobody wants them any more."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.core.lengths import LengthGuess
from tests.engine.kit import LONG_S, AddChain, Gate, accounts
from tests.engine.loop_kit import Given, Rounds, expected, steps_of

ENDLESS = 10**9


def batcher_of(model: Any, **options: Any) -> lb.LazyBatcher:
    """A batcher that joins rows at every step."""
    return lb.LazyBatcher(model, policy=options.pop("policy", "continuous"), **options)


def values(steps: list[dict[str, Any]]) -> list[int]:
    """What the steps brought."""
    return [int(step["value"]) for step in steps]


@pytest.mark.parametrize("policy", ["continuous", "cellular", "graph", "serial"])
def test_steps_then_the_result(policy: str) -> None:
    """The iterator gives every step as a dict and ends; the future has the row's result."""
    model = Rounds(3, (1, 2), whole=policy == "graph")
    with batcher_of(model, policy=policy) as batcher:
        streams = [(given, batcher.stream(given)) for given in (Given(1, (4,)), Given(2, (1,)), Given(3, (7,)))]
        for given, stream in streams:
            steps = list(stream)
            assert all(type(step) is dict for step in steps)
            assert values(steps) == steps_of(model, given)
            assert stream.future.result(LONG_S) == expected(model, given)
            assert list(stream) == []
        accounts(batcher.stats(), drained=False)


def test_asynchronous_steps() -> None:
    """The same with async for, many at once on one event loop."""
    model = Rounds(2, (0, 1))

    async def one(given: Given) -> tuple[list[int], Any]:
        stream = batcher.astream(given)
        steps = [step async for step in stream]
        return values(steps), await asyncio.wrap_future(stream.future)

    async def main() -> None:
        given = [Given(k, (1 + k % 5,)) for k in range(12)]
        answers = await asyncio.gather(*map(one, given))
        assert answers == [(steps_of(model, one), expected(model, one)) for one in given]

    with batcher_of(model) as batcher:
        asyncio.run(main())


def gone(batcher: lb.LazyBatcher, model: Rounds) -> None:
    """The row is cancelled, and soon its place in the executor is free."""
    assert batcher.stats().cancelled == 1
    assert batcher.predict(Given(5, (2,))) == expected(model, Given(5, (2,)))
    assert batcher.shutdown(timeout=LONG_S)
    assert model.made[0].batches == {}


@pytest.mark.parametrize("way", ["close", "with", "drop", "future"])
def test_leaving_a_stream_withdraws_the_row(way: str) -> None:
    """Closing, leaving the with block, letting go and cancelling the future all free the row mid-loop."""
    model = Rounds(2, (0, 1))
    batcher = batcher_of(model, max_batch_size=1)
    stream = batcher.stream(Given(1, (ENDLESS,)))
    for _ in range(3):
        next(stream)
    if way == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
        assert stream.future.cancelled()
    elif way == "with":
        with stream as same:
            next(same)
        with pytest.raises(StopIteration):
            next(stream)
    elif way == "drop":
        del stream
        gc.collect()
    else:
        assert stream.future.cancel()
        with pytest.raises(CancelledError):
            for _ in stream:
                pass
    gone(batcher, model)


def test_breaking_out_of_a_loop_over_a_fresh_stream_withdraws_the_row() -> None:
    """A stream that only the for statement held is let go with it."""
    model = Rounds(2, (0, 1))
    batcher = batcher_of(model, max_batch_size=1)
    for _ in batcher.stream(Given(1, (ENDLESS,))):
        break
    gc.collect()
    gone(batcher, model)


@pytest.mark.parametrize("way", ["aclose", "with", "drop", "task", "break"])
def test_leaving_an_asynchronous_stream_withdraws_the_row(way: str) -> None:
    """The same for asyncio, and cancelling the task that waits."""
    model = Rounds(2, (0, 1))
    batcher = batcher_of(model, max_batch_size=1)

    async def consume() -> None:
        async for _ in batcher.astream(Given(1, (ENDLESS,))):
            pass

    async def main() -> None:
        if way == "task":
            task = asyncio.create_task(consume())
            while not batcher.stats().in_flight:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        if way == "break":
            async for _ in batcher.astream(Given(1, (ENDLESS,))):
                break
            return
        stream = batcher.astream(Given(1, (ENDLESS,)))
        await anext(stream)
        if way == "aclose":
            await stream.aclose()
            assert [step async for step in stream] == []
        elif way == "with":
            async with stream:
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(main())
    gc.collect()
    gone(batcher, model)


def test_a_row_cancelled_elsewhere_ends_an_asynchronous_stream() -> None:
    """Whoever waits for the next step is told so, as `apredict` tells it."""
    model = Rounds(2, (0, 1))

    async def main() -> None:
        stream = batcher.astream(Given(1, (ENDLESS,)))
        await anext(stream)
        assert stream.future.cancel()
        with pytest.raises(asyncio.CancelledError):
            async for _ in stream:
                pass

    with batcher_of(model) as batcher:
        asyncio.run(main())


def test_errors_are_raised_behind_the_steps_made_before() -> None:
    """A row whose third step raises gives two steps, then its error; so does a row cut off by its time limit."""
    model = Rounds(2, (0, 1))
    with batcher_of(model) as batcher:
        stream = batcher.stream(Given(1, (9,), bad=(0, 2)))
        assert values([next(stream), next(stream)]) == steps_of(model, Given(1, (2,)))
        with pytest.raises(lb.ExecutionError, match="cannot bear node 0"):
            next(stream)
        assert list(stream) == []
        endless = batcher.stream(Given(2, (ENDLESS,)), timeout=0.05)
        with pytest.raises(lb.DeadlineExceeded, match="while it was being run"):
            for _ in endless:
                pass


def test_errors_of_asynchronous_streams() -> None:
    """The same for asyncio."""
    model = Rounds(2, (0, 1))

    async def main() -> None:
        stream = batcher.astream(Given(1, (9,), bad=(0, 2)))
        assert values([await anext(stream), await anext(stream)]) == steps_of(model, Given(1, (2,)))
        with pytest.raises(lb.ExecutionError, match="cannot bear node 0"):
            await anext(stream)
        assert [step async for step in stream] == []

    with batcher_of(model) as batcher:
        asyncio.run(main())


def test_rows_that_are_not_admitted() -> None:
    """A full queue, a limit that has passed, a batcher that is shut down: raised at the first step."""
    gate = Gate()
    model = Rounds(2, (0, 1), before=lambda node, rows: gate())
    batcher = batcher_of(model, max_batch_size=1, queue_capacity=1)
    running = batcher.stream(Given(1, (1,)))
    assert gate.entered.wait(LONG_S)
    waiting = batcher.stream(Given(2, (1,)))
    with pytest.raises(lb.Overloaded):
        next(batcher.stream(Given(3, (1,))))
    with pytest.raises(lb.DeadlineExceeded):
        next(batcher.stream(Given(3, (1,)), timeout=0))
    gate.opened.set()
    assert len(list(running)) == len(list(waiting)) == 1
    batcher.shutdown()
    with pytest.raises(lb.ShuttingDown):
        next(batcher.stream(Given(3, (1,))))


def test_shutdown_in_the_middle() -> None:
    """Without drain the iterator ends with `ShuttingDown`."""
    model = Rounds(2, (0, 1))
    batcher = batcher_of(model)
    stream = batcher.stream(Given(1, (ENDLESS,)))
    next(stream)
    assert batcher.shutdown(drain=False, timeout=LONG_S)
    with pytest.raises(lb.ShuttingDown):
        for _ in stream:
            pass


def test_what_cannot_be_streamed() -> None:
    """A model without loops makes no steps; bad inputs, limits and names are refused as by submit."""
    model = Rounds(2, (0, 1))
    with batcher_of({"chain": AddChain(), "rounds": model}, table={"chain": AddChain().table()}) as batcher:
        with pytest.raises(lb.InvalidInput, match="model 'chain' has no loop, so it makes no steps to stream"):
            batcher.stream(1.0, model="chain")
        with pytest.raises(lb.InvalidInput, match="model 'chain' has no loop"):
            batcher.astream(1.0, model="chain")
        with pytest.raises(lb.InvalidInput, match="must be a Given"):
            batcher.stream("text", model="rounds")
        with pytest.raises(lb.InvalidInput, match="several models"):
            batcher.stream(Given(1, (1,)))
        with pytest.raises(lb.InvalidInput, match="timeout"):
            batcher.stream(Given(1, (1,)), model="rounds", timeout=-1)
        with pytest.raises(TypeError):
            batcher.stream(Given(1, (1,)), model="rounds", speed=3)
        assert batcher.stats().models["rounds"].rejected["invalid"] == 1


def test_a_consumer_that_never_reads_holds_up_nobody() -> None:
    """Its steps pile up, no more than it makes; others are served meanwhile."""
    model = Rounds(2, (0, 1))
    with batcher_of(model) as batcher:
        slow = batcher.stream(Given(1, (500,)))
        for k in range(20):
            assert batcher.predict(Given(k, (3,))) == expected(model, Given(k, (3,)))
        assert slow.future.result(LONG_S) == expected(model, Given(1, (500,)))
        assert values(list(slow)) == steps_of(model, Given(1, (500,)))


def test_waiting_for_a_step_on_the_batchers_own_thread_is_refused() -> None:
    """A callback that would wait for itself gets `SelfWait`; steps that are there already may be read."""
    model = Rounds(2, (0, 1))
    seen: list[BaseException] = []
    told = threading.Event()

    def call_back(_: Any) -> None:
        try:
            with batcher.stream(Given(2, (ENDLESS,))) as stream:
                next(stream)
        except BaseException as error:
            seen.append(error)
        told.set()

    with batcher_of(model) as batcher:
        gate = Gate()
        model.before = lambda node, rows: gate()
        future = batcher.submit(Given(1, (1,)))
        future.add_done_callback(call_back)
        gate.opened.set()
        assert told.wait(LONG_S)
        assert isinstance(seen[0], lb.SelfWait)


GUESS = LengthGuess.of([1, 2, 3])


@pytest.mark.parametrize("lengths", [GUESS, [GUESS], {"loop0": GUESS}, {"rounds": GUESS}, {"rounds": {"loop0": GUESS}}])
def test_lengths_reach_the_policy(lengths: Any) -> None:
    """A guess for the only loop, guesses in order, by loops' names, or by model's name: the lane has them."""
    model = Rounds(2, (0, 1), trips_max=9)
    with batcher_of(model, policy="lazy", table=model.table(), lengths=lengths) as batcher:
        (lane,) = batcher._engine._driver.scheduler.lanes
        assert lane.spec.lengths == (GUESS,)
        assert lane.loops == model.graph.loops
        assert batcher.predict(Given(1, (2,))) == expected(model, Given(1, (2,)))


@pytest.mark.parametrize("policy", ["lookahead", "lazy", "oracle", "aimd", "continuous", "cellular", "serial", "graph"])
def test_every_policy_serves_loops_by_name(policy: str) -> None:
    """Thirty rows at once, under each policy: every answer is that of the row alone."""
    model = Rounds(4, (1, 2), trips_max=6, whole=policy == "graph")
    table = model.table(20_000, 2_000)
    with batcher_of(model, policy=policy, table=table, lengths=GUESS, sla=5.0, max_batch_size=8) as batcher:
        given = [Given(k, (1 + k % 8,)) for k in range(30)]
        futures = batcher.submit_batch(given)
        assert [future.result(LONG_S) for future in futures] == [expected(model, one) for one in given]
        stats = batcher.stats()
        assert stats.truncated == sum(one.trips[0] > 6 for one in given)
        assert stats.policy_failures == 0
        assert all(str(one) for one in batcher.decisions(20))
    assert model.made[0].batches == {}


class Waits:
    """A stream's queue that says when somebody is about to wait for its next step."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.asked = threading.Semaphore(0)
        self.empty, self.put = queue.empty, queue.put

    def get(self) -> Any:
        """Say so, and wait."""
        self.asked.release()
        return self.queue.get()


def test_threads_that_share_a_stream_all_come_to_its_end() -> None:
    """All wait, one gets the only step, and nobody is left waiting."""
    gate, got = Gate(), list[int]()
    model = Rounds(2, (0, 1), before=lambda node, _: gate() if node == 0 else None)
    with batcher_of(model) as batcher:
        stream = batcher.stream(Given(1, (1,)))
        stream._arrived = waits = Waits(stream._arrived)  # type: ignore[assignment]
        threads = [threading.Thread(target=lambda: got.extend(values(list(stream))), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert all(waits.asked.acquire(timeout=LONG_S) for _ in threads)
        gate.opened.set()
        for thread in threads:
            thread.join(LONG_S)
        assert not any(thread.is_alive() for thread in threads)
    assert got == steps_of(model, Given(1, (1,)))
