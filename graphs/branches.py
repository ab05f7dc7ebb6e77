"""An ONNX graph without the branches that its inputs' fixed values and shapes decide.

Owns: `settle`.
Must not know: any particular model, how graphs are run.

Exporters leave a branch for everything a network once asked: which sampling rate, is there a batch axis, is a dimension
1. Where the answer follows from what is fixed, only one side can ever run, and that side takes the place of the branch.
No arithmetic is changed: what is computed beforehand are shapes, comparisons of them, and parts of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Known = dict[str, NDArray[Any]]


def settle(model: onnx.ModelProto, fixed: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with these inputs as constants, and every branch replaced that they and the inputs' shapes decide.

    Names of values must be unique over all branches (the checker says so where they are not). Branches that nothing
    decides stay. Nodes and weights that are not needed any more are gone.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    kept = [value for value in graph.input if value.name not in fixed]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in fixed.items())
    while _fold(made) | _choose(graph):
        pass
    _prune(graph)
    onnx.checker.check_model(made)
    return made


def _fold(model: onnx.ModelProto) -> bool:
    """Turn nodes whose results are known into weights; whether there was one."""
    graph = model.graph
    known: Known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    dims = _dims(model)
    shape_of = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Shape" and not node.attribute}
    kept, before = [], len(known)
    for node in graph.node:
        found = _shapes(node, known, dims, shape_of) or _constants(node, known, model.opset_import)
        if found is None:
            kept.append(node)
        else:
            known |= found
            graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in found.items())
    del graph.node[:]
    graph.node.extend(kept)
    return len(known) > before


def _dims(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Shapes as far as they can be inferred."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            found[value.name] = [one.dim_value if one.HasField("dim_value") else None for one in sizes]
    return found


def _shapes(
    node: onnx.NodeProto, known: Known, dims: Mapping[str, list[int | None]], shape_of: Mapping[str, str]
) -> Known | None:
    """The result of a node that asks for a rank, or for dimensions which are fixed; else None."""
    sizes = dims.get(shape_of.get(node.input[0], "")) if node.input else None
    if sizes is None:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.array(len(sizes), np.int64)}
    if node.op_type == "Gather" and node.input[1] in known:
        places = known[node.input[1]]
        picked = [sizes[place] for place in places.ravel()]
        if None not in picked:
            return {node.output[0]: np.array(picked, np.int64).reshape(places.shape)}
    return None


def _constants(node: onnx.NodeProto, known: Known, opsets: Sequence[onnx.OperatorSetIdProto]) -> Known | None:
    """All results of a node that reads nothing but constants; else None."""
    read = [name for name in node.input if name]
    if node.op_type == "If" or not all(name in known for name in read):
        return None
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(known[name].dtype), None) for name in read
    ]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    alone = helper.make_model(helper.make_graph([node], "alone", inputs, outputs), opset_imports=opsets)
    values = ReferenceEvaluator(alone).run(None, {name: known[name] for name in read})
    return {name: np.asarray(value) for name, value in zip(node.output, values, strict=True)}


def _choose(graph: onnx.GraphProto) -> bool:
    """Put the side that runs in the place of every branch whose condition is known; whether there was one."""
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        if node.op_type != "If" or node.input[0] not in known:
            nodes.append(node)
            continue
        changed = True
        side = "then_branch" if known[node.input[0]].item() else "else_branch"
        taken = next(attribute.g for attribute in node.attribute if attribute.name == side)
        graph.initializer.extend(taken.initializer)
        nodes += taken.node
        nodes += [
            helper.make_node("Identity", [inner.name], [outer])
            for inner, outer in zip(taken.output, node.output, strict=True)
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def _prune(graph: onnx.GraphProto) -> None:
    """Drop nodes and weights whose values nobody reads."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(_read(node))
            kept.append(node)
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Names a node reads, those that its inner graphs read from outside among them."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)
        yield from (value.name for value in attribute.g.output)
