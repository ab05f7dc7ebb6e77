"""What probes might not trigger: operators that tie the rows of a batch together only for some values.

Owns: the spread of three marks through a graph, *data* (depends on values of batched inputs), *size* (depends on
shapes of batched values only) and *given* (depends on values of unbatched inputs), and the sentences that refuse
joining because of where they arrive.
Must not know: how a model is run or cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import inliner, numpy_helper

from lazybatch.partition.onnx.liveness import inner_graphs, reads

RANDOM = frozenset(
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Sampling"]
)
WHOLE_TENSOR_SCALE = frozenset(
    ["DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "DynamicQuantizeConv"]
)
COUNTING = frozenset(
    ["NonZero", "NonMaxSuppression", "Unique", "StringSplit", "BeamSearch", "GreedySearch", "WhisperBeamSearch"]
)
REDUCING = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
ALONG_AN_AXIS = frozenset(["ArgMax", "ArgMin", "CumProd", "CumSum", "Hardmax", "LogSoftmax", "Softmax", "TopK"])
SHAPES = frozenset({"Shape", "Size"})
SHAPE_INPUTS = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "TopK": (1,),
    "OneHot": (1,),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "CenterCropPad": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
    "Trilu": (1,),
    "CumProd": (1,),
    "CumSum": (1,),
    "SplitToSequence": (1,),
    "SequenceAt": (1,),
    "DFT": (2,),
    "STFT": (1, 3),
    **dict.fromkeys(REDUCING, (1,)),
}
SHAPED_FOR_ALL = frozenset(
    [
        "Reshape",
        "Expand",
        "Tile",
        "Slice",
        "Pad",
        "Resize",
        "Upsample",
        "Split",
        "Squeeze",
        "Unsqueeze",
        "CenterCropPad",
        "AffineGrid",
        "Col2Im",
        "CumProd",
        "CumSum",
        "SplitToSequence",
        "SequenceAt",
        "Trilu",
        "DFT",
        "STFT",
        *REDUCING,
    ]
)
"""Operators whose shape input speaks of the axis of the rows as well; from a caller, it is right for one row only."""
SIZE_SENSITIVE = frozenset(
    [
        "Equal",
        "Greater",
        "Less",
        "GreaterOrEqual",
        "LessOrEqual",
        "Min",
        "Max",
        "Clip",
        "Mod",
        "Div",
        "Floor",
        "Ceil",
        "Round",
        "Cast",
        "ReduceMax",
        "ReduceMin",
        "ArgMax",
        "ArgMin",
        "TopK",
    ]
)
"""Operators by which a number of rows can steer in steps that a few batch sizes need not show."""


@dataclass(slots=True)
class Marks:
    """Where the marks arrived. uses: top-level nodes whose size-marked operands must be looked at when run."""

    data: set[str] = field(default_factory=set)
    size: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    uses: list[SizeUse] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SizeUse:
    """A node that could steer by the number of rows, and which of its operands may depend on it."""

    operator: str
    made: str
    operands: tuple[str, ...]


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions replaced by what they stand for."""
    return inliner.inline_local_functions(proto) if proto.functions else proto


def spread(graph: onnx.GraphProto, batched: Mapping[str, int] | Iterable[str]) -> Marks:
    """Follow the marks from the inputs through the graph. batched: the batched inputs, with their axes if not all 0."""
    constants = {t.name: t for t in graph.initializer}
    rows = set(batched)
    marks = Marks(data=rows, given={port.name for port in graph.input if port.name not in rows | set(constants)})
    axes = set(batched.values()) if isinstance(batched, Mapping) else {0}
    walker = _Walker(marks, constants, axes | {0})
    walker.walk(graph.node, top=True)
    marks.refusals = list(dict.fromkeys((*marks.refusals, *walker.inner)))  # the surest first
    marks.scales = list(dict.fromkeys(marks.scales))
    return marks


