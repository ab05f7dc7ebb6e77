"""Small ONNX models for tests, in few words.

Owns: the vocabulary the test models are written in (`value`, `const`, `op`, `build`, `save`).
Must not know: lazybatch, and which fault a model is meant to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, F64, F16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
I32, I64, U8, I8 = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8
BOOL, STRING = TensorProto.BOOL, TensorProto.STRING

Shape = Sequence[int | str | None] | None


def value(name: str, dtype: int, shape: Shape) -> onnx.ValueInfoProto:
    """A tensor's name, element type and declared shape (ints, symbols, None for unknown; no shape at all: None)."""
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name: str, array: Any, dtype: Any = None) -> onnx.TensorProto:
    """An initializer. A Python int or list of ints is int64, a float float32, unless ``dtype`` says otherwise."""
    made = np.asarray(array, dtype)
    if dtype is None and made.dtype == np.float64:
        made = made.astype(np.float32)
    return numpy_helper.from_array(made, name)


def op(kind: str, inputs: Sequence[str] | str, outputs: Sequence[str] | str, /, **attributes: Any) -> onnx.NodeProto:
    """One node; names as a list, or as one text split at spaces. ``_`` stands for a missing (empty) name."""
    names = [part.split(" ") if isinstance(part, str) else list(part) for part in (inputs, outputs)]
    ins, outs = ([("" if name == "_" else name) for name in part if name or len(part) > 1] for part in names)
    return helper.make_node(kind, ins, outs, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    consts: Sequence[onnx.TensorProto] = (),
    name: str = "main",
    sparse: Sequence[onnx.SparseTensorProto] = (),
) -> onnx.GraphProto:
    """A graph, or the body of a control-flow node."""
    return helper.make_graph(
        list(nodes), name, list(inputs), list(outputs), list(consts), sparse_initializer=list(sparse)
    )


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    consts: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    sparse: Sequence[onnx.SparseTensorProto] = (),
) -> onnx.ModelProto:
    """A whole model."""
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(
        graph(nodes, inputs, outputs, consts, sparse=sparse),
        opset_imports=opsets,
        ir_version=ir,
        functions=list(functions),
    )


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model and return its path."""
    onnx.save(model, path)
    return path


def floats(seed: int, *shape: int, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    """Seeded normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def mlp(width: int = 4, hidden: int = 8, layers: int = 3, *, opset: int = 17) -> onnx.ModelProto:
    """x[N, width] -> y[N, width]: a small perceptron whose rows are independent; the plain case."""
    nodes, consts, last = [], [], "x"
    for layer in range(layers):
        rows = width if layer == 0 else hidden
        columns = width if layer == layers - 1 else hidden
        consts += [
            const(f"w{layer}", floats(layer, rows, columns, scale=rows**-0.5)),
            const(f"b{layer}", floats(layer + 50, columns)),
        ]
        final = "y" if layer == layers - 1 else f"h{layer}"
        nodes += [op("Gemm", f"{last} w{layer} b{layer}", f"g{layer}"), op("Tanh", f"g{layer}", final)]
        last = final
    return build(nodes, [value("x", F32, ["N", width])], [value("y", F32, ["N", width])], consts, opset=opset)
