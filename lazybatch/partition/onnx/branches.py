"""Branches that callers choose: the same graph with such choices turned round, so that the other branches run.

Owns: `turned`, copies of a graph in which every branch of an If on a caller's value is reached by one of them.
Must not know: how a graph is run, what is proved of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import onnx
from onnx import helper

from lazybatch.partition.onnx.liveness import inner_graphs, reads
from lazybatch.partition.onnx.taint import Marks


class Turned(NamedTuple):
    """A copy of a graph that goes other ways. node: the first If that does. flags: all conditions that are negated.
    hidden: whether a run of the graph that shows all its values does not show which branches are taken."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    flags: tuple[str, ...]
    hidden: bool


def turned(graph: onnx.GraphProto, marks: Marks) -> Iterator[Turned]:
    """Copies in which every branch that the original does not take is taken, whatever way it goes.

    An If within another's branch is turned with it and without it: each depth is turned, and every set of depths.
    """
    shown = {value.name for value in graph.input}.union(*(node.output for node in graph.node))
    depths = _depth(graph, marks)
    for count in range(1, depths + 1):
        for levels in itertools.combinations(range(depths), count):
            copy = onnx.GraphProto()
            copy.CopyFrom(graph)
            found: list[onnx.NodeProto] = []
            _turn(copy, marks, frozenset(levels), 0, found)
            flags = tuple(dict.fromkeys(node.input[0] for node in found))
            yield Turned(copy, found[0], flags, hidden=levels != (0,) or not shown.issuperset(flags))


def _chosen(node: onnx.NodeProto, marks: Marks) -> bool:
    """Whether callers choose what becomes of rows here. A choice by the rows themselves is refused as such."""
    if node.op_type != "If" or node.input[0] not in marks.given:
        return False
    return not (marks.data | marks.size).isdisjoint(reads(node))


def _depth(graph: onnx.GraphProto, marks: Marks) -> int:
    """How many such choices lie within each other at most."""
    depths = [0]
    for node in graph.node:
        inner = max((_depth(body, marks) for body in inner_graphs(node)), default=0)
        depths.append(inner + _chosen(node, marks))
    return max(depths)


def _turn(
    graph: onnx.GraphProto, marks: Marks, levels: frozenset[int], level: int, found: list[onnx.NodeProto]
) -> None:
    """Negate the conditions at these levels, in place. found: collects the nodes as they were."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        chosen = _chosen(node, marks)
        if chosen and level in levels:
            before = onnx.NodeProto()
            before.CopyFrom(node)
            found.append(before)
            other = f"{node.output[0]}/other_way"
            nodes.append(helper.make_node("Not", [node.input[0]], [other]))
        for body in inner_graphs(node):
            _turn(body, marks, levels, level + chosen, found)
        if chosen and level in levels:
            node.input[0] = other
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
