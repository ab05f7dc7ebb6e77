"""Policies as users choose them: the default, names, objects, and the reasons they are given afterwards."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.core.policies import GraphBatching, Serial
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.policies import names
from tests.engine.kit import LONG_S, AddChain, Gate, accounts, gated, held, upper


def policy_of(batcher: lb.LazyBatcher) -> Any:
    """The policy that decides in a batcher."""
    return batcher._engine.scheduler._guarded.policy


def table_of_upper() -> tuple[lb.CallableModel, lb.LatencyTable]:
    """A callable and a measured table of it."""
    model = lb.CallableModel(upper)
    return model, lb.profile(model, (1, 2), inputs=["a", "b"], budget_s=0.05)


def test_the_default_is_lookahead_where_there_is_a_table() -> None:
    """Models, measured on the spot where no table is given, and callables with a table."""
    model = AddChain()
    with lb.LazyBatcher(model, table=model.table()) as batcher:
        assert isinstance(policy_of(batcher), Lookahead)
        assert batcher.predict_batch([1, 2, 3]) == [112, 113, 114]
    with lb.LazyBatcher(AddChain()) as batcher:
        assert isinstance(policy_of(batcher), Lookahead)
        assert batcher.tables["chain"] is not None
    one_node, table = table_of_upper()
    with lb.LazyBatcher(one_node, table=table) as batcher:
        assert isinstance(policy_of(batcher), Lookahead)
        assert batcher.predict_batch(list("abc")) == list("ABC")
    function = lb.batched(table=table)(upper)
    with function:
        assert function("a") == "A"
        assert isinstance(policy_of(function.batcher), Lookahead)


def test_the_default_is_graph_batching_elsewhere() -> None:
    """A callable without a table, several workers, or a knob of graph batching that was turned."""
    one_node, table = table_of_upper()
    for batcher in (
        lb.LazyBatcher(upper),
        lb.LazyBatcher(one_node, table=table, workers=2),
        lb.LazyBatcher(one_node, table=table, max_delay=0.001),
        lb.LazyBatcher(one_node, table=table, size_budget=8),
    ):
        with batcher:
            assert type(policy_of(batcher)) is GraphBatching
            assert batcher.predict_batch(list("abc")) == list("ABC")


@pytest.mark.parametrize("name", names())
def test_every_name_serves(name: str) -> None:
    """All policies are there by name, and answer."""
    model = AddChain()
    with lb.LazyBatcher(model, table=model.table(1000), sla=1.0, policy=name) as batcher:
        assert batcher.predict_batch(range(40)) == [111 + k for k in range(40)]
    stats = batcher.stats()
    accounts(stats)
    assert stats.policy_failures == 0


def test_lookahead_may_be_asked_for_with_several_workers() -> None:
    """It plans as for one processor, and serves all the same."""
    one_node, table = table_of_upper()
    with lb.LazyBatcher(one_node, table=table, workers=3, policy="lookahead", max_batch_size=2) as batcher:
        assert batcher.predict_batch(list("abcdefgh") * 8) == list("ABCDEFGH") * 8
    assert batcher.stats().policy_failures == 0


def test_a_policy_object_serves_one_batcher_at_a_time() -> None:
    """It may remember what it saw; the second batcher is refused until the first has ended."""
    policy = Serial()
    with lb.LazyBatcher(upper, policy=policy) as batcher:
        assert policy_of(batcher) is policy
        assert batcher.predict("a") == "A"
        with pytest.raises(lb.InvalidInput, match=r"Serial\(\) serves another batcher"):
            lb.LazyBatcher(upper, policy=policy)
        with lb.LazyBatcher(upper, policy=Serial()) as other:
            assert other.predict("a") == "A"
    with lb.LazyBatcher(upper, policy=policy) as batcher:
        assert batcher.predict("a") == "A"
    function = lb.batched(policy=policy)(upper)
    assert function("b") == "B"
    with pytest.raises(lb.InvalidInput, match="serves another batcher"):
        lb.LazyBatcher(upper, policy=policy)
    function.shutdown()


def test_a_batcher_that_could_not_start_does_not_keep_the_policy() -> None:
    """A refused batcher leaves the object free."""
    policy = Serial()
    with pytest.raises(lb.InvalidInput, match="observers must derive"):
        lb.LazyBatcher(upper, policy=policy, observers=[object()])  # type: ignore[list-item]
    with lb.LazyBatcher(upper, policy=policy) as batcher:
        assert batcher.predict("a") == "A"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": "fifo"}, "unknown policy 'fifo'; known are lookahead, serial, graph"),
        ({"policy": 7}, "policy must be the name of a policy or a policy object, got 7"),
        ({"policy": GraphBatching}, "an object with a method decide"),
        ({"policy": Serial(), "max_delay": 1.0}, r"belongs to policy 'graph', the policy is Serial\(\)"),
        ({"policy": "lookahead"}, "callable without a latency table"),
    ],
)
def test_what_is_refused(options: dict[str, Any], told: str) -> None:
    """Unknown policies, classes instead of objects, knobs that belong to another policy; in the decorator as well."""
    with pytest.raises(lb.InvalidInput, match=told):
        lb.LazyBatcher(upper, **options)
    with pytest.raises(lb.InvalidInput, match=told):
        lb.batched(**options)(upper).predict("a")


def test_why() -> None:
    """`decisions` says what was started and why, in sentences; of one model, and at most as many as asked for."""
    gate = Gate()
    model, _ = gated(gate)
    table = model.table(1_000_000)
    before_ns = time.monotonic_ns()
    with lb.LazyBatcher(model, table=table, policy="lazy", sla=60.0) as batcher:
        first = batcher.submit(1)
        gate.entered.wait(LONG_S)
        second = batcher.submit(2)
        gate.opened.set()
        assert (first.result(LONG_S), second.result(LONG_S)) == (112, 113)
    told = batcher.decisions()
    assert [one.opened for one in told] == [(0,), (1,)]
    assert 0 <= told[0].at_ns <= told[1].at_ns <= time.monotonic_ns() - before_ns, "since the batcher was made"
    assert [one.preempted for one in told] == [None, told[0].sub_batch]
    assert "1 row started as sub-batch 1, sub-batch 0 is parked; preempt: newcomers catch up" in str(told[1])
    assert batcher.decisions(1) == told[1:] == batcher.decisions(1, model=batcher.decisions()[0].model)
    assert batcher.decisions(0) == []
    json.dumps([one.as_dict() for one in told])
    with pytest.raises(lb.InvalidInput, match="last must be a whole number"):
        batcher.decisions(-1)
    with pytest.raises(lb.InvalidInput, match="unknown model 'other'"):
        batcher.decisions(model="other")


def test_what_lookahead_compared_is_told(tmp_path: Path) -> None:
    """A preemption carries both costs: in `decisions`, and in the trace's arguments."""
    gate = Gate()
    model, _ = gated(gate, nodes=8)
    times = ((10_000_000, 10_000_100),) * 8
    nodes = tuple(node.name for node in model.graph.nodes)
    table = lb.LatencyTable(model.name, nodes, (1, 16), times, times, {"fingerprint": model.fingerprint})
    path = tmp_path / "trace.json"
    with lb.LazyBatcher(model, table=table, trace=path) as batcher:
        first = batcher.submit(1)
        gate.entered.wait(LONG_S)
        rest = batcher.submit_batch(range(10))
        gate.opened.set()
        assert first.result(LONG_S) == 1 + model.added
        assert [one.result(LONG_S) for one in rest] == [k + model.added for k in range(10)]
    (told,) = [one for one in batcher.decisions() if one.preempted is not None]
    assert told.comparison is not None
    assert told.comparison.start_cost < told.comparison.stay_cost
    assert "row-milliseconds: " in str(told)
    assert batcher.stats().reasons[told.reason.value] >= 1
    (mark,) = [event for event in json.loads(path.read_text()) if event["name"] == "preempted"]
    assert mark["args"]["reason"] == told.reason.value
    assert mark["args"]["starting_row_ms"] < mark["args"]["going_on_row_ms"]
    assert {"starting_late_rows", "going_on_late_rows"} <= mark["args"].keys()


class Broken(Serial):
    """Cannot decide."""

    def decide(self, view: object, now: int) -> Any:
        """Never returns."""
        raise RuntimeError("no idea")


def test_a_policy_that_fails_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Graph batching serves in its place; `stats` counts it, and the log says once why."""
    with caplog.at_level(logging.WARNING, "lazybatch.engine"), lb.LazyBatcher(upper, policy=Broken()) as batcher:
        assert [batcher.predict(letter) for letter in "abc"] == list("ABC")
        assert batcher.stats().policy_failures == 3
    assert batcher.stats().as_dict()["policy_failures"] == 3
    (record,) = caplog.records
    assert "the policy failed, graph batching decides" in record.message
    assert record.exc_info is not None
    assert "no idea" in str(record.exc_info[1])


def test_decisions_can_be_asked_for_while_they_are_made() -> None:
    """From any thread, at any time; also by the decorated function."""
    gate = Gate()
    function = lb.batched(max_batch_size=2)(held(gate))
    with function:
        future = function.submit(1)
        gate.entered.wait(LONG_S)
        (one,) = function.decisions()
        assert (one.rows, one.reason.value) == (1, "start: processor is free")
        gate.opened.set()
        future.result(LONG_S)
