"""Live sets: what a cut has to carry, hidden captures of inner graphs included."""

from __future__ import annotations

from lazybatch.partition.onnx.liveness import captures, constants, inner_graphs, liveness_of, reads
from tests.partition.parts import text_model

BRANCH = """g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1.,2.,3.,4.}>
{ a = Relu(x) b = Neg(x)
  r = If (c) <then_branch = t () => (float[N,4] p) { k = Add(a, x) p = Neg(k) },
              else_branch = e () => (float[N,4] q) { q = Mul(a, w) }>
  y = Add(r, b) }"""


def test_captures_are_reads() -> None:
    """What a branch takes from outside is read by the If, though it is not among its inputs."""
    node = text_model(BRANCH).graph.node[2]
    assert reads(node) == ("c", "a", "x", "w")
    assert [captures(graph) for graph in inner_graphs(node)] == [("a", "x"), ("a", "w")]


def test_captures_through_two_levels() -> None:
    """A capture of an inner graph's inner graph reaches the outermost node."""
    model = text_model(
        """g (float[N] x, bool c) => (float[N] y)
        { a = Relu(x)
          y = If (c) <then_branch = t () => (float[N] p)
              { l = Neg(x) p = If (c) <then_branch = u () => (float[N] m) { m = Add(a, l) },
                                       else_branch = v () => (float[N] n) { n = Neg(l) }> },
              else_branch = e () => (float[N] q) { q = Neg(x) }> }"""
    )
    assert set(reads(model.graph.node[1])) == {"c", "x", "a"}


def test_output_that_is_an_outer_value() -> None:
    """A branch may return an outer value as it is: that is a capture too."""
    model = text_model("g (float[N] x, bool c) => (float[N] y) { a = Neg(x) y = Relu(a) }")
    graph = model.graph
    graph.output[0].name = "elsewhere"
    assert captures(graph) == ("elsewhere",)


def test_live_sets() -> None:
    """After each node: what is still needed, inputs included, weights not."""
    live = [set(names) for names in liveness_of(text_model(BRANCH).graph).live_sets()]
    assert live == [{"x", "c", "a"}, {"x", "c", "a", "b"}, {"r", "b"}, {"y"}]


def test_empty_names_are_no_values() -> None:
    """A missing optional input or output is nothing that could live."""
    model = text_model(
        """g (float[T,N,3] x) => (float[1,N,2] h) <float[1,8,3] w = {0.}, float[1,8,2] r = {0.}>
        { a = Relu(x) , h = LSTM<hidden_size=2>(a, w, r) }""".replace(
            "{0.}", "{" + ",".join(["0."] * 24) + "}", 1
        ).replace("{0.}", "{" + ",".join(["0."] * 16) + "}", 1)
    )
    model.graph.node[1].input.extend(["", "", ""])
    assert "" not in reads(model.graph.node[1])
    assert all("" not in names for names in liveness_of(model.graph).live_sets())


def test_constants() -> None:
    """Weights are told from values by standing among the initializers."""
    assert constants(text_model(BRANCH).graph) == {"w"}


def test_early_output_lives_to_the_end() -> None:
    """A model output made early is live until the end."""
    model = text_model("g (float[N] x) => (float[N] a, float[N] y) { a = Relu(x) b = Neg(a) y = Neg(b) }")
    assert [set(names) for names in liveness_of(model.graph).live_sets()] == [{"a"}, {"a", "b"}, {"a", "y"}]
