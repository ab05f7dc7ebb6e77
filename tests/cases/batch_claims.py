"""Models that say their batch is free, and are wrong: a joined run fails, or gives an answer that is wrong in silence.

Owns: cases of hard-wired batch sizes, of rows that see each other, and of answers that depend on the batch size.
Must not know: lazybatch.
"""

from __future__ import annotations

import numpy as np

from tests.cases.case import Made, Verdict, case, rows
from tests.onnx_models import F32, I64, build, const, floats, graph, op, value

ALONE, JOINS = Verdict.ALONE, Verdict.JOINS
X4, Y4 = value("x", F32, ["N", 4]), value("y", F32, ["N", 4])


@case(ALONE, "Reshape", "'shape'", "'flat'", opset13=(13,), opset17=(17,), opset21=(21,))
def reshape_to_one_row(opset: int) -> Made:
    """A Reshape in the middle wants a leading 1: one row works, three fail."""
    nodes = [op("MatMul", "x w", "a"), op("Reshape", "a shape", "flat"), op("Softmax", "flat", "y", axis=-1)]
    consts = [const("w", floats(9, 4, 2)), const("shape", [1, 6])]
    model = build(nodes, [value("x", F32, ["N", 3, 4])], [value("y", F32, ["M", 6])], consts, opset=opset)
    return model, rows(3, 3, 4), {"x": 0}


@case(ALONE, "Reshape", "Gemm", "'flat'", "MatMul")
def convolution_flattened_to_one_row() -> Made:
    """Reshape([1, -1]) after a convolution: the joined run fails only later, where the Gemm counts its columns."""
    nodes = [op("Conv", "x k", "c", pads=[1] * 4), op("Reshape", "c shape", "flat"), op("Gemm", "flat w", "y")]
    consts = [const("k", floats(1, 2, 3, 3, 3)), const("shape", [1, -1]), const("w", floats(2, 32, 5))]
    return (
        build(nodes, [value("x", F32, ["N", 3, 4, 4])], [value("y", F32, ["N", 5])], consts),
        rows(3, 3, 4, 4),
        {"x": 0},
    )


@case(ALONE, "Concat", "token")
def class_token_of_one_row() -> Made:
    """A learnt token with a leading 1 is concatenated before every sequence: fails for two rows."""
    nodes = [
        op("Concat", "token x", "s", axis=1),
        op("MatMul", "s w", "a"),
        op("ReduceMean", "a", "y", axes=[1], keepdims=0),
    ]
    consts = [const("token", floats(1, 1, 1, 4)), const("w", floats(2, 4, 4))]
    return build(nodes, [value("x", F32, ["N", 3, 4])], [Y4], consts), rows(3, 3, 4), {"x": 0}


@case(ALONE, "Reshape", "ReduceMean", "'a'", "'y'")
def reshape_mixes_rows_into_a_mean() -> Made:
    """Reshape([1, -1, 4]) and a mean: three rows in, one row of averages out, and no error."""
    nodes = [op("Reshape", "x shape", "a"), op("ReduceMean", "a", "y", axes=[1], keepdims=0)]
    model = build(nodes, [value("x", F32, ["N", 3, 4])], [value("y", F32, [1, 4])], [const("shape", [1, -1, 4])])
    return model, [{"x": np.full((1, 3, 4), k, np.float32)} for k in (1, 2, 30)], {"x": 0}


@case(ALONE, "Reshape", "Softmax", "'half'", "'p'", "'y'")
def reshape_there_and_back() -> Made:
    """Softmax over a Reshape([2, -1]) that is then undone: the right shape for any batch, the wrong numbers."""
    nodes = [op("Reshape", "x two", "half"), op("Softmax", "half", "p", axis=-1), op("Reshape", "p back", "y")]
    return build(nodes, [X4], [Y4], [const("two", [2, -1]), const("back", [-1, 4])]), rows(3, 4), {"x": 0}


