"""An optimised ONNX graph as something that can be watched while it runs.

Owns: `OnnxGraph`, and sessions that return inner values.
Must not know: what the values prove, cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from lazybatch.errors import ExecutionError
from lazybatch.partition.liveness import Liveness
from lazybatch.partition.onnx.branches import DEPTH_MAX, too_deep, turned
from lazybatch.partition.onnx.liveness import liveness_of
from lazybatch.partition.onnx.optimise import Opener, Optimised
from lazybatch.partition.onnx.rounds import forced
from lazybatch.partition.onnx.source import numpy_name, one_line
from lazybatch.partition.onnx.taint import Marks, called, spread
from lazybatch.partition.proof.inner import Turn, Walk
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.probe import Runner
from lazybatch.partition.proof.rows import Candidate, Feeds
from lazybatch.partition.proof.traits import Outcome


class OnnxGraph:
    """A `Traced` graph; see `lazybatch.partition.plan`."""

    def __init__(self, optimised: Optimised, opener: Opener) -> None:
        self._proto, self._folder, self._opener = optimised.proto, optimised.path.parent, opener
        self.inputs: tuple[Port, ...] = optimised.inputs
        self.outputs: tuple[Port, ...] = optimised.outputs
        self.liveness: Liveness = liveness_of(optimised.proto.graph)

    def watch(self, names: Sequence[str]) -> tuple[Runner, Mapping[str, str | None]]:
        """A run that returns these values and the outputs, and NumPy's name of the type of each; None: has none."""
        session = watching(self._proto, names, self._folder, self._opener)
        return runner(session), {output.name: numpy_name(output.type) for output in session.get_outputs()}

    def turns(self, names: Sequence[str], candidate: Candidate) -> Iterator[Turn]:
        """The same values where Loops go round not at all and twice, and where each If takes the branch that it does
        not take otherwise, as far as callers and sizes choose. Opens nothing before it is run."""
        graph = self._proto.graph
        marks = spread(graph, candidate)
        deep = too_deep(graph, marks)
        if deep is not None:
            says = f"{called(deep)} takes a branch by {_source(deep.input[0], marks)}"
            yield Turn(f"{says} within more than {DEPTH_MAX - 1} others that do: too many ways to try", None)
            return
        for times, other in ((0, "no round"), (2, "two rounds")):
            loops = forced(graph, marks, times)
            if loops is not None:
                says = f"{called(loops.node)} goes round by {_source(loops.flag, marks)}"
                run = self._run_of(loops.graph, names)
                yield Turn(says, run, other, loops.taken, lambda *_: False, needed=times > 0)
                graph = loops.graph if times else graph
        for way in turned(graph, marks):
            says = f"{called(way.node)} takes a branch by {_source(way.node.input[0], marks)}"
            back = None if way.hidden else way.back
            yield Turn(says, self._run_of(way.graph, names), "the other one", way.taken, back, way.causes)

    def _run_of(self, graph: onnx.GraphProto, names: Sequence[str]) -> Runner:
        """Opens its session when it is first run: ways are many, and are looked at one after another."""
        opened: list[Runner] = []

        def run(feeds: Feeds) -> Outcome:
            if not opened:
                proto = onnx.ModelProto()
                proto.CopyFrom(self._proto)
                proto.graph.CopyFrom(graph)
                opened.append(runner(watching(proto, names, self._folder, self._opener)))
            return opened[0](feeds)

        return run

    def data(self, candidate: Candidate) -> set[str]:
        """Names that depend on values of batched inputs."""
        return spread(self._proto.graph, candidate).data

    def walks(self) -> list[Walk]:
        """Top-level operators that carry a state along an axis."""
        found: list[Walk] = []
        constants = {tensor.name: tensor for tensor in self._proto.graph.initializer}
        for node in self._proto.graph.node:
            if node.op_type == "Scan":
                count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
                axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0] * count)
                over = list(node.input)[len(node.input) - count :]
                found.extend(Walk(node.op_type, name, axis) for name, axis in zip(over, axes, strict=True))
            elif node.op_type in ("CumProd", "CumSum") and node.input[1] in constants:
                axis = int(numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])
                found.append(Walk(node.op_type, node.input[0], axis))
        return found


def _source(name: str, marks: Marks) -> str:
    """Who decides by a value."""
    return f"{'a value of the caller' if name in marks.given else 'a size'} ({name!r})"


def watching(proto: onnx.ModelProto, names: Sequence[str], folder: Path, opener: Opener) -> Any:
    """A session on the graph that also returns inner values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    present = {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        node.name = ""
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return opener(copy.SerializeToString(), optimise=False, folder=folder, lasting=False)


def runner(session: Any) -> Runner:
    """Run a session and return all its outputs by name."""
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Feeds) -> Outcome:
        try:
            return dict(zip(names, session.run(names, feeds), strict=True))
        except Exception as error:
            raise ExecutionError(one_line(error)) from error

    return run
