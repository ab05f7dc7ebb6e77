"""Which values a graph still needs after each of its nodes.

Owns: what a node reads (hidden captures of inner graphs included) and the live sets between nodes.
Must not know: what the operators compute.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

INNER = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names of the values a node reads, each once: its inputs, and what its inner graphs capture from outside."""
    names = [name for name in node.input if name]
    for graph in inner_graphs(node):
        names.extend(captures(graph))
    return tuple(dict.fromkeys(names))


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs a node carries in its attributes: branches of an If, bodies of a Loop or Scan."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def captures(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Names an inner graph takes from its surroundings."""
    known = {value.name for value in graph.input} | constants(graph)
    taken: dict[str, None] = {}
    for node in graph.node:
        taken.update(dict.fromkeys(name for name in reads(node) if name not in known))
        known.update(name for name in node.output if name)
    taken.update(dict.fromkeys(value.name for value in graph.output if value.name and value.name not in known))
    return tuple(taken)


def constants(graph: onnx.GraphProto) -> set[str]:
    """Names of the graph's weights, sparse ones included."""
    return {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


class Liveness:
    """Live sets of a sorted graph. Position k is node k; position -1 stands before the first node."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        weights = constants(graph)
        self.made = {value.name: -1 for value in graph.input if value.name not in weights}
        self.last: dict[str, int] = {}
        self.first: dict[str, int] = {}
        for position, node in enumerate(graph.node):
            for name in reads(node):
                self.last[name] = position
                self.first.setdefault(name, position)
            self.made.update((name, position) for name in node.output if name)
        self.last.update((value.name, len(graph.node)) for value in graph.output)
        self._length = len(graph.node)

    def live_sets(self) -> list[tuple[str, ...]]:
        """Per position: what was made at or before it, inputs included, and is read or returned after it."""
        live: dict[str, None] = {
            name: None for name, at in self.made.items() if at == -1 and self.last.get(name, -1) >= 0
        }
        made_at: list[list[str]] = [[] for _ in range(self._length)]
        dead_at: list[list[str]] = [[] for _ in range(self._length + 1)]
        for name, position in self.made.items():
            if name not in self.last:
                continue
            if position >= 0:
                made_at[position].append(name)
            dead_at[self.last[name]].append(name)
        sets = []
        for position in range(self._length):
            live.update(dict.fromkeys(made_at[position]))
            for name in dead_at[position]:
                live.pop(name, None)
            sets.append(tuple(live))
        return sets

    def readers(self, graph: onnx.GraphProto, name: str, positions: Collection[int]) -> list[int]:
        """Positions among the given ones whose node reads the value."""
        return [position for position in positions if name in reads(graph.node[position])]