@case(ALONE, "Reshape", "Transpose", "'t'", "'y'")
def transpose_then_reshape() -> Made:
    """Rows turned into columns and read back as rows: one row is itself, two rows are interleaved."""
    nodes = [op("Relu", "x", "a"), op("Transpose", "a", "t", perm=[1, 0]), op("Reshape", "t back", "y")]
    return build(nodes, [X4], [Y4], [const("back", [-1, 4])]), rows(3, 4), {"x": 0}


@case(
    ALONE,
    "Softmax",
    "LogSoftmax",
    "CumSum",
    "Sub",
    "ReduceMean",
    "ReduceMax",
    "MeanVarianceNormalization",
    "LpNormalization",
    "BatchNormalization",
    "MatMul",
    "Gemm",
    "Einsum",
    "'y'",
    softmax=("softmax",),
    cumsum=("cumsum",),
    centre=("centre",),
    norm=("norm",),
    attention=("attention",),
    einsum=("einsum",),
    peak=("peak",),
)
def an_operator_along_the_batch(kind: str) -> Made:
    """An operator that works along axis 0: the shape is right for any batch, each row depends on its mates."""
    nodes = {
        "softmax": [op("Tanh", "x", "a"), op("Softmax", "a", "y", axis=0)],
        "cumsum": [op("Tanh", "x", "a"), op("CumSum", "a zero", "y")],
        "centre": [op("Tanh", "x", "a"), op("ReduceMean", "a", "m", axes=[0]), op("Sub", "a m", "y")],
        "norm": [op("Tanh", "x", "a"), op("LpNormalization", "a", "y", axis=0)],
        "attention": [
            op("Tanh", "x", "a"),
            op("Transpose", "a", "t"),
            op("MatMul", "a t", "s"),
            op("Softmax", "s", "p", axis=-1),
            op("MatMul", "p a", "y"),
        ],
        "einsum": [op("Tanh", "x", "a"), op("Einsum", "a a a", "y", equation="nk,mk,mj->nj")],
        "peak": [op("ReduceMax", "x", "m", keepdims=0), op("Div", "x m", "y")],
    }[kind]
    return build(nodes, [X4], [Y4], [const("zero", 0)] if kind == "cumsum" else []), rows(3, 4), {"x": 0}


@case(ALONE, "Slice", "Gather", "ReverseSequence", "'y'", slice=("slice",), gather=("gather",), roll=("roll",))
def rows_out_of_order(kind: str) -> Made:
    """Every row's numbers are right, and stand in another row: reversed, or rolled by one."""
    nodes = {
        "slice": [op("Tanh", "x", "a"), op("Slice", "a last first axis step", "y")],
        "gather": [
            op("Tanh", "x", "a"),
            op("Shape", "a", "s"),
            op("Gather", "s zero", "n"),
            op("Sub", "n one", "e"),
            op("Range", "zero n one", "up"),
            op("Sub", "e up", "down"),
            op("Gather", "a down", "y", axis=0),
        ],
        "roll": [
            op("Tanh", "x", "a"),
            op("Slice", "a one1 last1 axis", "tail"),
            op("Slice", "a axis one1 axis", "head"),
            op("Concat", "tail head", "y", axis=0),
        ],
    }[kind]
    everything = {
        "last": [-1],
        "first": [-1000],
        "axis": [0],
        "step": [-1],
        "zero": 0,
        "one": 1,
        "one1": [1],
        "last1": [1000],
    }
    used = {name for node in nodes for name in node.input}
    consts = [const(name, array) for name, array in everything.items() if name in used]
    return build(nodes, [X4], [Y4], consts), rows(4, 4), {"x": 0}


@case(ALONE, "MeanVarianceNormalization", "'y'")
def normalised_over_the_batch() -> Made:
    """A normalisation whose default axes take its statistics over the batch as well."""
    nodes = [op("Conv", "x k", "c"), op("MeanVarianceNormalization", "c", "y")]
    shapes = [value("x", F32, ["N", 3, 5, 5])], [value("y", F32, ["N", 2, 3, 3])]
    return build(nodes, *shapes, [const("k", floats(1, 2, 3, 3, 3))]), rows(3, 3, 5, 5), {"x": 0}


