"""Models whose shapes or scales come from the data: quantisers, squeezes, detections, empty tensors.

Owns: cases where one row's answer depends on its mates' numbers, and where rows of a tensor are not requests.
Must not know: lazybatch.
"""

from __future__ import annotations

import numpy as np

from tests.cases.case import Made, Verdict, case, rows
from tests.onnx_models import F32, F64, I64, U8, build, const, floats, op, value

ALONE, JOINS, EITHER = Verdict.ALONE, Verdict.JOINS, Verdict.EITHER
X4, Y4 = value("x", F32, ["N", 4]), value("y", F32, ["N", 4])
UNEVEN = [
    {"x": np.array([[0.11, 0.22, -0.33, 0.44]], np.float32)},
    {"x": np.array([[90.0, -70.0, 50.0, 3.0]], np.float32)},
    {"x": np.array([[0.5, -1.5, 2.5, -3.5]], np.float32)},
]


@case(
    ALONE,
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "ReduceMax",
    "'y'",
    integer=("integer",),
    convolution=("convolution",),
    contrib=("contrib",),
    own=("own",),
)
def a_scale_from_the_whole_tensor(kind: str) -> Made:
    """Dynamic quantisation: one scale for the whole tensor, so a row's answer moves with its mates."""
    bytes_ = np.random.default_rng(1).integers(-127, 127, (4, 3)).astype(np.int8)
    if kind == "own":
        nodes = [
            op("Abs", "x", "a"),
            op("ReduceMax", "a", "m", keepdims=1),
            op("Div", "x m", "d"),
            op("Mul", "d top", "q"),
            op("Round", "q", "r"),
            op("Mul", "r m", "y"),
        ]
        return build(nodes, [X4], [Y4], [const("top", 127.0)]), UNEVEN, {"x": 0}
    if kind == "contrib":
        node = op("DynamicQuantizeMatMul", "x w s z", "y", domain="com.microsoft")
        consts = [const("w", bytes_), const("s", 0.02), const("z", 0, np.int8)]
        domains = {"com.microsoft": 1}
        return build([node], [X4], [value("y", F32, ["N", 3])], consts, domains=domains), UNEVEN, {"x": 0}
    head = op("DynamicQuantizeLinear", "x", "q s z")
    tail = [op("Cast", "i", "f", to=F32), op("Mul", "f s", "y")]
    if kind == "convolution":
        kernel = np.random.default_rng(2).integers(1, 100, (2, 1, 2, 2)).astype(np.uint8)
        nodes = [head, op("ConvInteger", "q k z", "i"), *tail]
        shapes = [value("x", F32, ["N", 1, 2, 2])], [value("y", F32, ["N", 2, 1, 1])]
        return (
            build(nodes, *shapes, [const("k", kernel)]),
            [{"x": v["x"].reshape(1, 1, 2, 2)} for v in UNEVEN],
            {"x": 0},
        )
    nodes = [head, op("MatMulInteger", "q w z", "i"), *tail]
    return build(nodes, [X4], [value("y", F32, ["N", 3])], [const("w", bytes_)]), UNEVEN, {"x": 0}


@case(JOINS, uint8=(np.uint8,), int8=(np.int8,))
def a_scale_fixed_beforehand(dtype: type) -> Made:
    """Static quantisation: scales are constants, rows are independent."""
    nodes = [
        op("QuantizeLinear", "x s z", "q"),
        op("DequantizeLinear", "q s z", "d"),
        op("QuantizeLinear", "w s z", "wq"),
        op("DequantizeLinear", "wq s z", "wd"),
        op("MatMul", "d wd", "y"),
    ]
    consts = [const("s", 0.05), const("z", 3, dtype), const("w", floats(3, 4, 4))]
    return build(nodes, [X4], [Y4], consts), rows(3, 4), {"x": 0}


@case(ALONE, "Squeeze", "rank", "'y'", opset11=(11,), opset13=(13,), opset21=(21,))
def squeeze_without_axes(opset: int) -> Made:
    """Squeeze without axes drops the batch axis of one row, and keeps it for two: the rank depends on the batch."""
    model = build(
        [op("Relu", "x", "a"), op("Squeeze", "a", "y")],
        [value("x", F32, ["N", 1, 5])],
        [value("y", F32, None)],
        opset=opset,
    )
    return model, rows(3, 1, 5), {"x": 0}


