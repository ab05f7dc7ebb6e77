"""Writing pieces: a run of nodes becomes a model file of its own.

Owns: which values enter and leave a piece, its typed inputs, its weights, and which boundaries may share a buffer.
Must not know: why it was cut there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from lazybatch.errors import InvalidInput
from lazybatch.executors.ort.session import WEIGHTS_FILE
from lazybatch.partition.costs import piece_name
from lazybatch.partition.liveness import Liveness
from lazybatch.partition.manifest import MANIFEST_FILE
from lazybatch.partition.onnx.liveness import constants, liveness_of, reads
from lazybatch.partition.onnx.optimise import WHOLE_FILE, weights_of
from lazybatch.partition.pieces import Piece
from lazybatch.partition.plan import Shape

RESIDUAL = {("com.microsoft.nchwc", "Conv"): (3,), ("com.microsoft", "FusedConv"): (3,), ("", "Add"): (0, 1)}
"""Operators that add into an input, and which inputs that can be: kernels that may write where they read."""
ALIASING = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Dropout", "Expand", "Split", "Slice", "Concat"}
)
"""Operators whose output may be another name for their input's buffer."""


def extract(
    proto: onnx.ModelProto,
    positions: Sequence[int],
    shapes: Mapping[str, Shape],
    costs: Sequence[float],
    directory: Path,
) -> list[Piece]:
    """Cut after the positions and write one file per piece into the directory, beside the weights."""
    graph = proto.graph
    for file in directory.glob("piece_*.onnx"):
        file.unlink()
    liveness = liveness_of(graph)
    weights = constants(graph)
    wanted = {value.name for value in graph.output}
    total = sum(costs) or 1.0
    bounds = [-1, *positions, len(graph.node) - 1]
    pieces = []
    for k, (start, end) in enumerate(itertools.pairwise(bounds)):
        nodes = graph.node[start + 1 : end + 1]
        read = list(dict.fromkeys(name for node in nodes for name in reads(node)))
        inputs, outputs = liveness.ends(start + 1, end + 1)
        if end == len(graph.node) - 1:
            outputs += [value.name for value in graph.output if value.name in weights]
        used = [name for name in {**dict.fromkeys(read), **dict.fromkeys(outputs)} if name in weights]
        model = _model(proto, nodes, inputs, outputs, used, shapes, k)
        path = directory / f"piece_{k:03d}.onnx"
        onnx.save(model, str(path))
        share = sum(costs[start + 1 : end + 1]) / total if costs else 0.0
        pieces.append(
            Piece(
                name=piece_name(k, [node.op_type for node in nodes], costs[start + 1 : end + 1]),
                path=path,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                operators=len(nodes),
                in_place=_in_place(graph, start + 1, end, inputs, outputs, liveness, shapes, wanted),
                weights_bytes=weights_of(model) + sum(len(t.raw_data) for t in model.graph.initializer),
                cost_share=share,
            )
        )
    return pieces


def _model(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    used: Sequence[str],
    shapes: Mapping[str, Shape],
    k: int,
) -> onnx.ModelProto:
    need = set(used)
    graph = onnx.GraphProto(name=f"piece_{k}")
    graph.node.extend(nodes)
    graph.initializer.extend(t for t in proto.graph.initializer if t.name in need)
    graph.sparse_initializer.extend(t for t in proto.graph.sparse_initializer if t.values.name in need)
    graph.input.extend(_declare(name, shapes[name], k) for name in inputs)
    graph.output.extend(_declare(name, shapes[name], None) if name in shapes else _bare(name) for name in outputs)
    model = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
    model.opset_import.extend(proto.opset_import)
    model.functions.extend(proto.functions)
    return model


def _declare(name: str, shape: Shape, k: int | None) -> onnx.ValueInfoProto:
    """Element type, rank and what the model promises: dimensions seen in probes need not hold for every request."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(shape.dtype))
    if shape.rank is None or k is None:
        return helper.make_tensor_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, kind, shape.fixed or [None] * shape.rank)


def _bare(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def _in_place(
    graph: onnx.GraphProto,
    start: int,
    end: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    liveness: Liveness,
    shapes: Mapping[str, Shape],
    wanted: set[str],
) -> tuple[tuple[str, str], ...]:
    """Pairs proven safe: the last node adds into an input that nothing else can still be reading.

    Every other reader of the input inside the piece must have finished before the last node starts, so it must be one
    the last node depends on, and it must not hand on the same buffer under another name.
    """
    last = graph.node[end]
    slots = RESIDUAL.get((last.domain if last.domain != "ai.onnx" else "", last.op_type), ())
    if not slots or len(last.output) != 1 or last.output[0] not in outputs or last.output[0] in wanted:
        return ()
    out = last.output[0]
    pairs = []
    for slot in slots:
        name = last.input[slot] if slot < len(last.input) else ""
        if name not in inputs or liveness.made.get(name, -1) < 0 or liveness.last[name] != end or name in wanted:
            continue
        if list(last.input).count(name) != 1 or name not in shapes or out not in shapes:
            continue
        if not shapes[name].seen or shapes[name].seen != shapes[out].seen or shapes[name].dtype != shapes[out].dtype:
            continue
        before = _ancestors(graph, start, end)
        others = liveness.readers(name, range(start, end))
        if all(k in before and graph.node[k].op_type not in ALIASING for k in others):
            pairs.append((name, out))
    return tuple(pairs[:1])


def _ancestors(graph: onnx.GraphProto, start: int, end: int) -> set[int]:
    """Positions within the piece that must have finished before node ``end`` starts."""
    needed = set(reads(graph.node[end]))
    found = set()
    for k in range(end - 1, start - 1, -1):
        if needed & set(graph.node[k].output):
            found.add(k)
            needed |= set(reads(graph.node[k]))
    return found


def claim(directory: Path, keep: Collection[Path] = ()) -> None:
    """Delete what an earlier partition left in the directory, and mark it as a partition's that is being made.

    keep: files of the model being cut. Raises `InvalidInput`, deleting nothing, where files of a partition's names are
    among them or lie in a directory that no partition was made in.
    """
    mark = directory / MANIFEST_FILE
    named = [*directory.glob("piece_*.onnx"), *(directory / name for name in (WHOLE_FILE, WEIGHTS_FILE))]
    found = [file for file in named if file.exists()]
    own = {file.resolve() for file in keep}
    for file in found:
        if file.resolve() in own or not mark.exists():
            raise InvalidInput(f"a partition in {directory} would overwrite {file.name}, which is no partition's")
    for file in found:
        file.unlink()
    mark.write_bytes(b"")
