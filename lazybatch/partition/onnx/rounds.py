"""Loops whose rounds callers choose: the same graph with such Loops going round a fixed number of times.

Owns: `forced`, a copy of a graph whose Loops do, and whether a run of the original does as well.
Must not know: how a graph is run, what is proved of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lazybatch.partition.onnx.liveness import inner_graphs, reads
from lazybatch.partition.onnx.taint import Marks
from lazybatch.partition.proof.traits import Outcome


class Forced(NamedTuple):
    """A copy of a graph in which Loops go round so many ``times``: not at all, or twice.

    node: the first of them, as it was. loops: per Loop, the names of its count and of its condition where they are not
    fixed, else "". hidden: whether a run that shows all values of the graph does not show how often each goes round.
    """

    graph: onnx.GraphProto
    node: onnx.NodeProto
    times: int
    loops: tuple[tuple[str, str], ...]
    hidden: bool

    @property
    def flag(self) -> str:
        """What decides how often the first one goes round."""
        return self.loops[0][0] or self.loops[0][1]

    def taken(self, runs: Sequence[Outcome]) -> bool:
        """Whether every Loop went round so often (twice: or more often) in some run of the original."""
        if self.hidden or any(name not in run for run in runs for loop in self.loops for name in loop if name):
            return False
        return all(any(self._as_often(run, *loop) for run in runs) for loop in self.loops)

    def _as_often(self, run: Outcome, count: str, condition: str) -> bool:
        if condition and not run[condition].item():
            return self.times == 0
        if not count:
            return self.times > 0
        return bool(run[count].item() >= self.times if self.times else run[count].item() <= 0)


def forced(graph: onnx.GraphProto, marks: Marks, times: int) -> Forced | None:
    """A copy in which each Loop that may go round less often goes round so many times; None where there is none.

    Only what callers leave out goes round not at all: sizes are hardly ever 0. So do no Loops that collect a value per
    round: no round, no rows.
    """
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    found: list[onnx.NodeProto] = []
    _force(copy, marks, times, found)
    if not found:
        return None
    deciding = _deciding(marks, times)
    loops = tuple((_of(node, 0, deciding), _of(node, 1, deciding)) for node in found)
    top = {tuple(node.output) for node in graph.node}
    return Forced(copy, found[0], times, loops, hidden=any(tuple(node.output) not in top for node in found))


def _deciding(marks: Marks, times: int) -> set[str]:
    return (marks.given | marks.size if times else marks.given) - marks.data


def _of(node: onnx.NodeProto, place: int, deciding: set[str]) -> str:
    return node.input[place] if place < len(node.input) and node.input[place] in deciding else ""


def _chosen(node: onnx.NodeProto, marks: Marks, times: int) -> bool:
    if node.op_type != "Loop" or not any(_of(node, place, _deciding(marks, times)) for place in (0, 1)):
        return False
    if times == 0 and len(node.output) > len(node.input) - 2:
        return False
    return not (marks.data | marks.size).isdisjoint(set(reads(node)).difference(node.input[:2]))


def _force(graph: onnx.GraphProto, marks: Marks, times: int, found: list[onnx.NodeProto]) -> None:
    """Fix counts and conditions, in place. found: collects the Loops as they were."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        chosen = _chosen(node, marks, times)
        if chosen:
            before = onnx.NodeProto()
            before.CopyFrom(node)
            found.append(before)
        for body in inner_graphs(node):
            _force(body, marks, times, found)
        if chosen:
            for place, value in enumerate((np.array(times, np.int64), np.array(True))):
                name = f"{next(filter(None, node.output))}/fixed_{place}"
                nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
                node.input[place] = name
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
