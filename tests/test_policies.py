"""Policies by name: every name makes a policy that serves, what is no policy is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch import policies
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching, Serial
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.errors import InvalidInput
from lazybatch.policies import check_policy, make_policy, needs_table
from lazybatch.simulator import requests_from, simulate

TABLE = LatencyTable.uniform("m", 4, 4000, 1000, (1, 4))


def lanes(table: LatencyTable | None = TABLE) -> list[LaneSpec]:
    """One lane."""
    return [LaneSpec(NodeGraph.chain("m", TABLE.nodes), table, max_batch_size=4, sla_ns=100_000)]


@pytest.mark.parametrize("name", policies.names())
def test_every_name_makes_a_policy_that_serves(name: str) -> None:
    """All rows of a trace are served, and the policy never has to be overruled."""
    policy = make_policy(name, lanes())
    result = simulate(lanes(), policy, requests_from(range(0, 60_000, 2_000), "m", sla_ns=100_000))
    assert len(result.latencies_ns) == 30
    assert result.scheduler.counts.policy_failures == 0


def test_the_default_comes_first() -> None:
    """The default is lookahead, and heads the list that help texts show."""
    assert policies.names()[0] == policies.DEFAULT == "lookahead"
    assert isinstance(make_policy(policies.DEFAULT, lanes()), Lookahead)


def test_every_call_makes_an_object_of_its_own() -> None:
    """Policies remember what they saw: none is shared, although the solved control behind them is."""
    assert make_policy("lookahead", lanes()) is not make_policy("lookahead", lanes())


def test_options_reach_the_constructor() -> None:
    """Those of graph batching, and those of lookahead; one that is not taken is named."""
    assert repr(make_policy("graph", lanes(), window_ns=5)) == "GraphBatching(window_ns=5, max=None, size_budget=None)"
    with pytest.raises(InvalidInput, match=r"'lookahead' does not take the options \['window_ns'\]"):
        make_policy("lookahead", lanes(), window_ns=5)
    with pytest.raises(InvalidInput, match=r"'serial' does not take the options \['window_ns'\]"):
        make_policy("serial", lanes(), window_ns=5)


def test_objects_are_taken_as_they_are() -> None:
    """A ready-made policy comes back itself, and takes no options."""
    policy = GraphBatching(window_ns=7)
    assert make_policy(policy, lanes()) is policy
    with pytest.raises(InvalidInput, match=r"ready made and takes no options, got \['window_ns'\]"):
        make_policy(policy, lanes(), window_ns=5)


def test_which_need_a_table() -> None:
    """Those that predict; without a table they are refused where they are made."""
    told = {name: needs_table(name) for name in policies.names()}
    assert told["lookahead"]
    assert told["lazy"]
    assert not told["graph"]
    assert not told["serial"]
    assert not needs_table(Serial())
    with pytest.raises(InvalidInput, match="model 'm': a control is solved from a latency table"):
        make_policy("lookahead", lanes(None))
    make_policy("graph", lanes(None))


class Undecided:
    """Has `decide`, but does not say whether it needs tables."""

    def decide(self, view: object, now: int) -> None:
        """Nothing."""


class Unsure(Undecided):
    """Says it with something that is no flag."""

    needs_table = None


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("fifo", "unknown policy 'fifo'; known are lookahead, serial, graph"),
        ("", "unknown policy ''"),
        ("Lookahead", "unknown policy 'Lookahead'"),
        (None, "got None"),
        (7, "got 7"),
        (["lazy"], r"got \['lazy'\]"),
        (GraphBatching, "an object with a method decide"),
        (object(), "an object with a method decide"),
        (Undecided(), r"write `needs_table = False` \(or True\) into class Undecided"),
        (Unsure(), r"write `needs_table = False` \(or True\) into class Unsure"),
    ],
)
def test_what_is_no_policy_is_refused(policy: Any, told: str) -> None:
    """Unknown names, classes instead of objects, objects that cannot decide."""
    for call in (check_policy, needs_table, lambda given: make_policy(given, lanes())):
        with pytest.raises(InvalidInput, match=told):
            call(policy)