@case(ALONE, "MaxPool", "'index'", "'where'", "Indices")
def pooling_indices_count_over_the_batch() -> Made:
    """MaxPool's second output counts positions through the whole batch: row 1's start where row 0's end."""
    nodes = [op("Relu", "x", "a"), op("MaxPool", "a", "y index", kernel_shape=[2, 2], strides=[2, 2])]
    outputs = [value("y", F32, ["N", 2, 2, 2]), value("index", I64, ["N", 2, 2, 2])]
    return build(nodes, [value("x", F32, ["N", 2, 4, 4])], outputs), rows(3, 2, 4, 4), {"x": 0}


@case(ALONE, "If", "Where", "ReduceMax", "'high'", "'top'", "'y'", where=("where",), branch=("branch",))
def a_rare_value_anywhere_changes_everyone(kind: str) -> Made:
    """Rows are independent until one of them holds a number above 50; then its mates are halved as well."""
    nodes = [op("Neg", "x", "a"), op("ReduceMax", "a", "top", keepdims=0), op("Greater", "top limit", "high")]
    if kind == "where":
        nodes += [op("Mul", "a half", "b"), op("Where", "high b a", "y")]
    else:
        then = graph([op("Mul", "a half", "t")], [], [value("t", F32, ["N", 4])], name="then")
        other = graph([op("Identity", "a", "e")], [], [value("e", F32, ["N", 4])], name="else")
        nodes += [op("If", "high", "y", then_branch=then, else_branch=other)]
    singles = [*rows(2, 4), {"x": np.full((1, 4), -90, np.float32)}]
    return build(nodes, [X4], [Y4], [const("limit", 50.0), const("half", 0.5)]), singles, {"x": 0}


@case(ALONE, "If", "Div", "'y'", "'z'", "'n'", "Shape")
def a_branch_on_the_batch_size() -> Made:
    """If(N == 1) squeezes, and a mean is divided by N: joined, one output gains a rank and the other is too small."""
    then = graph([op("Squeeze", "a axis", "t")], [], [value("t", F32, None)], name="then")
    other = graph([op("Identity", "a", "e")], [], [value("e", F32, None)], name="else")
    nodes = [
        op("Relu", "x", "a"),
        op("Shape", "a", "s"),
        op("Gather", "s zero", "n"),
        op("Equal", "n one", "c"),
        op("If", "c", "y", then_branch=then, else_branch=other),
        op("Cast", "n", "nf", to=F32),
        op("ReduceMean", "a", "mu", axes=[1], keepdims=1),
        op("Div", "mu nf", "z"),
    ]
    consts = [const("zero", 0), const("one", 1), const("axis", [0])]
    return build(nodes, [X4], [value("y", F32, None), value("z", F32, ["N", 1])], consts), rows(3, 4), {"x": 0}


@case(
    ALONE,
    "Mul",
    "Div",
    "Add",
    "Greater",
    "Cast",
    "Sub",
    "Max",
    "Range",
    "If",
    "Expand",
    "Tile",
    "Where",
    "Pow",
    "'n'",
    "'y'",
    "Shape",
    "Size",
    "Gather",
    divide=("divide",),
    position=("position",),
    large=("large",),
    tile=("tile",),
    size=("size",),
    late=("late",),
)
def the_batch_size_as_a_number(kind: str) -> Made:
    """A number computed from the batch size enters the rows: right shape, wrong values, some only from 9 rows on."""
    head = [op("Tanh", "x", "a"), op("Shape", "a", "s"), op("Gather", "s zero", "n"), op("Cast", "n", "nf", to=F32)]
    tails = {
        "divide": [op("Div", "a nf", "y")],
        "position": [
            op("Range", "zero n one", "r"),
            op("Cast", "r", "rf", to=F32),
            op("Unsqueeze", "rf axis1", "col"),
            op("Add", "a col", "y"),
        ],
        "large": [op("Greater", "n eight", "c"), op("Neg", "a", "b"), op("Where", "c b a", "y")],
        "tile": [
            op("Unsqueeze", "n axis0", "n1"),
            op("Concat", "n1 ones", "rep", axis=0),
            op("Unsqueeze", "a axis0", "u"),
            op("Tile", "u rep", "t"),
            op("ReduceSum", "t axis0", "y", keepdims=0),
        ],
        "size": [op("Size", "a", "k"), op("Cast", "k", "kf", to=F32), op("Mul", "a kf", "y")],
        "late": [
            op("Sub", "n eight", "d"),
            op("Max", "d zero", "over"),
            op("Cast", "over", "of", to=F32),
            op("Sub", "a of", "y"),
        ],
    }
    nodes = (head if kind != "size" else head[:1]) + tails[kind]
    everything = {"zero": 0, "one": 1, "eight": 8, "axis0": [0], "axis1": [1], "ones": [1, 1]}
    used = {name for node in nodes for name in node.input}
    needed = [node for node in nodes if used & set(node.output) or "y" in node.output]
    consts = [const(name, array) for name, array in everything.items() if name in used]
    return build(needed, [X4], [Y4], consts), rows(12, 4), {"x": 0}


