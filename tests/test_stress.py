"""Everything at once: many clients, random cancels, limits, bad rows, asyncio, failing nodes, shutdown in the middle.

Whatever the interleaving: every accepted future resolves exactly once, a result is the right one, the books balance.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from tests.engine.kit import AddChain, accounts

LONG_S = 120.0
BAD = 13
"""Rows divisible by it make their batch fail, or are failed by the callable."""


def double(values: list[int]) -> list[Any]:
    """A callable with bad rows of two kinds, that sometimes takes its time."""
    if any(value % (3 * BAD) == 0 for value in values):
        raise ValueError("a bad row spoils the call")
    if values[0] % 5 == 0:
        time.sleep(0.001)
    return [KeyError(value) if value % BAD == 0 else value * 2 for value in values]


def spoil(node: int, values: np.ndarray) -> None:
    """A node that fails for bad rows: at the second node a row has had 1 added."""
    if node == 1 and any((int(value) - 1) % BAD == 0 for value in values):
        raise RuntimeError("a bad row spoils the node")
    if node == 2 and int(values[0]) % 7 == 0:
        time.sleep(0.0005)


class Client:
    """One thread that does everything a caller can do, and remembers every future it was given."""

    def __init__(self, batcher: lb.LazyBatcher, seed: int, until: float) -> None:
        self.batcher = batcher
        self.random = random.Random(seed)
        self.until = until
        self.held: list[tuple[str, int, Future[Any]]] = []
        self.calls: Counter[str] = Counter()
        self.resolved: Counter[int] = Counter()
        self.faults: list[BaseException] = []

    def run(self) -> None:
        """Until the time is over, or admission closes; nothing but lazybatch's own errors may come out."""
        acts = [self.submit, self.submit, self.predict, self.predict_batch, self.asynchronous, self.cancel]
        try:
            while time.monotonic() < self.until:
                self.random.choice(acts)()
        except BaseException as error:
            self.faults.append(error)

    def options(self) -> dict[str, Any]:
        """Any mixture of limits, many of them hopeless."""
        options: dict[str, Any] = {"model": self.random.choice(["chain", "double"])}
        if self.random.random() < 0.3:
            options["timeout"] = self.random.choice([0, 1e-6, 0.001, 0.01, 10])
        if self.random.random() < 0.1:
            options["deadline"] = time.monotonic() + self.random.uniform(-0.01, 0.05)
        if self.random.random() < 0.3:
            options["sla"] = self.random.choice([1e-6, 0.01, 1.0])
        options["priority"] = self.random.choice([0, 0, 0, 1, 2])
        return options

    def row(self) -> int:
        """Any row, bad ones among them."""
        return self.random.randrange(1, 1000)

    def submit(self) -> None:
        """Leave the future alone for now; count how often it calls back."""
        options, row = self.options(), self.row()
        future = self.batcher.submit(row, **options)
        number = len(self.held)
        self.held.append((options["model"], row, future))
        future.add_done_callback(lambda _: self.resolved.update([number]))

    def cancel(self) -> None:
        """Withdraw some future, done or not."""
        if self.held:
            self.random.choice(self.held[-50:])[2].cancel()

    def check(self, model: str, row: int, answer: Any) -> None:
        """An answer is the right one for its row, or an error that this row can have."""
        self.calls[type(answer).__name__] += 1
        if isinstance(answer, BaseException):
            allowed = (lb.Overloaded, lb.DeadlineExceeded, lb.ShuttingDown, CancelledError)
            bad = row % BAD == 0 and isinstance(answer, lb.ExecutionError)
            assert bad or isinstance(answer, allowed), (model, row, answer)
        else:
            assert row % BAD != 0, (model, row, answer)
            assert answer == (row * 2 if model == "double" else row + 111.0), (model, row, answer)

    def predict(self) -> None:
        """One row, waited for."""
        options, row = self.options(), self.row()
        try:
            answer = self.batcher.predict(row, **options)
        except lb.LazyBatchError as error:
            answer = error
        self.check(options["model"], row, answer)

    def predict_batch(self) -> None:
        """Several rows, waited for; in order."""
        options, rows = self.options(), [self.row() for _ in range(self.random.randrange(1, 6))]
        try:
            answers = self.batcher.predict_batch(rows, return_exceptions=self.random.random() < 0.5, **options)
        except lb.LazyBatchError:
            return
        for row, answer in zip(rows, answers, strict=True):
            self.check(options["model"], row, answer)

    def asynchronous(self) -> None:
        """A few tasks on an event loop, some of them cancelled."""

        async def main() -> None:
            options = [self.options() for _ in range(4)]
            rows = [self.row() for _ in options]
            calls = (self.batcher.apredict(row, **more) for row, more in zip(rows, options, strict=True))
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            if self.random.random() < 0.3:
                tasks[0].cancel()
            for row, more, answer in zip(
                rows, options, await asyncio.gather(*tasks, return_exceptions=True), strict=True
            ):
                if not isinstance(answer, asyncio.CancelledError):
                    self.check(more["model"], row, answer)

        asyncio.run(main())