@case(ALONE, "Squeeze", "ReduceMean", "rank", "'s'", "'y'")
def squeeze_without_axes_inside() -> Made:
    """The lost axis matters later: a mean over axis 0 is over features for one row, over rows for two."""
    nodes = [
        op("Relu", "x", "a"),
        op("Squeeze", "a", "s"),
        op("ReduceMean", "s", "y", axes=[0], keepdims=1),
    ]
    return build(nodes, [value("x", F32, ["N", 1, 5])], [value("y", F32, None)]), rows(3, 1, 5), {"x": 0}


@case(ALONE, "Flatten", "Reduce", "Unsqueeze", "rank", "'y'", flatten=("flatten",), frame=("frame",))
def the_batch_axis_moved_or_merged(kind: str) -> Made:
    """All rows become one long row (Flatten at axis 0) and its maximum; a frame around the batch is summed."""
    nodes = {
        "flatten": [op("Relu", "x", "a"), op("Flatten", "a", "f", axis=0), op("ReduceMax", "f", "y", axes=[1])],
        "frame": [op("Relu", "x", "a"), op("Unsqueeze", "a zero", "u"), op("ReduceSum", "u one", "y", keepdims=0)],
    }[kind]
    consts = [const("zero", [0]), const("one", [1])] if kind == "frame" else []
    return build(nodes, [X4], [value("y", F32, [1, None])], consts), rows(3, 4), {"x": 0}


@case(JOINS)
def rows_along_another_axis() -> Made:
    """Flatten at axis 0: a row is a quarter of the second axis, and its answer keeps the leading 1 of a single run."""
    return (
        build([op("Tanh", "x", "a"), op("Flatten", "a", "y", axis=0)], [X4], [value("y", F32, [1, None])]),
        rows(3, 4),
        {"x": 0},
    )


@case(JOINS, plain=(13,), newer=(21,))
def squeeze_with_axes(opset: int) -> Made:
    """Squeeze of a named axis leaves the batch alone."""
    nodes = [op("Relu", "x", "a"), op("Squeeze", "a axis", "s"), op("Tanh", "s", "y")]
    model = build(nodes, [value("x", F32, ["N", 1, 5])], [value("y", F32, ["N", 5])], [const("axis", [1])], opset=opset)
    return model, rows(3, 1, 5), {"x": 0}


def _boxes() -> list[dict[str, np.ndarray]]:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 0.95, 1], [2, 2, 3, 3]]], np.float32)
    scores = ([3, 2, -3], [-3, -3, -3], [1, 3, 2.0])
    return [{"boxes": boxes, "logits": np.array([[row]], np.float32)} for row in scores]


@case(ALONE, "NonMaxSuppression", "'sel'", "'picked'", plain=(False,), gathered=(True,))
def detections_are_not_rows(gathered: bool) -> Made:
    """NonMaxSuppression: as many rows as detections in the whole batch, the image's number in the first column.

    Three requests have 1, 0 and 2 detections, so a joined run gives three rows, which looks like one each.
    """
    nodes = [op("Sigmoid", "logits", "scores"), op("NonMaxSuppression", "boxes scores k iou thr", "sel")]
    consts = [const("k", [5]), const("iou", [0.5]), const("thr", [0.6])]
    inputs = [value("boxes", F32, ["N", 3, 4]), value("logits", F32, ["N", 1, 3])]
    outputs = [value("sel", I64, [None, 3])]
    if gathered:
        nodes += [op("Gather", "sel columns", "image_box", axis=1), op("GatherND", "boxes image_box", "picked")]
        consts += [const("columns", [0, 2])]
        outputs = [value("picked", F32, [None, 4])]
    return build(nodes, inputs, outputs, consts), _boxes(), {"boxes": 0, "logits": 0}


