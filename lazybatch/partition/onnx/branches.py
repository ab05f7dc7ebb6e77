"""Branches that no example takes: the same graph with choices turned round, so that the other branches run.

Owns: `turned`, copies of a graph in which every branch of an If on a caller's value, or on a size, is reached by one of
them, and whether a run of the original reaches it as well.
Must not know: how a graph is run, what is proved of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx
from onnx import helper

from lazybatch.partition.onnx.liveness import constants, inner_graphs, reads
from lazybatch.partition.onnx.taint import Marks
from lazybatch.partition.proof.traits import Outcome

DEPTH_MAX = 4
"""Choices within each other up to which every set of depths is turned: there are two to the power of that."""
LOGIC = frozenset({"Not", "And", "Or", "Xor", "Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"})
"""What stands between a comparison and the condition that follows from it."""


class Turned(NamedTuple):
    """A copy of a graph that goes other ways.

    node: the first If that does. flags: all conditions that are negated. hidden: whether a run of the graph that shows
    all its values does not show which branches are taken. causes: of a condition on sizes, what it compares; else None.
    """

    graph: onnx.GraphProto
    node: onnx.NodeProto
    flags: tuple[str, ...]
    hidden: bool
    causes: tuple[str, ...] | None = None

    def taken(self, runs: Sequence[Outcome]) -> bool:
        """Whether some runs of the original (values by name) went this way and others did not."""
        if self.hidden or any(flag not in run for run in runs for flag in self.flags):
            return False
        return all(len({run[flag].tobytes() for run in runs}) > 1 for flag in self.flags)

    def back(self, runs: Sequence[Outcome], values: Outcome) -> bool:
        """Whether the copy, by these values, may take the way of the original in those runs after all."""
        known = [{run[flag].tobytes() for run in runs if flag in run} for flag in self.flags]
        return any(
            flag not in values or values[flag].tobytes() not in seen
            for flag, seen in zip(self.flags, known, strict=True)
        )


def too_deep(graph: onnx.GraphProto, marks: Marks) -> onnx.NodeProto | None:
    """An If on a caller's value within so many others that there are too many ways to try; None where none is."""
    chain = _deepest(graph, marks)
    return chain[DEPTH_MAX] if len(chain) > DEPTH_MAX else None


def turned(graph: onnx.GraphProto, marks: Marks) -> Iterator[Turned]:
    """Copies in which every branch that the original does not take is taken, whatever way it goes.

    An If within another's branch is turned with it and without it: each depth is turned, and every set of depths. An If
    on a size is turned by itself, and with every such set where it holds others.
    """
    shown = {value.name for value in graph.input}.union(*(node.output for node in graph.node))
    depths = range(len(_deepest(graph, marks)))
    sets = [levels for count in depths for levels in itertools.combinations(depths, count + 1)]
    weights = constants(graph)
    for levels in sets:
        copy, found = _copied(graph, marks, levels, None)
        flags = tuple(dict.fromkeys(node.input[0] for node in found))
        yield Turned(copy, found[0], flags, hidden=levels != (0,) or not shown.issuperset(flags))
    for node in graph.node:
        if not _by_size(node, marks, weights):
            continue
        within = any(_deepest(body, marks) for body in inner_graphs(node))
        for levels in [(), *(sets if within else ())]:
            copy, found = _copied(graph, marks, levels, node)
            flags = tuple(dict.fromkeys(other.input[0] for other in found))
            yield Turned(copy, node, flags, bool(levels), None if levels else _causes(graph, node.input[0]))


def _chosen(node: onnx.NodeProto, marks: Marks) -> bool:
    """Whether callers choose what becomes of rows here. A choice by the rows themselves is refused as such."""
    return node.op_type == "If" and node.input[0] in marks.given and _concerns_rows(node, marks)


def _by_size(node: onnx.NodeProto, marks: Marks, weights: set[str]) -> bool:
    """Whether sizes choose what becomes of rows here: whatever no value decides, and is not fixed."""
    if node.op_type != "If" or node.input[0] in marks.given | marks.data | weights:
        return False
    return _concerns_rows(node, marks)


def _concerns_rows(node: onnx.NodeProto, marks: Marks) -> bool:
    return not (marks.data | marks.size).isdisjoint(set(reads(node)).difference(node.input))


def _deepest(graph: onnx.GraphProto, marks: Marks) -> list[onnx.NodeProto]:
    """The choices that lie within each other where these are most, the outermost first."""
    longest: list[onnx.NodeProto] = []
    for node in graph.node:
        inner = max((_deepest(body, marks) for body in inner_graphs(node)), default=[], key=len)
        longest = max(longest, [node, *inner] if _chosen(node, marks) else inner, key=len)
    return longest


def _causes(graph: onnx.GraphProto, condition: str) -> tuple[str, ...]:
    """What is compared to make a condition."""
    maker = {name: node for node in graph.node for name in node.output}
    found: dict[str, None] = {}
    todo = [condition]
    while todo:
        node = maker.get(todo.pop())
        if node is not None and node.op_type in LOGIC:
            todo.extend(node.input)
        elif node is not None:
            found.update(dict.fromkeys(node.input))
    return tuple(found)


def _copied(
    graph: onnx.GraphProto, marks: Marks, levels: Sequence[int], also: onnx.NodeProto | None
) -> tuple[onnx.GraphProto, list[onnx.NodeProto]]:
    """A copy with the conditions at these depths, and of one node more, negated; and those nodes as they were."""
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    found: list[onnx.NodeProto] = []
    _turn(copy, marks, levels, 0, also, found)
    return copy, found


def _turn(
    graph: onnx.GraphProto,
    marks: Marks,
    levels: Sequence[int],
    level: int,
    also: onnx.NodeProto | None,
    found: list[onnx.NodeProto],
) -> None:
    """Negate conditions in place. found: collects the nodes as they were."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        chosen = _chosen(node, marks)
        negated = (chosen and level in levels) or (also is not None and list(node.output) == list(also.output))
        if negated:
            before = onnx.NodeProto()
            before.CopyFrom(node)
            found.append(before)
            other = f"{node.output[0]}/other_way"
            nodes.append(helper.make_node("Not", [node.input[0]], [other]))
        for body in inner_graphs(node):
            _turn(body, marks, levels, level + chosen, also, found)
        if negated:
            node.input[0] = other
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
