"""Padded models through LazyBatcher: rows of many lengths, all policies, and every answer is the unpadded row's own."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.policies.riding import Riding
from lazybatch.core.task import Task
from lazybatch.metrics import Observer
from lazybatch.policies import names
from tests.engine.kit import LONG_S, accounts
from tests.executors.padding.test_padded import TO, alone, model, plain, same, text
from tests.serving import flat_table

__all__ = ["model", "plain"]  # fixtures


class Starts(Observer):
    """Keeps how many rows each sub-batch began with, by lane."""

    def __init__(self) -> None:
        self.opened_rows: list[tuple[str, int]] = []

    def opened(self, now_ns: int, task: Task) -> None:
        """Note it."""
        self.opened_rows.append((task.model, len(task.opened)))


def table(model: Any, gain: bool = True) -> lb.LatencyTable:
    """Flat tables of every length: batches cost little more than one row where there is gain, else 16 times as much."""
    flat = flat_table(model)
    times = tuple((20_000, 25_000 if gain else 320_000) for _ in flat.nodes)
    longest = replace(flat, median_ns=times, high_ns=times)
    return replace(longest, shorter=dict.fromkeys(TO[:-1], longest))


@pytest.mark.parametrize("policy", names())
def test_random_arrivals_of_mixed_lengths_under_every_policy(model: Any, plain: Any, policy: str) -> None:
    """Rows of all lengths in bursts, some cancelled on their way: who is answered gets the unpadded row's answer."""
    chance = random.Random(policy)
    futures: list[tuple[dict[str, Any], Future[Any]]] = []
    options = {"table": table(model), "sla": 10.0, "max_batch_size": 6}
    with lb.LazyBatcher(model, policy=policy, **options) as batcher:
        for burst in range(25):
            for _ in range(chance.randint(1, 8)):
                row = text(chance.randint(1, TO[-1]), seed=burst)
                futures.append((row, batcher.submit(row)))
            if chance.random() < 0.3:
                futures[-1][1].cancel()
            time.sleep(chance.random() * 0.002)
    answered = 0
    for row, future in futures:
        if not future.cancelled():
            same(future.result(LONG_S), alone(plain, row))
            answered += 1
    stats = batcher.stats()
    assert answered == stats.completed > 20
    assert stats.policy_failures == 0
    accounts(stats)


def held(batcher: lb.LazyBatcher, rows: list[dict[str, Any]]) -> list[Future[Any]]:
    """Rows of one call: they are there when the scheduler first decides."""
    return list(batcher.submit_batch(rows))


