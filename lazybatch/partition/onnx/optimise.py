"""Optimise the whole graph first, so that fusions and blocked layouts survive the cut.

Owns: the optimised graph as a file of its own beside its weights, and the fall-back to the graph as it was written.
Must not know: where the graph is cut, and what a batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import onnx

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort.session import WEIGHTS_FILE
from lazybatch.partition.onnx.liveness import reads
from lazybatch.partition.onnx.source import Source, external_tensors, one_line, ports_of
from lazybatch.partition.proof.ports import Port

WHOLE_FILE = "whole.onnx"

Opener = Callable[..., Any]
"""`open_session` with threads and providers bound."""


@dataclass(frozen=True, slots=True)
class Optimised:
    """A graph ready to be cut: sorted, nodes named by position, weights beside it.

    note: why the graph is the original one; None where the runtime's optimised graph could be saved.
    """

    proto: onnx.ModelProto
    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    note: str | None


def optimise(source: Source, directory: Path, opener: Opener) -> Optimised:
    """Write the optimised model into the directory and read it back without its weights.

    Raises `ModelError` where the runtime refuses the model, `InvalidInput` for options it cannot have.
    """
    path = directory / WHOLE_FILE
    try:
        session = opener(source.loadable(), optimise=True, save_to=path, folder=_folder(source))
        note = None
    except InvalidInput:
        raise
    except Exception as error:
        path.unlink(missing_ok=True)
        (directory / WEIGHTS_FILE).unlink(missing_ok=True)
        session = _open_plain(source, error, opener)
        note = f"the optimised graph cannot be saved ({one_line(error)}); the original graph was cut"
    inputs, outputs = ports_of(source, session)
    del session
    if note is None:
        note = _reload(path, opener)
    if note is not None:
        _write_original(source, path)
    proto = onnx.load(str(path), load_external_data=False)
    _sort(proto.graph)
    _drop_dead(proto.graph)
    if not proto.graph.node:
        raise ModelError(f"{source.path}: there is nothing to run: every output is an input or a weight")
    for position, node in enumerate(proto.graph.node):
        node.name = f"n{position}"
    onnx.save(proto, str(path))
    return Optimised(proto, path, inputs, outputs, note)


def _folder(source: Source) -> Path | None:
    return source.folder if isinstance(source.loadable(), bytes) else None


def _open_plain(source: Source, first: Exception, opener: Opener) -> Any:
    try:
        return opener(source.loadable(), optimise=False, folder=_folder(source))
    except Exception as error:
        raise ModelError(f"{source.path}: ONNX Runtime refuses it: {one_line(error)}") from first


def _reload(path: Path, opener: Opener) -> str | None:
    """Why the saved optimised graph cannot be used; None where it can."""
    try:
        opener(path, optimise=False)
    except Exception as error:
        return f"the saved optimised graph cannot be read back ({one_line(error)}); the original graph was cut"
    if not onnx.load(str(path), load_external_data=False).graph.node:
        return "the optimised graph holds no operator, all of it was computed beforehand; the original graph was cut"
    return None


def _write_original(source: Source, path: Path) -> None:
    """The original graph with all large weights in one file beside it."""
    path.unlink(missing_ok=True)
    path.with_name(WEIGHTS_FILE).unlink(missing_ok=True)
    proto = onnx.load(str(source.path))
    onnx.save(proto, str(path), save_as_external_data=True, location=WEIGHTS_FILE, size_threshold=1024)


def _sort(graph: onnx.GraphProto) -> None:
    """Order nodes so that each stands after what it reads, keeping the given order where it already is so."""
    maker = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    needs = nx.DiGraph()
    needs.add_nodes_from(range(len(graph.node)))
    for k, node in enumerate(graph.node):
        needs.add_edges_from((maker[name], k) for name in reads(node) if name in maker)
    order = list(nx.lexicographical_topological_sort(needs))
    if order != sorted(order):
        nodes = [graph.node[k] for k in order]
        del graph.node[:]
        graph.node.extend(nodes)


def _drop_dead(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results nobody reads (functions leave some): a piece of them alone would make nothing."""
    needed = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(reads(node))
            kept.append(node)
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(reversed(kept))


def weights_of(proto: onnx.ModelProto) -> int:
    """Bytes of external weights, each region of the file counted once."""
    regions = set()
    for tensor in external_tensors(proto):
        info = {entry.key: entry.value for entry in tensor.external_data}
        regions.add((info.get("location"), int(info.get("offset", 0)), int(info.get("length", 0))))
    return sum(length for _, _, length in regions)
