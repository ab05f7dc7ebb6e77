"""Models of unusual structure: bodies that capture outer values, missing names, odd names, functions, bare wires.

Owns: cases where nothing is wrong with the rows, and everything with the assumption that a graph is a list of boxes.
Must not know: lazybatch.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, helper, numpy_helper

from tests.cases.case import Made, Verdict, case, rows
from tests.onnx_models import BOOL, F32, I64, STRING, build, const, floats, graph, op, value

ALONE, JOINS, EITHER = Verdict.ALONE, Verdict.JOINS, Verdict.EITHER
X4, Y4 = value("x", F32, ["N", 4]), value("y", F32, ["N", 4])


def _with_flag(flags: tuple[bool, ...]) -> list[dict[str, np.ndarray]]:
    return [{**feeds, "c": np.array(flag)} for feeds, flag in zip(rows(len(flags), 4), flags, strict=True)]


@case(JOINS, opset13=(13, False), opset17=(17, False), nested=(17, True))
def if_captures_outer_values(opset: int, nested: bool) -> Made:
    """If branches read a node's output, an input and a weight of the outer graph, none of it listed at the node.

    The flag is a scalar input, so only requests with equal flags may join.
    """
    then = graph([op("Add", "a x", "t")], [], [value("t", F32, ["N", 4])], name="then")
    other = graph([op("Mul", "a w", "e")], [], [value("e", F32, ["N", 4])], name="else")
    if nested:
        inner = op("If", "c", "deep", then_branch=then, else_branch=other)
        then = graph(
            [op("Not", "c", "no"), inner, op("Sub", "deep side", "t2")], [], [value("t2", F32, ["N", 4])], name="outer"
        )
        other = graph([op("Mul", "side w", "e2")], [], [value("e2", F32, ["N", 4])], name="outer_else")
    nodes = [
        op("Relu", "x", "a"),
        op("Sigmoid", "a", "side"),
        op("If", "c", "r", then_branch=then, else_branch=other),
        op("Add", "r side", "y"),
    ]
    model = build(nodes, [X4, value("c", BOOL, [])], [Y4], [const("w", floats(5, 4))], opset=opset)
    return model, _with_flag((True, False, True, False)), {"x": 0}


@case(EITHER, loop=("loop",), scan=("scan",))
def loop_bodies_capture_outer_values(kind: str) -> Made:
    """Loop and Scan bodies read a tensor and a weight of the outer graph; the carried state has a row per request."""
    if kind == "loop":
        body = graph(
            [op("MatMul", "s w", "m"), op("Add", "m a", "s2"), op("Identity", "go", "go2")],
            [value("i", I64, []), value("go", BOOL, []), value("s", F32, ["N", 4])],
            [value("go2", BOOL, []), value("s2", F32, ["N", 4])],
            name="body",
        )
        nodes = [op("Tanh", "x", "a"), op("Loop", "three yes a", "r", body=body), op("Sigmoid", "r", "y")]
        consts = [const("three", 3), const("yes", True, bool), const("w", floats(1, 4, 4, scale=0.3))]
        return build(nodes, [X4], [Y4], consts), rows(3, 4), {"x": 0}
    body = graph(
        [op("Add", "s step", "sum"), op("MatMul", "sum w", "m"), op("Tanh", "m", "s2"), op("Identity", "s2", "out")],
        [value("s", F32, ["N", 4]), value("step", F32, ["N", 4])],
        [value("s2", F32, ["N", 4]), value("out", F32, ["N", 4])],
        name="body",
    )
    nodes = [op("Relu", "x", "a"), op("Scan", "h a", "last all", body=body, num_scan_inputs=1), op("Neg", "all", "y")]
    inputs = [value("x", F32, [5, "N", 4]), value("h", F32, ["N", 4])]
    outputs = [value("last", F32, ["N", 4]), value("y", F32, [5, "N", 4])]
    singles = [{"x": floats(k, 5, 1, 4), "h": floats(k + 9, 1, 4)} for k in range(3)]
    return build(nodes, inputs, outputs, [const("w", floats(1, 4, 4))]), singles, {"x": 1, "h": 0}


@case(JOINS)
def missing_names_in_a_recurrent_net() -> Made:
    """'' for what is not there: Clip without a minimum, LSTM without lengths and without Y, Resize without scales."""
    nodes = [
        op("Clip", "x _ high", "a"),
        op("LSTM", "a W R B _ h0", "_ hT", hidden_size=2),
        op("Unsqueeze", "hT axis", "h4"),
        op("Transpose", "h4", "ht", perm=[2, 0, 1, 3]),
        op("Resize", "ht _ scales", "y", mode="nearest"),
    ]
    consts = [
        const("high", 0.3),
        const("W", floats(1, 1, 8, 3)),
        const("R", floats(2, 1, 8, 2)),
        const("B", floats(3, 1, 16)),
        const("axis", [0]),
        const("scales", [1.0, 1.0, 4.0, 2.0]),
    ]
    inputs = [value("x", F32, [5, "N", 3]), value("h0", F32, [1, "N", 2])]
    singles = [{"x": floats(k, 5, 1, 3), "h0": floats(k + 9, 1, 1, 2)} for k in range(3)]
    return build(nodes, inputs, [value("y", F32, ["N", 1, 4, 4])], consts), singles, {"x": 1, "h0": 1}


@case(JOINS, clip=("clip",), gru=("gru",), pool=("pool",))
def missing_names_elsewhere(kind: str) -> Made:
    """'' in the middle of inputs and at the front of outputs: nothing may be fed, cut or bound by the empty name."""
    if kind == "gru":
        nodes = [op("GRU", "x W R _ _ _", "_ h", hidden_size=2), op("Squeeze", "h axis", "y")]
        consts = [const("W", floats(1, 1, 6, 3)), const("R", floats(2, 1, 6, 2)), const("axis", [0])]
        singles = [{"x": floats(k, 4, 1, 3)} for k in range(3)]
        return build(nodes, [value("x", F32, [4, "N", 3])], [value("y", F32, ["N", 2])], consts), singles, {"x": 1}
    if kind == "pool":
        nodes = [op("Relu", "x", "a"), op("Dropout", "a _ off", "b _"), op("MaxPool", "b", "y", kernel_shape=[2, 2])]
        shapes = [value("x", F32, ["N", 2, 4, 4])], [value("y", F32, ["N", 2, 3, 3])]
        return build(nodes, *shapes, [const("off", False, bool)]), rows(3, 2, 4, 4), {"x": 0}
    nodes = [op("Tanh", "x", "a"), op("Clip", "a low _", "b"), op("Clip", "b _ high", "y")]
    return build(nodes, [X4], [Y4], [const("low", -0.5), const("high", 0.5)]), rows(3, 4), {"x": 0}


@case(
    JOINS,
    slashes=("in/put:0", "../../up", "y.1"),
    unicode=("Éß 数", "{'a': \"b\"}", "é è"),
    spaces=(" ", "CON", "a\\b"),
)
def awkward_names(first: str, middle: str, last: str) -> Made:
    """Values with slashes, dots, spaces, quotes and non-ASCII; nodes unnamed, or named like a value or a device."""
    nodes = [
        op("Tanh", [first], [middle]),
        op("Neg", [middle], ["n/" + middle]),
        op("Abs", ["n/" + middle], ["%s%d"]),
        op("Sqrt", ["%s%d"], [last]),
    ]
    for node, name in zip(nodes, ("", first, "CON", "../x"), strict=True):
        node.name = name
    return build(nodes, [value(first, F32, ["N", 2])], [value(last, F32, ["N", 2])]), rows(3, 2, name=first), {first: 0}


@case(JOINS, passthrough=("passthrough",), inner=("inner",), twice=("twice",), unused=("unused",))
def bare_wires(kind: str) -> Made:
    """An input that is also an output, an inner value that is an output too, two equal outputs, an unused input."""
    inputs, outputs = [X4], [Y4]
    nodes = [op("Tanh", "x", "a"), op("Neg", "a", "b"), op("Exp", "b", "y")]
    if kind == "passthrough":
        outputs = [Y4, value("x", F32, ["N", 4])]
    elif kind == "inner":
        outputs = [value("a", F32, ["N", 4]), Y4]
    elif kind == "twice":
        nodes, outputs = [*nodes, op("Identity", "y", "z")], [Y4, value("z", F32, ["N", 4])]
    else:
        inputs = [X4, value("idle", F32, ["N", 2])]
        return build(nodes, inputs, outputs), [{**v, "idle": floats(3, 1, 2)} for v in rows(3, 4)], {"x": 0, "idle": 0}
    return build(nodes, inputs, outputs), rows(3, 4), {"x": 0}


@case(JOINS, initializer=("initializer",), computed=("computed",))
def outputs_that_no_row_owns(kind: str) -> Made:
    """A weight, or a value computed from weights alone, is an output: every request gets it whole."""
    nodes = [op("Gemm", "x w", "y")]
    if kind == "computed":
        nodes = [op("Tanh", "w", "t"), op("Gemm", "x t", "y"), op("Neg", "w", "extra")]
    extra = value("w" if kind == "initializer" else "extra", F32, [4, 4])
    return build(nodes, [X4], [Y4, extra], [const("w", floats(1, 4, 4))]), rows(3, 4), {"x": 0}


@case(JOINS, plain=(False,), nested=(True,))
def model_functions(nested: bool) -> Made:
    """Operators defined by the model itself, with an attribute, one calling another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    scale = helper.make_node("Constant", [], ["k"])
    scale.attribute.add(name="value_float", ref_attr_name="k", type=AttributeProto.FLOAT)
    soft = helper.make_function(
        "own", "Soft", ["v"], ["r"], [scale, op("Mul", "v k", "m"), op("Tanh", "m", "r")], opsets, ["k"]
    )
    twice = helper.make_function(
        "own",
        "Twice",
        ["v"],
        ["r"],
        [op("Soft", "v", "m", domain="own", k=0.5), op("Soft", "m", "r", domain="own", k=2.0)],
        opsets,
    )
    node = op("Twice", "a", "b", domain="own") if nested else op("Soft", "a", "b", domain="own", k=0.7)
    nodes = [op("Gemm", "x w", "a"), node, op("Neg", "b", "y")]
    functions = [soft, twice] if nested else [soft]
    model = build(nodes, [X4], [Y4], [const("w", floats(1, 4, 4))], domains={"own": 1}, functions=functions)
    return model, rows(3, 4), {"x": 0}


