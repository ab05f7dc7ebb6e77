"""Models with inputs that no row owns, and with rows of different length.

Owns: cases of unbatched inputs and outputs, and of sequences that must not be padded.
Must not know: lazybatch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.case import Made, Verdict, case, rows
from tests.onnx_models import F32, I32, I64, build, const, floats, graph, op, value

JOINS = Verdict.JOINS
X4, Y4 = value("x", F32, ["N", 4]), value("y", F32, ["N", 4])
SIDE = {"x": 0}


def _side(temperatures: tuple[float, ...], **shared: np.ndarray) -> list[dict[str, np.ndarray]]:
    made = zip(rows(len(temperatures), 4), temperatures, strict=True)
    return [{**feeds, "temp": np.array(t, np.float32), **shared} for feeds, t in made]


@case(JOINS)
def a_scalar_and_a_table_beside_the_rows() -> Made:
    """A temperature and a table [3, 4] without a batch axis, and a count that no row owns.

    Three requests are three rows, like the table: whoever guesses by size guesses wrong.
    """
    nodes = [
        op("Transpose", "table", "t"),
        op("Size", "table", "count"),
        op("Div", "x temp", "a"),
        op("MatMul", "a t", "b"),
        op("Softmax", "b", "y", axis=-1),
    ]
    inputs = [X4, value("temp", F32, []), value("table", F32, ["K", 4])]
    outputs = [value("y", F32, ["N", "K"]), value("count", I64, [])]
    return build(nodes, inputs, outputs), _side((1.0, 1.0, 0.1, 1.0, 0.1), table=floats(7, 3, 4)), SIDE


@case(JOINS, vector=("vector",), ids=("ids",), mask=("mask",))
def other_side_inputs(kind: str) -> Made:
    """A rate as [1], an embedding table given by the caller, a mask over time that all rows share."""
    if kind == "vector":
        model = build([op("Mul", "x rate", "a"), op("Tanh", "a", "y")], [X4, value("rate", F32, [1])], [Y4])
        return (
            model,
            [{**v, "rate": np.array([r], np.float32)} for v, r in zip(rows(4, 4), (1, 1, 2, 2), strict=True)],
            SIDE,
        )
    if kind == "ids":
        nodes = [op("Gather", "table x", "e"), op("ReduceSum", "e axis", "s", keepdims=0), op("Tanh", "s", "y")]
        inputs = [value("x", I32, ["N", 5]), value("table", F32, [3, 4])]
        ids = [np.random.default_rng(k).integers(0, 3, (1, 5)).astype(np.int32) for k in range(3)]
        return build(nodes, inputs, [Y4], [const("axis", [1])]), [{"x": v, "table": floats(1, 3, 4)} for v in ids], SIDE
    nodes = [op("Mul", "x mask", "m"), op("ReduceSum", "m axis", "y", keepdims=0)]
    inputs = [value("x", F32, ["N", "T", 4]), value("mask", F32, ["T", 1])]
    singles = [{"x": floats(k, 1, t, 4), "mask": floats(t, t, 1)} for k, t in enumerate((3, 3, 5, 5))]
    return build(nodes, inputs, [Y4], [const("axis", [1])]), singles, SIDE


@case(JOINS, add=("Add",), multiply=("Mul",), subtract=("Sub",))
def one_row_for_all_rows(kind: str) -> Made:
    """A value computed from an unbatched [1, 4] meets the rows; its shape is theirs only when there is one row.

    Whoever writes the sum over it because the shapes were equal once, spoils every other row.
    """
    nodes = [op("Tanh", "side", "a"), op("Relu", "x", "b"), op(kind, "a b", "c"), op("Neg", "c", "y")]
    singles = [{**feeds, "side": floats(5, 1, 4)} for feeds in rows(4, 4)]
    return build(nodes, [X4, value("side", F32, [1, 4])], [Y4]), singles, SIDE


@case(JOINS, lstm=(False,), lengths=(True,))
def sequences_of_different_length(lengths: bool) -> Made:
    """A bidirectional LSTM: padding would change the short ones, so only sequences of one length may join."""
    inputs, feeds = [value("x", F32, ["T", "N", 3])], [{"x": floats(k, t, 1, 3)} for k, t in enumerate((6, 3, 6, 3))]
    if lengths:
        inputs.append(value("len", I32, ["N"]))
        feeds = [{**feed, "len": np.array([n], np.int32)} for feed, n in zip(feeds, (6, 3, 4, 2), strict=True)]
    node = op("LSTM", "x W R B len" if lengths else "x W R B", "Y", hidden_size=3, direction="bidirectional")
    consts = [const("W", floats(1, 2, 12, 3)), const("R", floats(2, 2, 12, 3)), const("B", floats(3, 2, 24))]
    model = build([node], inputs, [value("Y", F32, ["T", 2, "N", 3])], consts)
    return model, feeds, {"x": 1, **({"len": 0} if lengths else {})}


@case(JOINS, mean=("mean",), conv=("conv",))
def other_variable_lengths(kind: str) -> Made:
    """A mean over time and a convolution over time: requests of two lengths, joined with their like only."""
    nodes = {
        "mean": [op("Tanh", "x", "a"), op("ReduceMean", "a", "y", axes=[2], keepdims=0)],
        "conv": [op("Conv", "x k", "a", pads=[1, 1]), op("Tanh", "a", "y")],
    }[kind]
    consts = [const("k", floats(1, 3, 3, 3))] if kind == "conv" else []
    outputs = [value("y", F32, ["N", 3] if kind == "mean" else ["N", 3, "T"])]
    singles = [{"x": floats(k, 1, 3, t)} for k, t in enumerate((5, 8, 5, 8, 5))]
    return build(nodes, [value("x", F32, ["N", 3, "T"])], outputs, consts), singles, {"x": 0}


def _branches() -> list[Any]:
    """y is x, or x less the mean over the batch, as the caller's flag says."""
    then = graph(
        [op("ReduceMean", "x", "m", axes=[0]), op("Sub", "x m", "t")], [], [value("t", F32, ["N", 4])], name="then"
    )
    other = graph([op("Identity", "x", "e")], [], [value("e", F32, ["N", 4])], name="else")
    compare = op("Greater", "flag nought", "c")
    return [op("Squeeze", "how zero", "flag"), compare, op("If", "c", "y", then_branch=then, else_branch=other)]