def storm(seed: int, *, clients: int, duration_s: float, drain: bool, timeout: float | None) -> Counter[str]:
    """One storm, ended by a shutdown in its middle. Returns how rows ended."""
    chain = AddChain(before=spoil)
    batcher = lb.LazyBatcher(
        {"chain": chain, "double": double},
        table={"chain": chain.table(50_000), "double": table_of_double()},
        policy="lazy" if seed % 2 else "graph",
        sla=0.05,
        late={"chain": "drop"},
        max_batch_size=8,
        queue_capacity=12,
        levels={1: lb.Level(0.002), 2: lb.Level(0.002, "demote")},
        ageing=0.01,
    )
    until = time.monotonic() + duration_s
    crowd = [Client(batcher, seed * 1000 + k, until + 0.2 * duration_s) for k in range(clients)]
    threads = [threading.Thread(target=client.run) for client in crowd]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        accounts(batcher.stats(), drained=False)
        time.sleep(duration_s / 50)
    ended = batcher.shutdown(drain=drain, timeout=timeout)
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "a client hangs"
    assert ended or timeout is not None
    assert batcher.shutdown(timeout=LONG_S)
    outcomes: Counter[str] = Counter()
    for client in crowd:
        assert client.faults == []
        futures = [future for *_, future in client.held]
        assert not wait(futures, timeout=LONG_S).not_done, "an accepted future never resolved"
        for model, row, future in client.held:
            answer = CancelledError() if future.cancelled() else future.exception() or future.result()
            client.check(model, row, answer)
        assert set(client.resolved.values()) <= {1}, "a future resolved twice"
        assert len(client.resolved) == len(futures), "a callback was lost"
        outcomes += client.calls
    stats = batcher.stats()
    accounts(stats)
    assert sum(stats.reasons.values()) == stats.dispatches
    assert stats.models["double"].dropped == 0, "only the chain drops late rows"
    assert chain.made[0].batches == {}, "the executor still holds rows"
    return outcomes


def table_of_double() -> lb.LatencyTable:
    """What `double` roughly takes."""
    return lb.LatencyTable("double", ("call",), (1, 8), ((100_000, 150_000),), ((200_000, 300_000),))


ENDINGS = [(True, None), (False, None), (True, 0.001), (False, 0.0)]


@pytest.mark.parametrize(("drain", "timeout"), ENDINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_loses_nothing(seed: int, drain: bool, timeout: float | None) -> None:
    """Two seconds of everything under each policy and each way to shut down."""
    outcomes = storm(seed, clients=8, duration_s=1.5, drain=drain, timeout=timeout)
    assert outcomes["float"] > 0, "some rows of the chain were answered"
    assert outcomes["int"] > 0, "some rows of the callable were answered"


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_survive_a_storm(seed: int) -> None:
    """The same for a callable with several calls at once."""
    batcher = lb.LazyBatcher({"double": double}, workers=4, max_batch_size=4, queue_capacity=32, max_delay=0.0005)
    until = time.monotonic() + 1.0
    crowd = [Client(batcher, seed * 1000 + k, until) for k in range(8)]
    for client in crowd:
        options = client.options

        def only_double(options: Any = options) -> dict[str, Any]:
            return {**options(), "model": "double"}

        client.options = only_double  # type: ignore[method-assign]
    threads = [threading.Thread(target=client.run) for client in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert batcher.shutdown(timeout=LONG_S)
    for client in crowd:
        assert client.faults == []
        assert all(future.done() for *_, future in client.held)
    accounts(batcher.stats())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 13))
def test_a_long_storm_loses_nothing(seed: int) -> None:
    """Ten seeds, more clients, longer."""
    drain, timeout = ENDINGS[seed % len(ENDINGS)]
    storm(seed, clients=24, duration_s=12.0, drain=drain, timeout=timeout)
