"""Settling branches: what fixed values and shapes decide is replaced, nothing else, and answers stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphs.branches import settle

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _side(name: str, operator: str, *inputs: str) -> onnx.GraphProto:
    """A branch of one operator."""
    out = helper.make_tensor_value_info(f"{name}_out", FLOAT, None)
    return helper.make_graph([helper.make_node(operator, list(inputs), [f"{name}_out"])], name, [], [out])


def _model(*nodes: onnx.NodeProto, shape: tuple[str | int, ...] = ("batch", 4)) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape), helper.make_tensor_value_info("rate", INT64, [])]
    weights = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in {"sixteen": 16, "last": -1, "first": 0, "four": 4, "two": 2}.items()
    ]
    outputs = [helper.make_tensor_value_info("y", FLOAT, shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _if(condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, output: str = "y") -> onnx.NodeProto:
    return helper.make_node("If", [condition], [output], then_branch=then, else_branch=otherwise)


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _check(model: onnx.ModelProto, settled: onnx.ModelProto, rate: int) -> None:
    """Same answers for one row and for three."""
    assert [value.name for value in settled.graph.input] == ["x"]
    for rows in (1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        wanted = ReferenceEvaluator(model).run(None, {"x": x, "rate": np.array(rate)})
        assert np.array_equal(ReferenceEvaluator(settled).run(None, {"x": x})[0], wanted[0])


@pytest.mark.parametrize(("rate", "kept"), [(16, "Neg"), (8, "Abs")])
def test_a_fixed_input_decides(rate: int, kept: str) -> None:
    """The side that the fixed input chooses stands alone in the graph; the other side and its test are gone."""
    model = _model(
        helper.make_node("Equal", ["rate", "sixteen"], ["same"]),
        _if("same", _side("yes", "Neg", "x"), _side("no", "Abs", "x")),
    )
    settled = settle(model, {"rate": np.array(rate)})
    assert _operators(settled) == [kept, "Identity"]
    assert not settled.graph.initializer
    _check(model, settled, rate)


def test_shapes_decide() -> None:
    """A rank, and a dimension that is fixed, are known though the number of rows is not."""
    model = _model(
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Size", ["shape"], ["rank"]),
        helper.make_node("Equal", ["rank", "two"], ["flat"]),
        _if("flat", _side("yes", "Neg", "x"), _side("no", "Abs", "x"), "signed"),
        helper.make_node("Gather", ["shape", "last"], ["width"]),
        helper.make_node("Equal", ["width", "four"], ["wide"]),
        _if("wide", _side("more", "Exp", "signed"), _side("less", "Abs", "signed")),
    )
    settled = settle(model, {"rate": np.array(16)})
    assert _operators(settled) == ["Neg", "Identity", "Exp", "Identity"]
    _check(model, settled, 16)


def test_branches_inside_branches() -> None:
    """What stands inside the chosen side is settled as well."""
    inner = _if("same", _side("deep", "Exp", "x"), _side("no", "Abs", "x"), "inner_out")
    out = helper.make_tensor_value_info("inner_out", FLOAT, None)
    model = _model(
        helper.make_node("Equal", ["rate", "sixteen"], ["same"]),
        _if("same", helper.make_graph([inner], "outer", [], [out]), _side("other", "Neg", "x")),
    )
    settled = settle(model, {"rate": np.array(16)})
    assert "If" not in _operators(settled)
    _check(model, settled, 16)


def test_the_number_of_rows_decides_nothing() -> None:
    """A branch on what varies stays, with what it reads from outside."""
    model = _model(
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Equal", ["rows", "two"], ["pair"]),
        helper.make_node("Exp", ["x"], ["grown"]),
        _if("pair", _side("yes", "Neg", "grown"), _side("no", "Abs", "grown")),
    )
    settled = settle(model, {"rate": np.array(16)})
    assert "If" in _operators(settled)
    _check(model, settled, 16)


def test_the_given_model_is_not_changed() -> None:
    """Settling works on a copy."""
    model = _model(
        helper.make_node("Equal", ["rate", "sixteen"], ["same"]),
        _if("same", _side("yes", "Neg", "x"), _side("no", "Abs", "x")),
    )
    before = model.SerializeToString()
    settle(model, {"rate": np.array(8)})
    assert model.SerializeToString() == before
