"""Profiles of programs: every node's time is that of one iteration, and a pass goes round as often as rows can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.latency import LatencyTable
from lazybatch.executors.base import Row
from lazybatch.profiler import verdict
from lazybatch.profiler.passes import Runner, rounds_of
from lazybatch.table_loops import KEY, TableLoop, described, loops_of
from tests.onnx_models import F32, build, op, save, value
from tests.small_program import ROOM, write_program


def recurrent(folder: Path) -> Path:
    """A body that takes a frame and a state, in an ONNX file."""
    nodes = [op("Add", "x h", "sum"), op("Tanh", "sum", "h_next"), op("Neg", "h_next", "y")]
    inputs = [value("x", F32, ["n", 3]), value("h", F32, ["n", 3])]
    return save(build(nodes, inputs, [value("h_next", F32, ["n", 3]), value("y", F32, ["n", 3])]), folder / "rnn.onnx")


@pytest.fixture
def frames(tmp_path: Path) -> Any:
    """A program that goes round once per frame of a row, and a chain over its last state."""
    head = build([op("Tanh", "h", "z")], [value("h", F32, ["n", 3])], [value("z", F32, ["n", 3])])
    stages = (
        lb.Stage("rnn", recurrent(tmp_path), {}, lb.Repeat({"h": "h_next"}, {"x": "frames"}, collect=("y",))),
        lb.Stage("head", save(head, tmp_path / "head.onnx"), {"h": "rnn.h"}),
    )
    return lb.load(lb.Program("frames", stages, {"z": "head.z", "y": "rnn.y"}))


def test_rows_that_say_their_trips(frames: Any) -> None:
    """A pass goes round as often as the shortest row can; the table knows that trips are known beforehand."""
    rows = [{"frames": np.ones((length, 3), np.float32)} for length in (5, 3)]
    table = lb.profile(frames, (1, 2), budget_s=0.1, inputs=rows)
    (loop,) = loops_of(table)
    assert (loop.loop.name, loop.counted, loop.iterations) == ("rnn", True, 3)
    assert table.nodes == ("rnn", "head")
    made_up = lb.profile(frames, (1,), budget_s=0.1, iterations=4)
    assert loops_of(made_up)[0].iterations == 4


def test_the_engines_time_where_the_first_node_is_one_of_a_loop(frames: Any) -> None:
    """Its iterations mostly go on, so the first node is charged as the others are; real rows took real time."""
    rows = [{"frames": np.ones((length, 3), np.float32)} for length in (5, 3)]
    engine = lb.profile(frames, (1, 2), budget_s=0.1, inputs=rows).engine
    assert engine is not None
    assert (engine.open_ns, engine.open_row_ns) == (engine.continue_ns, engine.continue_row_ns)
    assert engine.before_ns(0, 1) > 0


def test_a_maximum_that_is_an_error(tmp_path: Path) -> None:
    """Measured rows are stopped before the maximum makes errors of them; where it is 1 they make one iteration."""
    program = write_program(tmp_path, at_max="error")
    assert loops_of(lb.profile(lb.load(program), (1,), budget_s=0.1))[0].iterations == ROOM - 1
    once = write_program(tmp_path, trips_max=1)
    assert loops_of(lb.profile(lb.load(once), (1,), budget_s=0.1))[0].iterations == 1


def test_rounds_of_a_pass() -> None:
    """As many as asked, no more than the maximum leaves or any row says."""
    graph = NodeGraph.chain("m", ["a", "b", "c"], [Loop("one", 0, 1), Loop("two", 1, 2, trips_max=10)])
    assert rounds_of(graph, [Row({})], 16) == (16, 9)
    assert rounds_of(graph, [Row({}, trips=(4, None)), Row({}, trips=(7, None))], 16) == (4, 9)
    assert rounds_of(graph, [Row({}, trips=(None, 10))], 16) == (16, 10)
    assert rounds_of(NodeGraph.chain("m", ["a"]), [Row({})], 16) == ()


class _Counted:
    """An executor that takes one tick per node, and more in the first iteration of a loop."""

    def __init__(self) -> None:
        self.now = 0
        self.ran: list[int] = []

    def open(self, sub_batch: int, rows: Any, padded_rows: int) -> None:
        """Nothing to gather."""

    def run(self, sub_batch: int, node: int) -> None:
        """A tick; three in the first iteration."""
        self.now += 3 if node == 1 and 1 not in self.ran else 1
        self.ran.append(node)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """No results."""
        return {}


def test_a_loops_node_takes_its_median_time() -> None:
    """Nodes before, in and behind a loop, in the order the engine runs them; per iteration the median."""
    executor: Any = _Counted()

    class _Model:
        name = "m"
        graph = NodeGraph.chain("m", ["a", "b", "c", "d"], [Loop("loop", 1, 3)])

    model: Any = _Model()
    runner = Runner(model, executor, [Row({})], lambda: executor.now, (3,))
    assert runner.run(1) == [1, 1, 1, 1]
    assert executor.ran == [0, 1, 2, 1, 2, 1, 2, 3]


def test_what_a_table_with_loops_says() -> None:
    """The verdict counts iterations as they were measured, and has a curve for every stage."""
    times = ((10, 20), (10, 10), (10, 10))
    provenance = {KEY: described([TableLoop(Loop("decoder", 1, 3), iterations=5)])}
    table = LatencyTable("m", ("encoder", "decoder/a", "decoder/b"), (1, 2), times, times, provenance)
    found = verdict(table)
    assert found.curve == ((1, 110, 1.0), (2, 120, pytest.approx(220 / 120)))
    assert str(found) == "m: batching gains 1.8x at 2 (iterations: 5 of 'decoder')"
    assert dict(found.stages)["decoder"] == ((1, 20, 1.0), (2, 20, 2.0))
    assert dict(found.stages)["encoder"] == ((1, 10, 1.0), (2, 20, 1.0))
