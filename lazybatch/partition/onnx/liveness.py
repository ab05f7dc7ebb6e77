"""What the nodes of an ONNX graph read and make, for `lazybatch.partition.liveness`.

Owns: what a node reads (hidden captures of inner graphs included), and which names are weights.
Must not know: what the operators compute.
"""

from __future__ import annotations

import onnx

from lazybatch.partition.liveness import Liveness, Step

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


def liveness_of(graph: onnx.GraphProto) -> Liveness:
    """The live sets of a sorted graph."""
    weights = constants(graph)
    steps = [
        Step(node.op_type, tuple(n for n in reads(node) if n not in weights), tuple(n for n in node.output if n))
        for node in graph.node
    ]
    inputs = (value.name for value in graph.input if value.name not in weights)
    return Liveness(inputs, steps, (value.name for value in graph.output))
