"""Node graphs: chains with names."""

from __future__ import annotations

import pytest

from lazybatch.core.graph import Node, NodeGraph
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
