"""Node graphs: chains with names, and loops over them."""

from __future__ import annotations

import pytest

from lazybatch.core.graph import Loop, Node, NodeGraph, Stage
from lazybatch.errors import InvalidInput


def test_a_chain_keeps_order_and_length() -> None:
    """A chain made from names has those nodes in that order; its length is the cursor that means done."""
    graph = NodeGraph.chain("net", ["stem", "body", "head"])
    assert [node.name for node in graph.nodes] == ["stem", "body", "head"]
    assert len(graph) == 3
    assert graph.nodes[0] == Node("stem", operators=1)


def test_an_empty_chain_is_refused() -> None:
    """A model without nodes cannot be scheduled; the error names the model."""
    with pytest.raises(InvalidInput, match="'net': a node graph needs at least one node"):
        NodeGraph("net", ())


def test_two_nodes_of_one_name_are_refused() -> None:
    """Latency tables are keyed by node name, so a name that occurs twice is an error that says which."""
    with pytest.raises(InvalidInput, match="'net': two nodes are called 'b'"):
        NodeGraph.chain("net", ["a", "b", "c", "b"])


def test_stages_are_chains_and_loops_in_order() -> None:
    """A graph is told as its parts, which together are all nodes; a static one is a single chain."""
    graph = NodeGraph.chain("net", "abcdef", [Loop("in", 1, 2), Loop("out", 3, 5)])
    assert graph.stages() == (Stage(0, 1, None), Stage(1, 2, 0), Stage(2, 3, None), Stage(3, 5, 1), Stage(5, 6, None))
    assert NodeGraph.chain("net", "ab").stages() == (Stage(0, 2, None),)
    assert NodeGraph.chain("net", "ab", [Loop("all", 0, 2)]).stages() == (Stage(0, 2, 0),)


@pytest.mark.parametrize(
    ("loops", "message"),
    [
        ([Loop("x", 1, 1)], "loop 'x' is the nodes 1..0"),
        ([Loop("x", 0, 4)], "loop 'x' is the nodes 0..3, which must be one or more of 0..2"),
        ([Loop("x", 0, 2), Loop("y", 1, 3)], "loop 'y' is the nodes 1..2, which must be one or more of 2..2"),
        ([Loop("x", 0, 1, trips_max=0)], "loop 'x' must allow at least 1 iteration, got 0"),
        ([Loop("x", 0, 1), Loop("x", 1, 2)], "two loops are called 'x'"),
    ],
)
def test_loops_that_cannot_be_are_refused(loops: list[Loop], message: str) -> None:
    """Empty, outside, overlapping, endless before the first, of one name: the error names model and loop."""
    with pytest.raises(InvalidInput, match=f"'net': {message}"):
        NodeGraph.chain("net", "abc", loops)