@case(JOINS, zeros=("zeros",), reshape=("reshape",), expand=("expand",))
def the_batch_size_used_as_a_size(kind: str) -> Made:
    """The honest use of Shape: a state of zeros, a Reshape or an Expand for as many rows as there are."""
    head = [op("Shape", "x", "s"), op("Gather", "s zero1", "n", axis=0)]
    tails = {
        "zeros": [
            op("Concat", "n four", "zs", axis=0),
            op("ConstantOfShape", "zs", "z"),
            op("Tanh", "x", "a"),
            op("Concat", "a z", "b", axis=1),
            op("Gemm", "b w8", "y"),
        ],
        "reshape": [
            op("Concat", "n two two", "sh", axis=0),
            op("Reshape", "x sh", "a"),
            op("Softmax", "a", "p", axis=-1),
            op("Concat", "n minus", "back", axis=0),
            op("Reshape", "p back", "y"),
        ],
        "expand": [
            op("Concat", "n four", "es", axis=0),
            op("Expand", "bias es", "e"),
            op("Tanh", "x", "a"),
            op("Add", "a e", "y"),
        ],
    }
    everything = {
        "zero1": [0],
        "four": [4],
        "two": [2],
        "minus": [-1],
        "w8": floats(3, 8, 4),
        "bias": floats(4, 1, 4),
    }
    nodes = head + tails[kind]
    used = {name for node in nodes for name in node.input}
    return build(nodes, [X4], [Y4], [const(k, v) for k, v in everything.items() if k in used]), rows(4, 4), {"x": 0}


@case(ALONE, "batch", "axis", "'x'")
def a_fixed_batch_of_one() -> Made:
    """The input is declared [1, 4]: whether or not the operators could take more, nobody promised it."""
    model = build([op("Tanh", "x", "y")], [value("x", F32, [1, 4])], [value("y", F32, [1, 4])])
    return model, rows(2, 4), {}


@case(ALONE, "If", "'many'", "ReduceSum", "'y'", any=("ReduceMax",), all=("ReduceMin",))
def a_branch_on_what_the_rows_hold(kind: str) -> Made:
    """If over a flag reduced from all rows: one branch for everybody, chosen by whoever is in the batch."""
    then = graph([op("Mul", "a two", "t")], [], [value("t", F32, ["N", 4])], name="then")
    other = graph([op("Abs", "a", "e")], [], [value("e", F32, ["N", 4])], name="else")
    nodes = [
        op("Neg", "x", "a"),
        op("ReduceSum", "a axis", "sums", keepdims=0),
        op(kind, "sums", "one", keepdims=0),
        op("Greater", "one zero", "many"),
        op("If", "many", "y", then_branch=then, else_branch=other),
    ]
    consts = [const("axis", [1]), const("zero", 0.0), const("two", 2.0)]
    singles = [{"x": np.array([[1, 2, 3, 4]], np.float32)}, {"x": np.array([[-1, -2, -3, -4]], np.float32)}]
    return build(nodes, [X4], [Y4], consts), singles, {"x": 0}
