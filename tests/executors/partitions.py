"""Hand-made partitions: a few ONNX nodes, cut where the test says, kinds stated by the test.

Owns: `cut`, `single`, and the small models the executor's tests run.
Must not know: the partitioner; these tests must fail for the executor's faults only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lazybatch.executors.base import Row
from lazybatch.executors.chain import Moving, Store
from lazybatch.executors.columns import Column
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece

Moved = TypeVar("Moved", bound=Moving)
IR_VERSION = 9
OPSET = helper.make_opsetid("", 17)
TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "object": TensorProto.STRING,
}


def begin(store: Store[Moved], given: Mapping[int, Row], executed: int) -> Moved:
    """A sub-batch with these rows, as an executor begins one."""
    first = next(iter(given.values()))
    columns = {name: Column.of([row.values[name] for row in given.values()]) for name in first.values}
    return store.begin(list(given), columns, first.signature, executed)


def rows(name: str, *dims: int | None, axis: int = 0, dtype: str = "float32", unit: bool = True) -> Boundary:
    """A boundary whose rows lie on ``axis``; dims are given without it."""
    return Boundary(name, dtype, Kind.ROWS, axis, (*dims[:axis], None, *dims[axis:]), unit)


def shared(name: str, *dims: int | None, dtype: str = "float32") -> Boundary:
    """A boundary that all rows of a signature share."""
    return Boundary(name, dtype, Kind.SHARED, None, dims)


def size(name: str, *proportional: bool) -> Boundary:
    """An int64 vector computed from the number of rows."""
    return Boundary(name, "int64", Kind.SIZE, None, (len(proportional),), proportional=proportional)


def opaque(name: str, dtype: str = "float32", rank: int = 1) -> Boundary:
    """A boundary of which nothing is proven."""
    return Boundary(name, dtype, Kind.OPAQUE, None, (None,) * rank)


def cut(
    directory: Path,
    nodes: Sequence[Sequence[onnx.NodeProto]],
    boundaries: Sequence[Boundary],
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    reason: str | None = None,
    in_place: Mapping[int, tuple[str, str]] | None = None,
) -> Partition:
    """Write one file per group of nodes, and `whole.onnx` with all of them."""
    known = {boundary.name: boundary for boundary in boundaries}
    held = dict(weights or {})
    pieces = []
    for index, group in enumerate(nodes):
        made = [name for node in group for name in node.output]
        later = {name for rest in nodes[index + 1 :] for node in rest for name in node.input} | set(outputs)
        used = [name for name in dict.fromkeys(name for node in group for name in node.input) if name in known]
        wanted = [name for name in made if name in known and name in later]
        path = directory / f"piece{index}.onnx"
        needed = [name for name in dict.fromkeys(name for node in group for name in node.input) if name in held]
        used = [name for name in used if name not in made]
        _write(path, group, [known[name] for name in used], [known[name] for name in wanted], needed, held)
        pair = (in_place or {}).get(index)
        pieces.append(Piece(f"node{index}", path, tuple(used), tuple(wanted), len(group), (pair,) if pair else ()))
    everything = [node for group in nodes for node in group]
    ends = ([known[name] for name in inputs], [known[name] for name in outputs])
    _write(directory / "whole.onnx", everything, *ends, list(held), held)
    return Partition(
        "tiny", "f" * 64, directory, tuple(pieces), known, tuple(inputs), tuple(outputs), reason is None, reason
    )


def _write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Boundary],
    outputs: Sequence[Boundary],
    needed: Sequence[str],
    held: Mapping[str, np.ndarray],
) -> None:
    def info(boundary: Boundary) -> onnx.ValueInfoProto:
        dims = [dim if dim is not None else f"{boundary.name}_{axis}" for axis, dim in enumerate(boundary.dims or ())]
        return helper.make_tensor_value_info(boundary.name, TYPES[boundary.dtype], dims)

    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [info(boundary) for boundary in inputs],
        [info(boundary) for boundary in outputs],
        [numpy_helper.from_array(held[name], name) for name in needed],
    )
    onnx.save(helper.make_model(graph, opset_imports=[OPSET], ir_version=IR_VERSION), path)


def residual(directory: Path) -> Partition:
    """Four nodes with a skip connection over two of them, a scalar all rows share, and two outputs.

    x [3, any], t [] -> a = w @ x -> b = relu(a) -> c = b * t + a (in place of a) -> y = c summed; c is an output, too.
    """
    weight = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    node = helper.make_node
    return cut(
        directory,
        [
            [node("MatMul", ["w", "x"], ["a"])],
            [node("Relu", ["a"], ["b"])],
            [node("Mul", ["b", "t"], ["bt"]), node("Add", ["a", "bt"], ["c"])],
            [node("ReduceSum", ["c", "axes"], ["y"], keepdims=0)],
        ],
        [rows("x", 3, None), shared("t"), rows("a", 3, None), rows("b", 3, None), rows("c", 3, None), rows("y", None)],
        ["x", "t"],
        ["y", "c"],
        {"w": weight, "axes": np.array([1])},
        in_place={2: ("a", "c")},
    )


def recurrent(directory: Path) -> Partition:
    """State with rows on axis 1, a computed size, and rows that own three elements of an axis.

    x [4] -> s = shape(x), h = x as [1, N, 4] -> g = h + 1 -> f = g three times as [3N, 4] -> y = f as [N, 12].
    """
    node = helper.make_node
    return cut(
        directory,
        [
            [node("Shape", ["x"], ["s"]), node("Unsqueeze", ["x", "zero"], ["h"])],
            [node("Add", ["h", "one"], ["g"])],
            [
                node("Squeeze", ["g", "zero"], ["q"]),
                node("Concat", ["q", "q", "q"], ["q3"], axis=1),
                node("Reshape", ["q3", "to4"], ["f"]),
            ],
            [
                node("Gather", ["s", "zero"], ["n"]),
                node("Concat", ["n", "twelve"], ["shape"], axis=0),
                node("Reshape", ["f", "shape"], ["y"]),
            ],
        ],
        [
            rows("x", 4),
            size("s", True, False),
            rows("h", 1, 4, axis=1),
            rows("g", 1, 4, axis=1),
            rows("f", 4, unit=False),
            rows("y", 12),
        ],
        ["x"],
        ["y", "g", "f"],
        {
            "zero": np.array([0]),
            "one": np.array(1, np.float32),
            "to4": np.array([-1, 4]),
            "twelve": np.array([12]),
        },
    )


def labels(directory: Path) -> Partition:
    """Strings beside numbers, both per row: s [any] and x [2] -> i = s -> y = x + x, z = i."""
    node = helper.make_node
    return cut(
        directory,
        [
            [node("Identity", ["s"], ["i"])],
            [node("Add", ["x", "x"], ["y"]), node("Identity", ["i"], ["z"])],
        ],
        [
            rows("s", None, dtype="object"),
            rows("x", 2),
            rows("i", None, dtype="object"),
            rows("y", 2),
            rows("z", None, dtype="object"),
        ],
        ["s", "x"],
        ["y", "z"],
    )


def data_dependent(directory: Path) -> Partition:
    """A shape that depends on values, so rows cannot be joined: x [1, any] -> n = nonzero(x) -> y = n + n."""
    node = helper.make_node
    return cut(
        directory,
        [[node("NonZero", ["x"], ["n"])], [node("Add", ["n", "n"], ["y"])]],
        [rows("x", None), opaque("n", "int64", 2), opaque("y", "int64", 2)],
        ["x"],
        ["y"],
        reason="the shape of 'n' depends on values",
    )


def windowed(directory: Path) -> Partition:
    """Softmax over windows of 8 columns; a row whose length is no multiple of 8 is refused, if it is alone.

    x [any] -> w = windows of x -> p = softmax -> y = p with the shape of x.
    """
    node = helper.make_node
    return cut(
        directory,
        [
            [node("Reshape", ["x", "eight"], ["w"])],
            [node("Softmax", ["w"], ["p"], axis=-1), node("Shape", ["x"], ["s"]), node("Reshape", ["p", "s"], ["y"])],
        ],
        [rows("x", None), rows("w", 8, unit=False), rows("y", None)],
        ["x"],
        ["y"],
        {"eight": np.array([-1, 8], np.int64)},
    )
