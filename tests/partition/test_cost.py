"""Costs: every node gets its share of what the whole takes."""

from __future__ import annotations

from pathlib import Path

from lazybatch.executors.ort.session import open_session
from lazybatch.partition.costs import RUNS, SURROUNDINGS_S, Costs, piece_name, runs_of
from lazybatch.partition.onnx.cost import dispatch_seconds, measure
from lazybatch.partition.onnx.optimise import optimise
from lazybatch.partition.onnx.source import read_source
from tests.onnx_models import F32, build, const, floats, op, save, value


def test_shares_add_up_and_follow_the_work(tmp_path: Path) -> None:
    """Shares sum to the whole, and a large product is seen to cost more than a small one."""
    model = build(
        [op("MatMul", "x w", "a"), op("Tanh", "a", "b"), op("MatMul", "b v", "y")],
        [value("x", F32, ["N", 1500])],
        [value("y", F32, ["N", 2])],
        [const("w", floats(0, 1500, 1500)), const("v", floats(1, 1500, 2))],
    )
    made = optimise(read_source(save(model, tmp_path / "m.onnx")), tmp_path, open_session)
    costs = measure(made.path, made.proto, {"x": floats(2, 1, 1500)}, tmp_path, open_session)
    assert len(costs.per_node) == len(made.proto.graph.node)
    assert abs(sum(costs.per_node) - costs.whole_s) < 1e-9
    assert costs.per_node[0] == max(costs.per_node)
    assert not list(tmp_path.glob("profile*"))


def test_dispatch_costs_something() -> None:
    """A call that computes nothing still costs what surrounds it."""
    assert dispatch_seconds(open_session) > SURROUNDINGS_S


def test_time_is_shared_out() -> None:
    """Operators get the whole's time in proportion; where none was seen, none gets any."""
    assert Costs.shared_out((1.0, 3.0), 8.0, 0.1).per_node == (2.0, 6.0)
    assert Costs.shared_out((0.0, 0.0), 8.0, 0.1).per_node == (0.0, 0.0)
    assert runs_of(1e-6) == RUNS
    assert runs_of(100.0) == 2


def test_pieces_are_named_after_their_longest_operator() -> None:
    """Position and operator; by count where nothing was measured."""
    assert piece_name(3, ["Relu", "Conv", "Relu"], [1e-3, 5e-3, 1e-3]) == "03-Conv"
    assert piece_name(3, ["Relu", "Conv", "Relu"], []) == "03-Relu"
    assert piece_name(0, [], []) == "00"