@case(JOINS)
def a_sparse_weight() -> Made:
    """A weight stored as a sparse initializer."""
    values = numpy_helper.from_array(np.array([1.5, -2.0, 0.5], np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 5, 15], np.int64), "w_places")
    sparse = [helper.make_sparse_tensor(values, places, [4, 4])]
    return build([op("Tanh", "x", "a"), op("MatMul", "a w", "y")], [X4], [Y4], sparse=sparse), rows(3, 4), {"x": 0}


@case(EITHER, label=("label",), normalise=("normalise",))
def rows_of_text(kind: str) -> Made:
    """Strings come in and go out; whether or not they join, each request gets its own."""
    words = [np.array([[text, "b"]], dtype=object) for text in ("a", "Zürich", "c")]
    if kind == "label":
        table = {"keys_strings": ["a", "b", "c"], "values_strings": ["x", "why", "z"], "default_string": "?"}
        nodes, domains = [op("LabelEncoder", "x", "y", domain="ai.onnx.ml", **table)], {"ai.onnx.ml": 2}
        shapes = [value("x", STRING, ["N", 2])], [value("y", STRING, ["N", 2])]
        return build(nodes, *shapes, domains=domains), [{"x": word} for word in words], {"x": 0}
    nodes = [
        op("Identity", "x", "a"),
        op("Reshape", "a one", "l"),
        op("StringNormalizer", "l", "u", case_change_action="UPPER", locale="C"),
        op("Reshape", "u back", "y"),
    ]
    consts = [const("one", [-1]), const("back", [-1, 2])]
    shapes = [value("x", STRING, ["N", 2])], [value("y", STRING, ["N", 2])]
    return build(nodes, *shapes, consts), [{"x": word} for word in words], {"x": 0}


