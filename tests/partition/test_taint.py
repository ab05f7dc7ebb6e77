"""Marks: what depends on data and what on sizes only, and which operators refuse them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.partition.onnx.taint import inlined, spread
from tests.partition.parts import cut, text_model


def test_shape_turns_data_into_size() -> None:
    """What a shape gives depends on the batch's size, not on its values; mixing both is data again."""
    graph = text_model(
        "g (float[N,4] x, float[4] t) => (float[N,4] y) { s = Shape(x) u = Neg(t) a = Add(x, u) y = Reshape(a, s) }"
    ).graph
    marks = spread(graph, ["x"])
    assert marks.data == {"x", "a", "y"}
    assert "s" in marks.size - marks.data
    assert "u" not in marks.data | marks.size
    assert marks.refusals == []


def test_captures_carry_marks() -> None:
    """A branch that captures batched data makes the If's result data, though the If has only a condition."""
    graph = text_model(
        """g (float[N] x, bool c) => (float[N] y) { a = Neg(x)
        y = If (c) <then_branch = t () => (float[N] p) { p = Neg(a) },
                    else_branch = e () => (float[N] q) { q = Relu(a) }> }"""
    ).graph
    marks = spread(graph, ["x"])
    assert "y" in marks.data
    assert marks.refusals == []


def test_carried_values_are_followed_round_the_loop() -> None:
    """Data that enters the condition only in the second iteration is found."""
    graph = text_model(
        """g (float[N] x, float z) => (float o, float p) <int64 n = {5}, bool on = {1}, float t = {3.0}>
        { o, p = Loop (n, on, z, z) <body = b (int64 k, bool c, float u, float v) => (bool d, float w, float e)
        { d = Less(v, t) e = Identity(u) w = ReduceMax<keepdims=0>(x) }> }"""
    ).graph
    assert any("goes on or stops" in refusal for refusal in spread(graph, ["x"]).refusals)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "g (float[N,4] x) => (float[M] y) { m = Greater(x, x) f = Flatten(m) y = Compress(x, f) }",
            "keeps rows",
        ),
        ("g (float[N,4] x) => (float[M,4] y) { i = Cast<to=7>(x) y = Tile(x, i) }", "takes a shape or bound ('i')"),
        ("g (float[N,4] x) => (float[M] y) { y, a, b, c = Unique(x) }", "returns as many rows"),
        ("g (float[N,4] x) => (int32[N,1] y) { y = Multinomial(x) }", "draws random numbers"),
        ('g (string[N] x) => (string[M] y) { y = StringNormalizer<stopwords=["a"]>(x) }', "drops words"),
    ],
)
def test_refusals_name_the_operator(text: str, says: str) -> None:
    """The sentence names the operator and what it makes."""
    refusals = spread(text_model(text).graph, ["x"]).refusals
    assert any(says in refusal and "(makes 'y')" in refusal for refusal in refusals), refusals


def test_the_same_operators_are_harmless_on_shared_values() -> None:
    """On unbatched inputs nothing ties rows together."""
    graph = text_model(
        """g (float[N,4] x, float[4] t) => (float[N,4] y) { q, s, z = DynamicQuantizeLinear(t)
        d = DequantizeLinear(q, s, z) i = NonZero(t) y = Add(x, d) }"""
    ).graph
    marks = spread(graph, ["x"])
    assert marks.refusals == marks.scales == []


def test_steering_by_size_inside_a_body_is_refused() -> None:
    """Where operands cannot be looked at, comparing a size is refused."""
    graph = text_model(
        """g (float[N] x) => (float[N] y) <int64 n = {2}, bool on = {1}, int64[1] e = {8}, float z = {0.0}>
        { y = Loop (n, on, x) <body = b (int64 k, bool c, float[N] v) => (bool d, float[N] w)
        { d = Identity(c) s = Shape(v) q = Greater(s, e) w = Where(q, z, v) }> }"""
    ).graph
    assert any("steers by a shape" in refusal for refusal in spread(graph, ["x"]).refusals)


def test_functions_are_looked_into() -> None:
    """Local functions are replaced by their bodies before marks are spread."""
    model = text_model("g (float[N,4] x) => (float[N,4] y) { y = Identity(x) }")
    assert inlined(model) is model
    model.functions.add(name="noisy", domain="own").CopyFrom(_noisy())
    model.opset_import.add(domain="own", version=1)
    model.graph.node[0].op_type, model.graph.node[0].domain = "noisy", "own"
    refusals = spread(inlined(model).graph, ["x"]).refusals
    assert any("draws random numbers" in refusal for refusal in refusals)


def _noisy() -> object:
    from onnx import helper

    return helper.make_function(
        "own",
        "noisy",
        ["a"],
        ["b"],
        [helper.make_node("RandomNormalLike", ["a"], ["r"]), helper.make_node("Add", ["a", "r"], ["b"])],
        [helper.make_opsetid("", 17)],
    )


AXES_GIVEN = {
    "ReduceMean": (
        18,
        "g (float[N,4] x, int64[1] k) => (float[N,4] y) { m = ReduceMean<keepdims=1>(x, k) y = Sub(x, m) }",
    ),
    "ReduceSum": (
        13,
        "g (float[N,4] x, int64[1] k) => (float[N,4] y) { m = ReduceSum<keepdims=1>(x, k) y = Sub(x, m) }",
    ),
    "ReduceL2": (18, "g (float[N,4] x, int64[1] k) => (float[N,4] y) { m = ReduceL2<keepdims=1>(x, k) y = Sub(x, m) }"),
    "DFT": (20, "g (float[N,4,1] x, int64 k) => (float[N,4,2] y) { y = DFT(x, , k) }"),
}


@pytest.mark.parametrize("operator", AXES_GIVEN)
def test_axes_from_the_caller_may_be_the_rows(operator: str, tmp_path: Path) -> None:
    """An example that works along the features says nothing of a caller who works along the batch."""
    opset, text = AXES_GIVEN[operator]
    shape = (4, 1) if operator == "DFT" else (4,)
    axis = np.array(1) if operator == "DFT" else np.array([1])
    partition = cut(text_model(text, opset), tmp_path, example_inputs={"x": np.ones(shape, np.float32), "k": axis})
    assert partition.reason is not None
    assert partition.reason.startswith(f"operator {operator} (makes ")
    assert "('k') from the caller" in partition.reason


def test_a_callers_diagonal_may_cut_through_the_rows(tmp_path: Path) -> None:
    """Trilu on a batch of vectors counts its diagonal in rows; one far away shows nothing of it."""
    text = "g (float[N,4] x, int64 k) => (float[N,4] y) { y = Trilu<upper=1>(x, k) }"
    examples = {"x": np.ones(4, np.float32), "k": np.array(-100)}
    partition = cut(text, tmp_path, example_inputs=examples)
    assert partition.reason is not None
    assert partition.reason.startswith("operator Trilu (makes 'y') takes a shape or bound ('k') from the caller")


def test_axes_that_the_model_fixes_may_join(tmp_path: Path) -> None:
    """Axes and diagonals that are the model's own are judged by what they do."""
    text = """g (float[N,4,4] x) => (float[N,4] y) <int64[1] k = {2}, int64 d = {0}>
    { t = Trilu(x, d) y = ReduceSum<keepdims=0>(t, k) }"""
    assert cut(text, tmp_path).reason is None