def _choices() -> list[Any]:
    """y is x, or the running sum over the batch, as the caller's flag says; both are computed."""
    nodes = [op("Squeeze", "how zero", "flag"), op("Cast", "flag", "f", to=F32), op("ReduceSum", "x zero", "s")]
    return [*nodes, op("Mul", "s f", "sf"), op("Add", "x sf", "y")]


@case(
    Verdict.ALONE,
    "Expand",
    "Reshape",
    "CumSum",
    "If",
    "example_inputs",
    "Slice",
    "ReduceMean",
    "ReduceSum",
    "DFT",
    "Trilu",
    "'y'",
    expand=("expand",),
    reshape=("reshape",),
    axis=("axis",),
    mean=("mean",),
    total=("total",),
    spectrum=("spectrum",),
    triangle=("triangle",),
    slice=("slice",),
    branch=("branch",),
    choice=("choice",),
)
def callers_say_how(kind: str) -> Made:
    """A shape, an axis, bounds or a choice given by the caller decide whether rows stay apart: some values mix them."""
    y = value("y", F32, None)
    how = value("how", I64, [3] if kind in ("expand", "reshape") else [1])
    nodes, given, consts = {
        "expand": ([op("Tanh", "x", "a"), op("Expand", "a how", "y")], [3, 1, 4], {}),
        "reshape": ([op("Tanh", "x", "a"), op("Reshape", "a how", "y")], [1, 2, 2], {}),
        "axis": ([op("Squeeze", "how zero", "axis"), op("CumSum", "x axis", "y")], [0], {"zero": [0]}),
        "mean": ([op("ReduceMean", "x how", "m"), op("Sub", "x m", "y")], [0], {}),
        "total": ([op("ReduceSum", "x how", "m"), op("Sub", "x m", "y")], [0], {}),
        "spectrum": ([op("Squeeze", "how zero", "axis"), op("DFT", "x _ axis", "y")], [0], {"zero": [0]}),
        "triangle": ([op("Squeeze", "how zero", "k"), op("Trilu", "x k", "y")], [0], {"zero": [0]}),
        "slice": ([op("Slice", "x how ends axes", "y")], [0], {"ends": [1], "axes": [0]}),
        "branch": (_branches(), [1], {"zero": [0], "nought": 0}),
        "choice": (_choices(), [1], {"zero": [0]}),
    }[kind]
    made = [const(name, array) for name, array in consts.items()]
    shape = {"expand": (1, 4), "spectrum": (4, 1)}.get(kind, (4,))
    opset = {"mean": 18, "spectrum": 20}.get(kind, 17)
    model = build(nodes, [value("x", F32, ["N", *shape]), how], [y], made, opset=opset)
    return model, [{**feeds, "how": np.array(given)} for feeds in rows(3, *shape)], {"x": 0}
