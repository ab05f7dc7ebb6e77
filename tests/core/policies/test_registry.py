"""Policies by name, and the order of lanes they share."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.lane import Lane
from lazybatch.core.policies import Aimd, Cellular, GraphBatching, LazyBatching, Oracle, Serial, by_name, names
from lazybatch.core.policies.base import most_urgent_first
from lazybatch.errors import InvalidInput
from tests.core.kit import bare_spec, row


def test_names_are_the_public_ones() -> None:
    """The names that the command line and the API accept, each giving its class."""
    assert names() == ("serial", "graph", "cellular", "aimd", "lazy", "oracle")
    assert [type(by_name(name)) for name in names()] == [Serial, GraphBatching, Cellular, Aimd, LazyBatching, Oracle]


def test_options_reach_the_policy() -> None:
    """What is given by name is what the constructor gets; None stands for the default."""
    policy = by_name("graph", window_ns=5, max_batch_size=8, size_budget=None)
    assert repr(policy) == "GraphBatching(window_ns=5, max=8, size_budget=None)"
    assert repr(by_name("serial")) == "Serial()"
    assert repr(by_name("lazy")) == "LazyBatching()"
    assert repr(by_name("oracle")) == "Oracle()"
    assert repr(by_name("cellular")) == "Cellular()"
    assert repr(by_name("aimd", step=2)) == "Aimd(step=2)"


@pytest.mark.parametrize("name", ["fifo", "", None, ["lazy"]])
def test_an_unknown_name_lists_the_known_ones(name: Any) -> None:
    """Also for what is no name at all."""
    with pytest.raises(InvalidInput, match=r"unknown policy .*; known are serial, graph, .*lazy"):
        by_name(name)


def test_an_option_the_policy_does_not_take_is_named() -> None:
    """A window for a policy without windows is a mistake, not something to ignore."""
    with pytest.raises(InvalidInput, match=r"'lazy' does not take the options \['window_ns'\]"):
        by_name("lazy", window_ns=5)


def test_lanes_are_ranked_by_their_most_urgent_row() -> None:
    """Priority, then arrival, then the order of lanes for rows that are equal; empty lanes are left out."""
    lanes = [Lane(bare_spec(model)) for model in "abcd"]
    assert most_urgent_first(lanes, 0) == []
    assert most_urgent_first(lanes[:1], 0) == []
    lanes[0].queue.push(row(0, 5, model="a"))
    lanes[1].queue.push(row(1, 9, model="b", priority=1))
    lanes[3].queue.push(row(2, 3, model="d"))
    assert [lane.model for lane in most_urgent_first(lanes, 10)] == ["b", "d", "a"]
    assert most_urgent_first(lanes[:1], 10) == [lanes[0]]