@case(
    ALONE,
    "NonZero",
    "Compress",
    "Unique",
    "'y'",
    nonzero=("nonzero",),
    compress=("compress",),
    unique=("unique",),
    declared=("declared",),
)
def as_many_rows_as_the_data_say(kind: str) -> Made:
    """The number of output rows depends on the numbers, whatever is declared: none, one or several per request."""
    nodes = {
        "nonzero": [op("Round", "x", "r"), op("NonZero", "r", "z"), op("Transpose", "z", "y", perm=[1, 0])],
        "compress": [
            op("ReduceSum", "x axis", "s", keepdims=0),
            op("Greater", "s zero", "keep"),
            op("Compress", "x keep", "y", axis=0),
        ],
        "unique": [op("Round", "x", "r"), op("Unique", "r", "y", axis=0)],
    }[kind if kind != "declared" else "compress"]
    outputs = [value("y", I64 if kind == "nonzero" else F32, [None, None] if kind != "declared" else ["N", 4])]
    consts = [const("axis", [1]), const("zero", 0.0)] if kind in ("compress", "declared") else []
    return build(nodes, [X4], outputs, consts), rows(4, 4), {"x": 0}


@case(ALONE, "TopK", "ArgMax", "ReduceMax", "'y'", topk=("topk",), argmax=("argmax",))
def the_best_of_the_batch(kind: str) -> Made:
    """TopK or ArgMax along the batch: one winner of the whole batch."""
    if kind == "topk":
        nodes, out = (
            [op("Tanh", "x", "a"), op("TopK", "a k", "y i", axis=0)],
            [value("y", F32, [1, 4]), value("i", I64, [1, 4])],
        )
        return build(nodes, [X4], out, [const("k", [1])]), rows(3, 4), {"x": 0}
    nodes = [op("Tanh", "x", "a"), op("ArgMax", "a", "y", axis=0)]
    return build(nodes, [X4], [value("y", I64, [1, 4])]), rows(3, 4), {"x": 0}


@case(ALONE, "NonZero", "GatherND", "ReduceSum", "'total'", "'picked'", "'rows'", some=(1.0,), rare=(50.0,))
def empty_tensors_flow_through(limit: float) -> Made:
    """NonZero may find nothing: (0, ..) tensors go through GatherND, MatMul and a sum, and nothing crashes."""
    nodes = [
        op("Greater", "x limit", "g"),
        op("Cast", "g", "gi", to=I64),
        op("NonZero", "gi", "nz"),
        op("Transpose", "nz", "idx", perm=[1, 0]),
        op("GatherND", "x idx", "picked"),
        op("Unsqueeze", "picked one", "u"),
        op("MatMul", "u w", "rows"),
        op("ReduceSum", "rows zero", "total", keepdims=0),
    ]
    consts = [const("limit", limit), const("one", [1]), const("zero", [0]), const("w", [[1.0, 10.0]])]
    outputs = [value("rows", F32, [None, 2]), value("total", F32, [2])]
    singles = [{"x": np.array([row], np.float32)} for row in ([2, 0, 3], [0, 0, 0], [0, 90, 0])]
    return build(nodes, [value("x", F32, ["N", 3])], outputs, consts), singles, {"x": 0}


@case(JOINS, slice=("slice",), input=("input",))
def rows_of_no_elements(kind: str) -> Made:
    """Each row holds a zero-sized tensor on its way (an empty slice, an empty list): still one row each."""
    if kind == "slice":
        nodes = [op("Tanh", "x", "a"), op("Slice", "a zero zero axis", "e"), op("Concat", "e a", "y", axis=1)]
        return build(nodes, [X4], [Y4], [const("zero", [0]), const("axis", [1])]), rows(3, 4), {"x": 0}
    nodes = [op("Concat", "x more", "s", axis=1), op("ReduceSum", "s axis", "y", keepdims=0)]
    inputs = [value("x", F32, ["N", 2, 4]), value("more", F32, ["N", "T", 4])]
    singles = [{"x": floats(k, 1, 2, 4), "more": floats(9, 1, 0, 4)} for k in range(3)]
    return build(nodes, inputs, [Y4], [const("axis", [1])]), singles, {"x": 0, "more": 0}


@case(JOINS, double=(F64, np.float64), bytes=(U8, np.uint8))
def other_element_types(onnx_type: int, dtype: type) -> Made:
    """Rows of doubles and of bytes join like rows of floats."""
    nodes = [op("Cast", "x", "a", to=F32), op("Mul", "a half", "b"), op("Cast", "b", "y", to=onnx_type)]
    model = build(nodes, [value("x", onnx_type, ["N", 4])], [value("y", onnx_type, ["N", 4])], [const("half", 0.5)])
    singles = [{"x": (np.abs(floats(k, 1, 4)) * 40).astype(dtype)} for k in range(3)]
    return model, singles, {"x": 0}
