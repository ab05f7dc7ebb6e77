"""Loops under everything at once: whatever the order of arrivals, cancels, failures and shutdown, nothing is lost.

Every accepted future resolves exactly once, a result is the one the row would get alone, and executors end empty.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future, wait
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lazybatch as lb
from lazybatch.core.lengths import LengthGuess
from lazybatch.policies import make_policy, names
from tests.engine.kit import LONG_S, AddChain, accounts, errors_of, served, stepped
from tests.engine.loop_kit import Given, Rounds, expected

NODES = {"first": 3, "middle": 4, "double": 5}
SPANS = {"first": [(0, 2)], "middle": [(1, 2)], "double": [(1, 2), (2, 4)]}
GUESS = LengthGuess.of([1, 2, 2, 4])

rows = st.tuples(
    st.just("row"),
    st.sampled_from(["chain", *SPANS]),
    st.tuples(st.integers(1, 6), st.integers(1, 4)),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([None, None, None, None, None, (1, 0), (2, 1), (0, 2)]),
    st.booleans(),
)
moves = st.one_of(
    rows,
    rows,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 6)),
)


class Storm:
    """An engine without a thread, a static model, three with loops, and every future that was ever given out."""

    def __init__(self, policy: str, isolate: bool) -> None:
        self.policy = policy
        whole = policy == "graph"
        self.models = {
            name: Rounds(NODES[name], *spans, name=name, trips_max=5, same_iteration=name == "middle", whole=whole)
            for name, spans in SPANS.items()
        }
        self.chain = AddChain()
        limits: dict[str, Any] = {"max_batch_size": 3, "queue_capacity": 6, "sla_ns": 10_000_000}
        lanes = [
            served(self.chain, **limits),
            *(
                model.served(lengths=(GUESS,) * len(model.graph.loops), table=model.table(1_000_000, 300_000), **limits)
                for model in self.models.values()
            ),
        ]
        chosen = make_policy(policy, [one.spec for one in lanes])
        self.engine, self.clock = stepped(*lanes, policy=chosen, isolate_failures=isolate)
        for model in self.models.values():
            model.before = lambda node, rows: self.clock.advance(1_000_000 + rows)
        self.held: list[tuple[str, Any, Future[Any], list[int]]] = []
        self.resolved: Counter[int] = Counter()

    def row(
        self, name: str, trips: tuple[int, ...], known: tuple[bool, ...], bad: tuple[int, int] | None, listen: bool
    ) -> None:
        """Hand a row in."""
        heard: list[int] = []
        if name == "chain":
            given: Any = float(len(self.held))
            futures = self.engine.submit(name, [self.chain.admit(given)])
        else:
            model = self.models[name]
            loops = len(model.graph.loops)
            told = tuple(k and t <= 5 for k, t in zip(known, trips, strict=True))
            given = Given(len(self.held), trips[:loops], told[:loops], bad)
            sink = (lambda step: heard.append(int(step["value"]))) if listen else None
            futures = self.engine.submit(name, [model.admit(given)], sink=sink)
        number = len(self.held)
        self.held.append((name, given, futures[0], heard if listen else []))
        futures[0].add_done_callback(lambda _: self.resolved.update([number]))

    def play(self, lines: list[tuple[Any, ...]]) -> None:
        """Carry out moves, checking the scheduler after every step."""
        for act, *arguments in lines:
            if act == "row":
                self.row(*arguments)
            elif act == "cancel":
                if self.held:
                    self.held[arguments[0] % len(self.held)][2].cancel()
            else:
                for _ in range(arguments[0]):
                    self.engine.step()
                    self.engine.scheduler.validate()

    def check(self, isolate: bool) -> None:
        """Everything has ended, as it should have."""
        assert self.resolved == dict.fromkeys(range(len(self.held)), 1)
        for name, row, future, heard in self.held:
            (error,) = errors_of([future])
            if name == "chain":
                assert error is not None or future.result() == row + 111.0
                continue
            answer = expected(self.models[name], row)
            steps = [value for steps in answer.steps for value in steps]
            assert heard == steps[: len(heard)]
            if error is None:
                assert future.result() == answer
                assert heard in ([], steps)
            elif error == "ExecutionError" and isolate:
                assert row.bad is not None
        accounts(self.engine.stats())
        assert self.engine.stats().policy_failures == 0
        for model in self.models.values():
            assert model.made[0].batches == {}
            assert model.made[0].ended
        assert self.chain.made[0].batches == {}
        assert self.engine._driver._held.members == {}
        assert self.engine._driver._rows.entries == {}


@pytest.mark.parametrize("policy", names())
@settings(max_examples=30)
@given(lines=st.lists(moves, max_size=50), isolate=st.booleans(), drain=st.booleans())
def test_no_row_is_lost(policy: str, lines: list[tuple[Any, ...]], isolate: bool, drain: bool) -> None:
    """Any moves, any policy, with and without isolation, both ways to shut down."""
    storm = Storm(policy, isolate)
    storm.play(lines)
    assert storm.engine.shutdown(drain=drain)
    storm.check(isolate)


class Client:
    """One thread that submits, streams, cancels and checks every answer."""

    def __init__(self, batcher: lb.LazyBatcher, models: dict[str, Any], seed: int) -> None:
        self.batcher, self.models, self.random = batcher, models, random.Random(seed)
        self.futures: list[Future[Any]] = []
        self.faults: list[BaseException] = []
        self.answers = 0

    def run(self) -> None:
        """A few hundred rows."""
        try:
            for k in range(120):
                self.act(k)
        except BaseException as error:
            self.faults.append(error)

    def act(self, k: int) -> None:
        """One row, in any way."""
        name = self.random.choice(list(self.models))
        model = self.models[name]
        if name == "chain":
            assert self.batcher.predict(float(k), model=name) == k + 111.0
            return
        bad = (1, self.random.randrange(3)) if self.random.random() < 0.1 else None
        given = Given(k, tuple(self.random.randrange(1, 8) for _ in model.graph.loops), bad=bad)
        answer = expected(model, given)
        way = self.random.random()
        try:
            if way < 0.5:
                future = self.batcher.submit(given, model=name)
                self.futures.append(future)
                if way < 0.15:
                    future.cancel()
                return
            with self.batcher.stream(given, model=name) as stream:
                heard = []
                for step in stream:
                    heard.append(int(step["value"]))
                    if way > 0.85:
                        return
            assert stream.future.result(LONG_S) == answer
            assert heard == [value for steps in answer.steps for value in steps]
            self.answers += 1
        except lb.Overloaded:
            pass
        except lb.ExecutionError:
            assert bad is not None


@pytest.mark.parametrize("policy", ["lookahead", "continuous", "lazy"])
def test_many_threads_at_once(policy: str) -> None:
    """Static and looping models under one batcher with its threads: every answer and every step is right."""
    models: dict[str, Any] = {"chain": AddChain()}
    for name, spans in SPANS.items():
        models[name] = Rounds(NODES[name], *spans, name=name, trips_max=5)
    tables = {name: model.table(20_000) for name, model in models.items()}
    batcher = lb.LazyBatcher(models, table=tables, policy=policy, max_batch_size=4, queue_capacity=64, sla=5.0)
    crowd = [Client(batcher, models, seed) for seed in range(6)]
    threads = [threading.Thread(target=client.run) for client in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "a client hangs"
    assert batcher.shutdown(timeout=LONG_S)
    for client in crowd:
        assert client.faults == []
        assert not wait(client.futures, timeout=0).not_done
        assert client.answers > 0
    accounts(batcher.stats())
    assert all(model.made[0].batches == {} for model in models.values())
