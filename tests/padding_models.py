"""Small models of tokens for tests of padding: right ones, and one for each way in which padding goes wrong.

Owns: `MODELS`, `written`. Must not know: padding rules.

All take ids and mask, (N, L) int64, and embed ids in 4 numbers. Outputs: tokens (N, L, 4) and pooled (N, 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from tests.onnx_models import F32, I64, build, const, floats, op, save, value

IDS, WIDTH = 50, 4


def _embedded() -> list[onnx.NodeProto]:
    return [
        op("Gather", "table ids", "e", axis=0),
        op("MatMul", "e w", "p"),
        op("Tanh", "p", "tokens"),
    ]


def _pooled(weights: str) -> list[onnx.NodeProto]:
    """The mean of the tokens over the axis of length, with these weights (N, L, 1)."""
    return [
        op("Mul", f"tokens {weights}", "masked"),
        op("ReduceSum", "masked one", "sum", keepdims=0),
        op("ReduceSum", f"{weights} one", "count", keepdims=0),
        op("Div", "sum count", "pooled"),
    ]


def _real() -> list[onnx.NodeProto]:
    return [op("Cast", "mask", "real", to=F32), op("Unsqueeze", "real two", "weights")]


def _masked() -> onnx.ModelProto:
    """The mean over real positions: padding changes nothing."""
    return _build([*_embedded(), *_real(), *_pooled("weights")])


def _forgetful() -> onnx.ModelProto:
    """The mask is multiplied by zero and one is added: the mean is over padding, too."""
    fold = [op("Mul", "weights zero", "nothing"), op("Add", "nothing unit", "all")]
    return _build([*_embedded(), *_real(), *fold, *_pooled("all")])


def _neighbours() -> onnx.ModelProto:
    """Every token sees the sum of all tokens of its row, padding included: lengths are right, values are not."""
    mixed = [op("ReduceSum", "tokens one", "total", keepdims=1), op("Add", "tokens total", "mixed")]
    nodes = [*_embedded(), *_real(), *_pooled("weights"), *mixed]
    return _build(nodes, outputs=("mixed",))


def _square() -> onnx.ModelProto:
    """Every token against every other: an output with the length on two axes."""
    nodes = [*_embedded(), *_real(), *_pooled("weights"), op("Transpose", "tokens", "turned", perm=[0, 2, 1])]
    return _build([*nodes, op("MatMul", "tokens turned", "scores")], outputs=("scores",))


def _counting() -> onnx.ModelProto:
    """How many positions the row has, padding included: an integer that must be equal."""
    nodes = [
        *_embedded(),
        *_real(),
        *_pooled("weights"),
        op("Add", "mask onei", "plus"),
        op("Sub", "plus mask", "each"),
    ]
    return _build([*nodes, op("ReduceSum", "each one", "positions", keepdims=0)], outputs=("positions",))


def _fixed() -> onnx.ModelProto:
    """Rows of one length only."""
    return _build([*_embedded(), *_real(), *_pooled("weights")], length=8)


def _mixing() -> onnx.ModelProto:
    """The mean over the rows of a batch goes into every row: rows cannot join."""
    nodes = [*_embedded(), *_real(), *_pooled("weights"), op("ReduceMean", "pooled", "mean", axes=[0], keepdims=1)]
    return _build([*nodes, op("Add", "pooled mean", "mixed")], outputs=("mixed",))


def _build(nodes: list[onnx.NodeProto], *, outputs: tuple[str, ...] = (), length: int | str = "L") -> onnx.ModelProto:
    shapes = {
        "tokens": (F32, ["N", length, WIDTH]),
        "pooled": (F32, ["N", WIDTH]),
        "mixed": (F32, None),
        "scores": (F32, ["N", length, length]),
        "positions": (I64, ["N"]),
    }
    consts = [
        const("table", floats(1, IDS, WIDTH)),
        const("w", floats(2, WIDTH, WIDTH)),
        const("one", [1]),
        const("two", [2]),
        const("onei", 1),
        const("zero", 0.0),
        const("unit", 1.0),
    ]
    used = {name for node in nodes for name in node.input}
    return build(
        nodes,
        [value("ids", I64, ["N", length]), value("mask", I64, ["N", length])],
        [value(name, *shapes[name]) for name in ("tokens", "pooled", *outputs)],
        [one for one in consts if one.name in used],
    )


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "masked": _masked,
    "forgetful": _forgetful,
    "neighbours": _neighbours,
    "square": _square,
    "counting": _counting,
    "fixed": _fixed,
    "mixing": _mixing,
}


def written(name: str, folder: Path) -> Path:
    """A model as a file."""
    return save(MODELS[name](), folder / f"{name}.onnx")
