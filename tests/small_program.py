"""A small encoder and decoder as ONNX files with a program.json, and its plain evaluation in NumPy.

Owns: `write_program` and two variants of it, `rows`, `answer`.
Must not know: lazybatch, beyond the words of its file.

The encoder takes a padded source with its length; the decoder carries a state and a token, keeps a cache with room for
eight iterations, and is done after as many as its row asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.onnx_models import BOOL, F32, I64, build, const, floats, op, save, value

WIDTH, WORDS, ROOM, SOURCE = 4, 16, 8, 8
TABLE = floats(1, WORDS, WIDTH)
W, V = floats(2, WIDTH, WIDTH, scale=0.7), floats(3, WIDTH, WORDS)


def write_program(folder: Path, **changes: Any) -> Path:
    """The models and program.json in a folder; returns the file's path. changes: of the loop."""
    save(_encoder(), folder / "encoder.onnx")
    save(_step(), folder / "step.onnx")
    loop = {
        "carry": {
            "h": {"from": "h_next", "start": "encoder.memory"},
            "token": {"from": "token_next", "start": 1},
            "keys": {"append": "key", "axis": 0, "room": ROOM},
        },
        "iteration": "position",
        "done": "finished",
        "trips_max": ROOM,
        "collect": ["token_next"],
    }
    document = {
        "program": 1,
        "name": "small",
        "stages": [
            {
                "name": "encoder",
                "model": "encoder.onnx",
                "inputs": {"tokens": {"of": "source", "pad": [SOURCE]}, "length": {"length_of": "source"}},
            },
            {
                "name": "decoder",
                "model": "step.onnx",
                "inputs": {"memory": "encoder.memory", "target": "target"},
                "loop": {key: one for key, one in {**loop, **changes}.items() if one is not None},
            },
        ],
        "outputs": {"tokens": "decoder.token_next", "h": "decoder.h"},
    }
    path = folder / "program.json"
    path.write_text(json.dumps(document))
    return path


def write_shared(folder: Path) -> Path:
    """The program with a body whose position is one number for all rows."""
    path = write_program(folder)
    model = onnx.load(folder / "step.onnx")
    position = next(one for one in model.graph.input if one.name == "position")
    del position.type.tensor_type.shape.dim[:]
    for node in model.graph.node:
        if node.output[0] == "column":
            node.input[1] = "both"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1]), "both"))
    onnx.save(model, folder / "step.onnx")
    return path


def write_mixing(folder: Path) -> Path:
    """The program with a body that normalises its scores over all rows that run with it."""
    path = write_program(folder)
    model = onnx.load(folder / "step.onnx")
    for node in model.graph.node:
        if node.output[0] == "h_next":
            node.output[0] = "unmixed"
            at = list(model.graph.node).index(node) + 1
    model.graph.node.insert(at, onnx.helper.make_node("Softmax", ["unmixed"], ["h_next"], axis=0))
    onnx.save(model, folder / "step.onnx")
    return path


def _encoder() -> Any:
    consts = [const("table", TABLE), const("range", np.arange(SOURCE)[None]), const("one", [1]), const("two", [2])]
    nodes = [
        op("Gather", "table tokens", "words"),
        op("Unsqueeze", "length one", "column"),
        op("Less", "range column", "mask"),
        op("Cast", "mask", "ones", to=F32),
        op("Unsqueeze", "ones two", "spread"),
        op("Mul", "words spread", "kept"),
        op("ReduceSum", "kept one", "sum", keepdims=0),
        op("Tanh", "sum", "memory"),
    ]
    inputs = [value("tokens", I64, ["n", SOURCE]), value("length", I64, ["n"])]
    return build(nodes, inputs, [value("memory", F32, ["n", WIDTH])], consts)


def _step() -> Any:
    consts = [
        *(const("table", TABLE), const("w", W), const("v", V), const("range", np.arange(ROOM)[None])),
        *(const("one", [1]), const("two", [2]), const("step", 1)),
    ]
    nodes = [
        op("Gather", "table token", "word"),
        op("Unsqueeze", "position one", "column"),
        op("Less", "range column", "mask"),
        op("Cast", "mask", "ones", to=F32),
        op("Unsqueeze", "ones two", "spread"),
        op("Mul", "keys spread", "kept"),
        op("ReduceSum", "kept one", "seen", keepdims=0),
        op("Add", "h word", "a"),
        op("Add", "a memory", "b"),
        op("Add", "b seen", "c"),
        op("MatMul", "c w", "d"),
        op("Tanh", "d", "h_next"),
        op("Sin", "d", "key"),
        op("MatMul", "h_next v", "scores"),
        op("ArgMax", "scores", "token_next", axis=1, keepdims=0),
        op("Add", "position step", "behind"),
        op("GreaterOrEqual", "behind target", "finished"),
    ]
    inputs = [
        *(value("h", F32, ["n", WIDTH]), value("token", I64, ["n"]), value("keys", F32, ["n", ROOM, WIDTH])),
        *(value("position", I64, ["n"]), value("memory", F32, ["n", WIDTH]), value("target", I64, ["n"])),
    ]
    outputs = [
        *(value("h_next", F32, ["n", WIDTH]), value("token_next", I64, ["n"]), value("key", F32, ["n", WIDTH])),
        value("finished", BOOL, ["n"]),
    ]
    return build(nodes, inputs, outputs, consts)


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of different source lengths that ask for different numbers of iterations."""
    rng = np.random.default_rng(seed)
    return [
        {
            "source": rng.integers(0, WORDS, rng.integers(1, SOURCE + 1)),
            "target": np.int64(rng.integers(1, ROOM + 1)),
        }
        for _ in range(count)
    ]


def answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the program makes of one row, in NumPy."""
    memory = np.tanh(TABLE[row["source"]].sum(0))
    h, token, keys, tokens = memory, 1, [], []
    for _ in range(int(row["target"])):
        d = (h + TABLE[token] + memory + sum(keys, np.zeros(WIDTH, np.float32))) @ W
        h = np.tanh(d)
        keys.append(np.sin(d))
        token = int((h @ V).argmax())
        tokens.append(token)
    return {"tokens": np.array(tokens), "h": h}