class _Walker:
    def __init__(self, marks: Marks, constants: dict[str, onnx.TensorProto], row_axes: set[int]) -> None:
        self.marks = marks
        self.constants = constants
        self.row_axes = row_axes
        self.inner: list[str] = []

    def walk(self, nodes: Iterable[onnx.NodeProto], *, top: bool) -> None:
        for node in nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
            self._judge(node, top)
            if node.op_type in ("If", "Loop", "Scan", "SequenceMap"):
                self._enter(node)
            else:
                self._pass_on(node, node.output)

    def _marked(self, names: Iterable[str]) -> tuple[bool, bool]:
        names = [name for name in names if name]
        return any(n in self.marks.data for n in names), any(n in self.marks.size for n in names)

    def _pass_on(self, node: onnx.NodeProto, outputs: Iterable[str]) -> None:
        data, size = self._marked(reads(node))
        if node.op_type in SHAPES or node.op_type == "EyeLike":
            data, size = False, data or size
        names = [name for name in outputs if name]
        if node.op_type not in SHAPES and not self.marks.given.isdisjoint(reads(node)):
            self.marks.given.update(names)
        if data:
            self.marks.data.update(names)
        if size:
            self.marks.size.update(names)

    def _enter(self, node: onnx.NodeProto) -> None:
        """Inner graphs: carried values are followed until nothing new is marked."""
        outside = list(node.input)
        for body in inner_graphs(node):
            self.constants.update((t.name, t) for t in body.initializer)
            given = [value.name for value in body.input]
            carried = outside[2:] if node.op_type == "Loop" else outside
            names = given[2:] if node.op_type == "Loop" else given
            for source, inside in zip(carried, names, strict=False):
                self._copy(source, inside)
            if node.op_type == "Loop" and given:
                self._copy(outside[0], given[0])
            for _ in range(len(names) + 1):
                before = self._extent()
                self.walk(body.node, top=False)
                results = [value.name for value in body.output]
                inner = results[1:] if node.op_type == "Loop" else results
                for result, inside in zip(inner, names, strict=False):
                    if node.op_type in ("Loop", "Scan"):
                        self._copy(result, inside)
                if before == self._extent():
                    break
            for result, out in zip(inner, node.output, strict=False):
                self._copy(result, out)
            if node.op_type == "Loop" and results and results[0] in self.marks.data | self.marks.size:
                self._refuse(node, "goes on or stops by a value of the batch, so all rows would stop together")

    def _extent(self) -> tuple[int, int, int]:
        return len(self.marks.data), len(self.marks.size), len(self.marks.given)

    def _copy(self, source: str, target: str) -> None:
        if target and source in self.marks.data:
            self.marks.data.add(target)
        if target and source in self.marks.size:
            self.marks.size.add(target)
        if target and source in self.marks.given:
            self.marks.given.add(target)

    def _refuse(self, node: onnx.NodeProto, why: str) -> None:
        self.marks.refusals.append(f"{called(node)} {why}")

    def _judge(self, node: onnx.NodeProto, top: bool) -> None:
        kind = node.op_type
        names = list(node.input)
        data, _ = self._marked(names)
        if kind in RANDOM or (kind == "Dropout" and self._training(node)):
            self._refuse(node, "draws random numbers, so an answer depends on the draw and not on the row alone")
        elif kind in WHOLE_TENSOR_SCALE and data:
            self.marks.scales.append(
                f"{called(node)} takes its scale from the whole tensor, so a row's answer depends on its batch mates"
            )
        elif kind == "BatchNormalization" and data and _attribute(node, "training_mode"):
            self._refuse(node, "normalises by the mean of the whole batch (training mode)")
        elif kind in COUNTING and data:
            self._refuse(node, "returns as many rows as it finds in the whole batch, not one share per row")
        elif kind == "Compress" and self._marked(names[1:2])[0]:
            self._refuse(node, "keeps rows by a condition computed from the batch")
        elif kind == "StringNormalizer" and data and any(a.name == "stopwords" and a.strings for a in node.attribute):
            self._refuse(node, "drops words, so the rows that follow move up")
        elif kind in ("If", "Loop") and self._marked(names[: 1 if kind == "If" else 2])[0]:
            self._refuse(node, "branches or loops by a value of the batch, so all rows would take one path")
        elif not top and data and self._may_mix(node):
            why = "in the body of an If, Loop or Scan works along an axis on which the rows may lie"
            self.inner.append(f"{called(node)} {why}")
        self._judge_shapes(node)
        self._watch_sizes(node, top)

    def _may_mix(self, node: onnx.NodeProto) -> bool:
        """Whether it reduces or accumulates along a row axis: values inside a body cannot be watched by probes."""
        kind = node.op_type
        if (kind not in REDUCING and kind not in ALONG_AN_AXIS) or not self._marked(node.input[:1])[0]:
            return False
        axes = [k for a in node.attribute if a.name in ("axis", "axes") for k in (a.ints or [a.i])]
        if len(node.input) > 1 and node.input[1] and kind != "TopK":
            given = self.constants.get(node.input[1])
            if given is None:
                return True
            axes = [int(axis) for axis in numpy_helper.to_array(given).reshape(-1)]
        if not axes and kind in REDUCING:
            return not _attribute(node, "noop_with_empty_axes")
        # Softmax and TopK work along the last axis where nothing is said, ArgMax along the first.
        default = [0] if kind in ("ArgMax", "ArgMin") else [-1]
        return not self.row_axes.isdisjoint(axes or default)

    def _judge_shapes(self, node: onnx.NodeProto) -> None:
        for k in SHAPE_INPUTS.get(node.op_type, ()):
            if k < len(node.input) and node.input[k] in self.marks.data:
                self._refuse(node, f"takes a shape or bound ({node.input[k]!r}) from the values of the batch")
                return
            shaped = node.op_type in SHAPED_FOR_ALL and not (self.marks.data | self.marks.size).isdisjoint(
                node.input[:1]
            )
            if shaped and k < len(node.input) and node.input[k] in self.marks.given:
                self._refuse(node, f"takes a shape or bound ({node.input[k]!r}) from the caller, meant for one row")
                return

    def _watch_sizes(self, node: onnx.NodeProto, top: bool) -> None:
        kind = node.op_type
        steering = kind in SIZE_SENSITIVE or kind in ("If", "Loop")
        operands = node.input[:1] if kind == "If" else node.input[:2] if kind == "Loop" else node.input
        if not steering or not any(n in self.marks.size and n not in self.marks.data for n in operands):
            return
        if not top:
            if kind not in ("Cast", "Div", "Floor", "Ceil", "Round"):
                self._refuse(node, "inside a branch or loop body steers by a shape that may be the number of rows")
            return
        self.marks.uses.append(SizeUse(kind, node.output[0], tuple(name for name in operands if name)))

    def _training(self, node: onnx.NodeProto) -> bool:
        if len(node.input) < 3 or not node.input[2]:
            return False
        flag = self.constants.get(node.input[2])
        return flag is None or bool(numpy_helper.to_array(flag).any())


def called(node: onnx.NodeProto) -> str:
    """What a node is called in a sentence: its operator, and the first value it makes."""
    made: Sequence[str] = [name for name in node.output if name]
    return f"operator {node.op_type} (makes {made[0]!r})" if made else f"operator {node.op_type}"


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)
