"""Cutting a flat graph: a run of operators becomes a graph module of its own, weights shared with all others.

Owns: `extract` (what a piece is, as data) and `modules` (what runs it).
Must not know: why it was cut there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, fx

from lazybatch.partition.costs import piece_name
from lazybatch.partition.pieces import Piece
from lazybatch.partition.torch.flat import Flat


def extract(flat: Flat, positions: Sequence[int], costs: Sequence[float], file: Path) -> list[Piece]:
    """The pieces when cut after these positions. file: where the graph is written down for people."""
    steps = flat.liveness.steps
    total = sum(costs) or 1.0
    pieces = []
    for k, (start, end) in enumerate(_bounds(flat, positions)):
        inputs, outputs = flat.liveness.ends(start, end)
        share = costs[start:end]
        pieces.append(
            Piece(
                name=piece_name(k, [step.operator for step in steps[start:end]], share),
                path=file,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                operators=end - start,
                weights_bytes=_weights_bytes(flat, start, end),
                cost_share=sum(share) / total if costs else 0.0,
            )
        )
    return pieces


def modules(flat: Flat, positions: Sequence[int]) -> list[fx.GraphModule]:
    """One module per piece: the piece's inputs in order, a tuple of its outputs in order."""
    operators = flat.operators()
    made = []
    for start, end in _bounds(flat, positions):
        inputs, outputs = flat.liveness.ends(start, end)
        graph = fx.Graph()
        env = {flat.values[name]: graph.placeholder(f"input_{k}") for k, name in enumerate(inputs)}
        for node in operators[start:end]:
            for used in node.all_input_nodes:
                if used.op == "get_attr" and used not in env:
                    env[used] = graph.get_attr(str(used.target))
            env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[flat.values[name]] for name in outputs))
        made.append(_at_hand(fx.GraphModule(flat.root, graph, class_name=f"{flat.name}_{start}_{end}")))
    return made


def _at_hand(module: fx.GraphModule) -> fx.GraphModule:
    """The module with its weights as plain attributes, too.

    A module looks for a weight in Python, after the plain look-up has failed. Between operators that leave nothing in
    the caches, that is 4 % of what a small convolutional network takes.
    """
    held = module.__dict__
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        held[name] = tensor
    return module


def _bounds(flat: Flat, positions: Sequence[int]) -> list[tuple[int, int]]:
    ends = [0, *(position + 1 for position in positions), len(flat.liveness.steps)]
    return list(itertools.pairwise(ends))


def _weights_bytes(flat: Flat, start: int, end: int) -> int:
    held = {
        str(used.target)
        for node in flat.operators()[start:end]
        for used in node.all_input_nodes
        if used.op == "get_attr"
    }
    tensors = [value for name in held if isinstance(value := getattr(flat.root, name), Tensor)]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