@case(EITHER, half=("half",), mixed=("mixed",))
def sixteen_bit_floats(kind: str) -> Made:
    """Half precision in the middle or at the borders."""
    edge = 10 if kind == "half" else F32
    nodes = [op("Cast", "x", "a", to=10), op("Mul", "a two", "b"), op("Cast", "b", "y", to=edge)]
    model = build(nodes, [value("x", edge, ["N", 4])], [value("y", edge, ["N", 4])], [const("two", 2.0, np.float16)])
    return model, rows(3, 4, dtype=np.float16 if kind == "half" else np.float32), {"x": 0}


@case(JOINS, lstm=("LSTM", 4), gru=("GRU", 3), rnn=("RNN", 1))
def recurrent_state_by_the_batch_size(kind: str, gates: int) -> Made:
    """The first state is zeros of [1, N, 3], made with Shape and ConstantOfShape; the batch lies on axis 1."""
    nodes = [
        op("Shape", "x", "s"),
        op("Gather", "s one", "n", axis=0),
        op("Concat", "one n three", "hs", axis=0),
        op("ConstantOfShape", "hs", "h0"),
        op(kind, "x W R _ _ h0", "Y hT", hidden_size=3),
        op("Squeeze", "Y one", "y"),
    ]
    consts = [
        const("one", [1]),
        const("three", [3]),
        const("W", floats(1, 1, 3 * gates, 2)),
        const("R", floats(2, 1, 3 * gates, 3)),
    ]
    singles = [{"x": floats(k, 4, 1, 2)} for k in range(3)]
    return build(nodes, [value("x", F32, [4, "N", 2])], [value("y", F32, [4, "N", 3])], consts), singles, {"x": 1}
