"""Small loop bodies as ONNX files, and what a program over each computes for one row alone.

Owns: the bodies that the tests of programs run. Must not know: programs' executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
OPSET = helper.make_opsetid("", 17)
Ports = Mapping[str, tuple[str, Sequence[int | str]]]
node = helper.make_node


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Ports,
    outputs: Ports,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a model. inputs, outputs: name -> (type, dims)."""

    def ports(given: Ports) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TYPES[dtype], dims) for name, (dtype, dims) in given.items()]

    held = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), path.stem, ports(inputs), ports(outputs), held)
    onnx.save(helper.make_model(graph, opset_imports=[OPSET], ir_version=9), path)
    return path


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Fixed numbers around 0."""
    made = np.random.default_rng((seed, *shape)).standard_normal(shape) / np.sqrt(shape[0])
    return made.astype(np.float32)


def lstm(path: Path, width: int = 4, hidden: int = 5) -> Path:
    """One LSTM step with its state [2, N, hidden] on axis 1: x [N, width], s -> s_next, y [N, hidden]."""
    return save(
        path,
        [
            node("Split", ["s", "halves"], ["h0", "c0"], axis=0),
            node("Unsqueeze", ["x", "zero"], ["sequence"]),
            node("LSTM", ["sequence", "w", "r", "", "", "h0", "c0"], ["", "h1", "c1"], hidden_size=hidden),
            node("Concat", ["h1", "c1"], ["s_next"], axis=0),
            node("Squeeze", ["h1", "zero"], ["h"]),
            node("MatMul", ["h", "out"], ["y"]),
        ],
        {"x": ("float32", ["N", width]), "s": ("float32", [2, "N", hidden])},
        {"s_next": ("float32", [2, "N", hidden]), "y": ("float32", ["N", hidden])},
        {
            "halves": np.array([1, 1]),
            "zero": np.array([0]),
            "w": weights(1, 4 * hidden, width),
            "r": weights(1, 4 * hidden, hidden, seed=1),
            "out": weights(hidden, hidden, seed=2),
        },
    )
