"""Small loop bodies as ONNX files, and what a program over each computes for one row alone.

Owns: the bodies that the tests of programs run. Must not know: programs' executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "object": TensorProto.STRING,
}
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


def counter(path: Path) -> Path:
    """Whole numbers, exact at any number of rows: counts up to its target, collects squares, is done when it is there.

    n, target [N] -> n_next = n + 1, square [N, 2] = (n * n, target), finished [N].
    """
    return save(
        path,
        [
            node("Add", ["n", "one"], ["n_next"]),
            node("Mul", ["n", "n"], ["nn"]),
            node("Unsqueeze", ["nn", "axis"], ["left"]),
            node("Unsqueeze", ["target", "axis"], ["right"]),
            node("Concat", ["left", "right"], ["square"], axis=1),
            node("GreaterOrEqual", ["n_next", "target"], ["finished"]),
        ],
        {"n": ("int64", ["N"]), "target": ("int64", ["N"])},
        {"n_next": ("int64", ["N"]), "square": ("int64", ["N", 2]), "finished": ("bool", ["N"])},
        {"one": np.array(1), "axis": np.array([1])},
    )


def encoder(path: Path, width: int = 4, hidden: int = 6) -> Path:
    """source [N, L, width], length [N] -> memory [N, L, hidden] (zeros behind the length), h [N, hidden] their sum."""
    return save(
        path,
        [
            node("MatMul", ["source", "w"], ["raw"]),
            node("Tanh", ["raw"], ["bent"]),
            node("Shape", ["source"], ["shape"]),
            node("Gather", ["shape", "one"], ["long"]),
            node("Range", ["zero", "long", "one"], ["places"]),
            node("Unsqueeze", ["length", "one_axis"], ["ends"]),
            node("Less", ["places", "ends"], ["inside"]),
            node("Cast", ["inside"], ["kept"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["kept", "last_axis"], ["mask"]),
            node("Mul", ["bent", "mask"], ["memory"]),
            node("ReduceSum", ["memory", "one_axis"], ["h"], keepdims=0),
        ],
        {"source": ("float32", ["N", "L", width]), "length": ("int64", ["N"])},
        {"memory": ("float32", ["N", "L", hidden]), "h": ("float32", ["N", hidden])},
        {
            "w": weights(width, hidden),
            "zero": np.array(0),
            "one": np.array(1),
            "one_axis": np.array([1]),
            "last_axis": np.array([2]),
        },
    )


def attention(path: Path, hidden: int = 6, room: int = 7) -> Path:
    """A decoder step with a cache of keys, each row at its own position, and a memory that stays.

    h [N, hidden], memory [N, L, hidden], keys [N, room, hidden], position [N] -> key [N, hidden] for the cache; the
    state attends to the keys before it and to itself, then to the memory; finished where it leans far enough.
    """
    return save(
        path,
        [
            node("MatMul", ["h", "wk"], ["key"]),
            node("Unsqueeze", ["h", "one_axis"], ["query"]),
            node("Transpose", ["keys"], ["across"], perm=[0, 2, 1]),
            node("MatMul", ["query", "across"], ["scores"]),
            node("Unsqueeze", ["position", "both"], ["here"]),
            node("Less", ["places", "here"], ["before"]),
            node("Where", ["before", "scores", "never"], ["past"]),
            node("Unsqueeze", ["key", "one_axis"], ["own"]),
            node("Mul", ["query", "own"], ["dots"]),
            node("ReduceSum", ["dots", "last_axis"], ["self"], keepdims=1),
            node("Concat", ["past", "self"], ["all"], axis=2),
            node("Softmax", ["all"], ["shares"], axis=-1),
            node("Concat", ["keys", "own"], ["seen"], axis=1),
            node("MatMul", ["shares", "seen"], ["mixed"]),
            node("Transpose", ["memory"], ["memory_t"], perm=[0, 2, 1]),
            node("MatMul", ["mixed", "memory_t"], ["looks"]),
            node("MatMul", ["looks", "memory"], ["told"]),
            node("Squeeze", ["told", "one_axis"], ["flat"]),
            node("Add", ["flat", "h"], ["sum"]),
            node("Tanh", ["sum"], ["h_next"]),
            node("ReduceSum", ["h_next", "one_axis"], ["lean"], keepdims=0),
            node("Greater", ["lean", "enough"], ["finished"]),
            node("MatMul", ["h_next", "out"], ["logits"]),
            node("ArgMax", ["logits"], ["token"], axis=1, keepdims=0),
        ],
        {
            "h": ("float32", ["N", hidden]),
            "memory": ("float32", ["N", "L", hidden]),
            "keys": ("float32", ["N", room, hidden]),
            "position": ("int64", ["N"]),
        },
        {
            "key": ("float32", ["N", hidden]),
            "h_next": ("float32", ["N", hidden]),
            "finished": ("bool", ["N"]),
            "token": ("int64", ["N"]),
        },
        {
            "wk": weights(hidden, hidden, seed=3),
            "out": weights(hidden, 9, seed=4),
            "places": np.arange(room),
            "both": np.array([1, 2]),
            "one_axis": np.array([1]),
            "last_axis": np.array([2]),
            "never": np.array(-1e9, np.float32),
            "enough": np.array(1.1, np.float32),
        },
    )


def tail(path: Path) -> Path:
    """What follows a loop: tokens [N, T], count [N], h [N, hidden] -> score [N], of all three."""
    return save(
        path,
        [
            node("Cast", ["tokens"], ["floats"], to=TensorProto.FLOAT),
            node("ReduceSum", ["floats", "one_axis"], ["sum"], keepdims=0),
            node("Cast", ["count"], ["counted"], to=TensorProto.FLOAT),
            node("ReduceMax", ["h"], ["peak"], axes=[1], keepdims=0),
            node("Mul", ["counted", "peak"], ["weighed"]),
            node("Add", ["sum", "weighed"], ["score"]),
        ],
        {"tokens": ("int64", ["N", "T"]), "count": ("int64", ["N"]), "h": ("float32", ["N", 6])},
        {"score": ("float32", ["N"])},
        {"one_axis": np.array([1])},
    )


def heads(path: Path, room: int = 5) -> Path:
    """Sums over a cache [N, 2, room, 3] that grows on its second axis, in whole numbers: exact at any number of rows.

    v [N, 2, 3], cache -> v_next (v plus all that is in the cache, modulo 97), slice = v, finished where it is small.
    """
    return save(
        path,
        [
            node("ReduceSum", ["cache", "room_axis"], ["all"], keepdims=0),
            node("Add", ["v", "all"], ["sum"]),
            node("Add", ["sum", "one"], ["more"]),
            node("Mod", ["more", "modulus"], ["v_next"]),
            node("Identity", ["v"], ["slice"]),
            node("ReduceSum", ["v_next", "rest"], ["total"], keepdims=0),
            node("Less", ["total", "small"], ["finished"]),
        ],
        {"v": ("int64", ["N", 2, 3]), "cache": ("int64", ["N", 2, room, 3])},
        {"v_next": ("int64", ["N", 2, 3]), "slice": ("int64", ["N", 2, 3]), "finished": ("bool", ["N"])},
        {
            "room_axis": np.array([2]),
            "rest": np.array([1, 2]),
            "one": np.array(1),
            "modulus": np.array(97),
            "small": np.array(200),
        },
    )


def clocked(path: Path) -> Path:
    """One number of iteration for all rows, in whole numbers: h [N, 2], time [] -> h_next = 3 h + time."""
    return save(
        path,
        [node("Mul", ["h", "three"], ["tripled"]), node("Add", ["tripled", "time"], ["h_next"])],
        {"h": ("int64", ["N", 2]), "time": ("int64", [])},
        {"h_next": ("int64", ["N", 2])},
        {"three": np.array(3)},
    )


def mixing(path: Path) -> Path:
    """Rows look at each other and cannot be joined: h [N, 2] -> h_next = 2 h - the mean over rows + 1."""
    return save(
        path,
        [
            node("ReduceMean", ["h"], ["mean"], axes=[0], keepdims=1),
            node("Sub", ["h", "mean"], ["apart"]),
            node("Add", ["apart", "h"], ["back"]),
            node("Add", ["back", "one"], ["h_next"]),
        ],
        {"h": ("float32", ["N", 2])},
        {"h_next": ("float32", ["N", 2])},
        {"one": np.array(1, np.float32)},
    )


def frail(path: Path) -> Path:
    """A body that refuses a row: it looks up n in a table of five. n [N] -> n_next = n + 1, value [N]."""
    return save(
        path,
        [node("Gather", ["table", "n"], ["value"]), node("Add", ["n", "one"], ["n_next"])],
        {"n": ("int64", ["N"])},
        {"n_next": ("int64", ["N"]), "value": ("float32", ["N"])},
        {"table": np.arange(5, dtype=np.float32), "one": np.array(1)},
    )


def adder(path: Path) -> Path:
    """Sums up what it is given, in whole numbers: sum, x [N, 2] -> sum_next = sum + x."""
    ports: dict[str, tuple[str, Sequence[int | str]]] = {name: ("int64", ["N", 2]) for name in ("sum", "x", "sum_next")}
    made = ports.pop("sum_next")
    return save(path, [node("Add", ["sum", "x"], ["sum_next"])], ports, {"sum_next": made})


def words(path: Path) -> Path:
    """Text that stays what it is: word [N] -> word_next [N]."""
    return save(
        path, [node("Identity", ["word"], ["word_next"])], {"word": ("object", ["N"])}, {"word_next": ("object", ["N"])}
    )


def found(path: Path) -> Path:
    """As many entries as it finds in all rows: h [N, 4] -> places [2, M] that are not 0, h_next = relu(h - 1)."""
    return save(
        path,
        [node("NonZero", ["h"], ["places"]), node("Sub", ["h", "one"], ["less"]), node("Relu", ["less"], ["h_next"])],
        {"h": ("float32", ["N", 4])},
        {"places": ("int64", [2, "M"]), "h_next": ("float32", ["N", 4])},
        {"one": np.array(1, np.float32)},
    )


def largest(path: Path) -> Path:
    """The k largest of six numbers, in whole numbers: x [N, 6], k [1] -> values [N, k], x_next = x + 1.

    What rows share says by its value, not by its shape, how much is made of each.
    """
    return save(
        path,
        [node("TopK", ["x", "k"], ["values", "places"]), node("Add", ["x", "one"], ["x_next"])],
        {"x": ("int64", ["N", 6]), "k": ("int64", [1])},
        {"values": ("int64", ["N", "K"]), "x_next": ("int64", ["N", 6])},
        {"one": np.array(1)},
    )


def shifting(path: Path) -> Path:
    """A body that returns an input under its own name, beside what rows that cannot be joined make of it.

    b [N, 2], a [N, 2] -> n = 2 b - the mean over rows + a, b.
    """
    return save(
        path,
        [
            node("ReduceMean", ["b"], ["mean"], axes=[0], keepdims=1),
            node("Sub", ["b", "mean"], ["apart"]),
            node("Add", ["apart", "b"], ["back"]),
            node("Add", ["back", "a"], ["n"]),
        ],
        {"a": ("float32", ["N", 2]), "b": ("float32", ["N", 2])},
        {"n": ("float32", ["N", 2]), "b": ("float32", ["N", 2])},
    )