@pytest.mark.parametrize(("gain", "ride", "batches"), [(True, True, 1), (True, False, 3), (False, True, 3)])
def test_narrower_rows_ride_where_padding_is_cheaper(
    model: Any, plain: Any, gain: bool, ride: bool, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of each length at once, the longest first: one batch where batching gains and the rule allows riding."""
    monkeypatch.setattr(model, "pad", replace(model.pad, ride=ride))
    rows = [text(length) for length in (16, 8, 3)]
    starts = Starts()
    options = {"table": table(model, gain), "policy": "graph", "observers": [starts]}
    with lb.LazyBatcher(model, **options) as batcher:
        for row, future in zip(rows, held(batcher, rows), strict=True):
            same(future.result(LONG_S), alone(plain, row))
    assert len(starts.opened_rows) == batches
    assert starts.opened_rows[0] == ("masked/16", 3 if batches == 1 else 1)


def test_what_padding_wastes_is_metered(model: Any) -> None:
    """Own lengths and padded lengths, per model and in total; riders count at the length of their batch."""
    rows = [text(length) for length in (16, 8, 3)]
    with lb.LazyBatcher({"a": model, "b": model}, table={"a": table(model)}, policy="graph") as batcher:
        for future in batcher.submit_batch(rows, model="a"):
            future.result(LONG_S)
        batcher.predict(text(5), model="b")
    stats = batcher.stats()
    assert (stats.models["a"].tokens, stats.models["a"].padded_tokens) == (27, 48)
    assert (stats.models["b"].tokens, stats.models["b"].padded_tokens) == (5, 8)
    assert (stats.tokens, stats.padded_tokens) == (32, 56)
    assert stats.as_dict()["padded_tokens"] == 56
    assert set(stats.models) == {"a", "b"}
    assert stats.models["a"].completed == 3


def test_one_queue_for_all_lengths(model: Any) -> None:
    """A call of rows of several lengths is admitted as a whole or not at all, against one capacity."""
    with lb.LazyBatcher(model, policy="graph", queue_capacity=16) as batcher:
        futures = batcher.submit_batch([text(1 + k % 16) for k in range(17)])
        assert all(isinstance(future.exception(LONG_S), lb.Overloaded) for future in futures)
        assert len(batcher.predict_batch([text(1 + k) for k in range(16)])) == 16
        with pytest.raises(lb.InvalidInput, match=r"row 1 of the batch: .*longer than the longest padded length, 16"):
            batcher.predict_batch([text(2), text(17)])
    stats = batcher.stats()
    assert (stats.accepted, stats.rejected["overloaded"], stats.rejected["invalid"]) == (16, 17, 2)


def test_a_row_that_fails_in_a_ride_fails_alone(model: Any, plain: Any) -> None:
    """An id that is in no vocabulary rides with a good row: the good one is answered, the bad one says the node."""
    rows = [text(16), {"ids": np.array([1, 10_000, 3])}]
    with lb.LazyBatcher(model, table=table(model), policy="graph") as batcher:
        good, bad = held(batcher, rows)
        same(good.result(LONG_S), alone(plain, rows[0]))
        with pytest.raises(lb.ExecutionError):
            bad.result(LONG_S)
    stats = batcher.stats()
    assert (stats.completed, stats.failed, stats.retried) == (1, 1, 2)


def test_decisions_and_tables_go_by_the_models_name(model: Any) -> None:
    """Callers know one model; what was decided for its lanes is found under its name, and says the length."""
    with lb.LazyBatcher(model, table=table(model), policy="lookahead") as batcher:
        batcher.predict(text(3))
        assert [one.model for one in batcher.decisions(model="masked")] == ["masked/4"]
        assert set(batcher.models) == set(batcher.tables) == set(batcher.memory) == {"masked"}
        with pytest.raises(lb.InvalidInput, match="unknown model 'masked/4'"):
            batcher.predict(text(3), model="masked/4")
        with pytest.raises(lb.InvalidInput, match="model 'masked' has no loop"):
            batcher.stream(text(3))


def test_every_length_is_measured(model: Any, tmp_path: Any) -> None:
    """A profile holds a table per length, of this model and no other; the policy with riders gets the right ones."""
    seen: list[float] = []
    made = lb.profile(model, (1, 2), budget_s=0.4, progress=lambda at: seen.append(at.share), resume=tmp_path / "r")
    assert set(made.shorter) == {4, 8}
    assert made.provenance["padded_lengths"] == [4, 8, 16]
    assert seen == sorted(seen)
    assert not list(tmp_path.iterdir())
    with lb.LazyBatcher(model, table=made, max_batch_size=2) as batcher:
        batcher.predict(text(3))
        policy = batcher._engine.scheduler._guarded.policy
        assert isinstance(policy, Riding)
        lanes = {lane.model: lane.spec for lane in batcher._engine.scheduler.lanes}
    assert lanes["masked/4"].latency is not None
    assert made.engine is not None
    assert made.shorter[4].engine is not None
    assert lanes["masked/4"].latency.median_ns == made.shorter[4].dispatched().median_ns
    assert [lanes[f"masked/{length}"].wider for length in TO] == [("masked/8", "masked/16"), ("masked/16",), ()]


def test_rows_of_our_own_are_measured_where_there_are_some(model: Any) -> None:
    """Rows of one length only: the other lengths are measured with made-up ones."""
    made = lb.profile(model, (1,), budget_s=0.1, repeats=3, inputs=[text(3), text(4)])
    assert set(made.shorter) == {4, 8}


def test_a_target_for_all_but_the_longest_rows(model: Any, plain: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A target is refused where not even the shortest rows can meet it, and of lengths that cannot, the log tells."""
    base, nodes = replace(table(model), shorter={}), len(model.graph)
    at = {length: replace(base, median_ns=((ms * 1_000_000,) * 2,) * nodes) for length, ms in ((4, 10), (8, 50))}
    tables = replace(base, median_ns=((10**9,) * 2,) * nodes, high_ns=((10**9,) * 2,) * nodes, shorter=at)
    options: dict[str, Any] = {"table": tables, "policy": "serial", "late": "drop"}
    refused = rf"model 'masked': sla=0.009 s cannot be met: one row alone takes {nodes / 100:.6f} s"
    with pytest.raises(lb.InvalidInput, match=refused):
        lb.LazyBatcher(model, sla=0.009, **options)
    sla = nodes * 0.06
    with lb.LazyBatcher(model, sla=sla, **options) as batcher:
        same(batcher.predict(text(3)), alone(plain, text(3)))
    warned = [record.getMessage() for record in caplog.records if "is below what a row" in record.getMessage()]
    assert warned == [
        f"model 'masked': sla={sla:g} s is below what a row of this length takes alone, {nodes:.6f} s (padded to 16)"
    ]
