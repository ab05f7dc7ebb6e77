"""Branches that callers choose: the one that no example takes is run as well, whatever it lies within."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.partition.onnx.branches import turned
from lazybatch.partition.onnx.taint import spread
from tests.partition.parts import cut, text_model

FLAGGED = """g (float[N,4] x, bool flag) => (float[N,4] y) <int64[1] a = {0}, int64[1] b = {1}>
{ y = If (flag) <then_branch = t () => (float[N,4] p) { THEN },
                 else_branch = e () => (float[N,4] q) { q = Identity(x) }> }"""
BRANCHES = {
    "first row": "f = Slice(x, a, b) p = Sub(x, f)",
    "a row": "f = Gather<axis=0>(x, a) p = Sub(x, f)",
    "all pairs": "f = Transpose<perm=[1,0]>(x) s = MatMul(x, f) p = MatMul(s, x)",
    "the batch size beyond eight": """i = Constant<value = int64[1] {0}>() s = Shape(x) n = Gather(s, i)
        e = Constant<value = int64[1] {8}>() d = Sub(n, e) f = Cast<to=1>(d) r = Relu(f) p = Add(x, r)""",
    "softmax": "f = Transpose<perm=[1,0]>(x) s = Softmax<axis=1>(f) p = Transpose<perm=[1,0]>(s)",
}


def flagged(*flags: bool) -> list[dict[str, object]]:
    """Requests with these flags."""
    return [{"x": np.arange(4, dtype=np.float32) + k, "flag": np.array(flag)} for k, flag in enumerate(flags)]


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_no_example_takes_is_probed_as_well(branch: str, tmp_path: Path) -> None:
    """Callers choose the branch: the one that the only example leaves out must keep rows apart, too."""
    text = FLAGGED.replace("THEN", BRANCHES[branch])
    partition = cut(text, tmp_path, example_inputs=flagged(False))
    assert partition.reason is not None
    assert partition.reason.startswith("operator If (makes 'y') takes a branch by a value of the caller ('flag')")
    assert "output 'y'" in partition.reason


def test_every_flag_among_the_examples_is_probed(tmp_path: Path) -> None:
    """The second example takes the branch that mixes."""
    text = FLAGGED.replace("THEN", BRANCHES["first row"])
    partition = cut(text, tmp_path, example_inputs=flagged(False, True))
    assert partition.reason is not None
    assert "output 'y'" in partition.reason


def test_branches_that_keep_rows_apart_may_join(tmp_path: Path) -> None:
    """A slice along another axis in the branch not taken are no reason against joining."""
    then = "f = Slice(x, a, b, b) s = Mul(x, f) p = Tanh(s)"
    assert cut(FLAGGED.replace("THEN", then), tmp_path, example_inputs=flagged(False)).reason is None


NESTED = """g (float[N,4] x, bool one, bool two) => (float[N,4] y) <int64[1] a = {0}, int64[1] b = {1}>
{ n = Not(two) y = If (one) <
  then_branch = t () => (float[N,4] p) { p = If (n) <
      then_branch = tt () => (float[N,4] pp) { pp = Neg(x) },
      else_branch = te () => (float[N,4] pq) { f = Slice(x, a, b) pq = Sub(x, f) }> },
  else_branch = e () => (float[N,4] q) { q = Identity(x) }> }"""


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_branches_within_branches_are_probed(one: bool, two: bool, tmp_path: Path) -> None:
    """Whatever way the example goes, the innermost branch that mixes is found."""
    example = {"x": np.arange(4, dtype=np.float32), "one": np.array(one), "two": np.array(two)}
    partition = cut(NESTED, tmp_path, example_inputs=example)
    assert partition.reason is not None
    assert "output 'y'" in partition.reason


UNRUN = """g (float[N,W] x, bool flag) => (float[N,W] y) <int64[2] s = {-1,37}, int64[2] r = {-1,41}>
{ y = If (flag) <then_branch = t () => (float[N,W] p) { p = Reshape(x, s) },
                 else_branch = e () => (float[N,W] q) { q = Reshape(x, r) }> }"""


def test_a_branch_that_nothing_runs_is_refused(tmp_path: Path) -> None:
    """Where no input is known for the other branch, nothing is known of it: the reason asks for an example."""
    one = {"x": np.ones(37, np.float32), "flag": np.array(True)}
    refused = cut(UNRUN, tmp_path, example_inputs=one)
    assert refused.reason is not None
    assert "('flag')" in refused.reason
    assert "example_inputs" in refused.reason
    other = {"x": np.ones(41, np.float32), "flag": np.array(False)}
    assert cut(UNRUN, tmp_path, example_inputs=[one, other]).reason is None


def test_every_set_of_depths_is_turned() -> None:
    """Of a branch within a branch: the outer one, the inner one, both; only outer flags can be looked at in a run."""
    graph = text_model(NESTED).graph
    found = list(turned(graph, spread(graph, ["x"])))
    assert [(other.flags, other.hidden) for other in found] == [
        (("one",), False),
        (("n",), True),
        (("one", "n"), True),
    ]
    assert graph == text_model(NESTED).graph


def test_choices_that_rows_have_no_part_in_are_let_be() -> None:
    """A branch over shared values only ties no rows together."""
    graph = text_model(
        """g (float[N,4] x, bool flag, float[4] s) => (float[N,4] y)
        { c = If (flag) <then_branch = t () => (float[4] p) { p = Neg(s) },
                         else_branch = e () => (float[4] q) { q = Identity(s) }> y = Add(x, c) }"""
    ).graph
    assert list(turned(graph, spread(graph, ["x"]))) == []


def test_a_choice_inside_a_loop_is_turned_as_well(tmp_path: Path) -> None:
    """Its condition is made in the loop's body, where no run shows it: the other branch is run all the same."""
    text = """g (float[N,4] x, bool flag) => (float[N,4] y)
    <int64 k = {2}, bool on = {1}, int64[1] a = {0}, int64[1] b = {1}> { y = Loop (k, on, x) <
    body = l (int64 i, bool p, float[N,4] v) => (bool q, float[N,4] w)
    { q = Identity(p) c = Not(flag) w = If (c) <
      then_branch = t () => (float[N,4] r) { r = Neg(v) },
      else_branch = e () => (float[N,4] s) { f = OTHER s = Sub(v, f) }> }> }"""
    for other, joins in (("Slice(v, a, b)", False), ("Slice(v, a, b, b)", True)):
        folder = tmp_path / str(joins)
        folder.mkdir()
        partition = cut(text.replace("OTHER", other), folder, example_inputs=flagged(False))
        assert partition.joinable is joins, partition.reason


OTHERWISE = """g (float[N,4] x, bool flag) => (float[N,4] z, float[A,B] y) <float[1,4] k = {1.,2.,3.,4.}>
{ z = Neg(x) s = Shape(x) y = If (flag) <then_branch = t () => (float[A,B] p) { p = MADE },
                            else_branch = e () => (float[A,B] q) { q = Identity(k) }> }"""


@pytest.mark.parametrize(
    ("made", "tolerance", "flag"),
    [("Relu(x)", 0.1, True), ("ConstantOfShape(s)", None, True), ("ConstantOfShape(s)", None, False)],
)
def test_an_output_must_be_rows_either_way(made: str, tolerance: float | None, flag: bool, tmp_path: Path) -> None:
    """A row's own one way and a constant the other: neither way is at fault, and yet no row's share holds for both."""
    text = OTHERWISE.replace("MADE", made)
    partition = cut(text, tmp_path, example_inputs=flagged(flag), tolerance=tolerance)
    assert partition.reason is not None
    assert "('flag')" in partition.reason
    assert "output 'y'" in partition.reason


SIZED = """g (float[N,S] x) => (float[N,S] y) <int64[1] a = {0}, int64[1] b = {1}, int64 one = {1}, int64 most = {MOST}>
{ s = Shape(x) n = Gather(s, one) c = Greater(n, most) y = If (c) <
  then_branch = t () => (float[N,S] p) { THEN },
  else_branch = e () => (float[N,S] q) { q = Neg(x) }> }"""


@pytest.mark.parametrize("most", [512, 9999])
def test_a_branch_that_long_requests_take_is_probed(most: int, tmp_path: Path) -> None:
    """A size chooses: the branch is run at a size that takes it, or, where none was found, whatever the size."""
    for branch, joins in ((BRANCHES["first row"], False), ("p = Abs(x)", True)):
        folder = tmp_path / str(joins)
        folder.mkdir()
        partition = cut(SIZED.replace("MOST", str(most)).replace("THEN", branch), folder)
        assert partition.joinable is joins, partition.reason
        if not joins:
            assert partition.reason is not None
            assert partition.reason.startswith("operator If (makes 'y') takes a branch by a size ('c')")


@pytest.mark.parametrize(("branch", "joins"), [(BRANCHES["first row"], False), ("p = Abs(x)", True)])
def test_a_size_that_all_rows_share_chooses_too(branch: str, joins: bool, tmp_path: Path) -> None:
    """A long table, the same for all rows, takes the other branch."""
    text = """g (float[N,4] x, float[K] t) => (float[N,4] y) <int64[1] a = {0}, int64[1] b = {1}, int64[1] most = {512}>
    { s = Shape(t) c = Greater(s, most) y = If (c) <then_branch = t () => (float[N,4] p) { THEN },
                                                    else_branch = e () => (float[N,4] q) { q = Neg(x) }> }"""
    partition = cut(text.replace("THEN", branch), tmp_path, batch_axes={"x": 0, "t": None})
    assert partition.joinable is joins, partition.reason


def test_a_branch_that_no_size_takes_is_let_be(tmp_path: Path) -> None:
    """What is compared is the same at all sizes: exporters write such a choice for a dimension that may be 1."""
    text = """g (float[N,S,1] x) => (float[N,S] y) <int64 two = {2}, int64 one = {1}, int64[1] at = {2}>
    { r = Relu(x) s = Shape(r) n = Gather(s, two) c = Equal(n, one) y = If (c) <
      then_branch = t () => (float[N,S] p) { p = Squeeze(r, at) },
      else_branch = e () => (float[N,S,1] q) { q = Identity(r) }> }"""
    assert cut(text, tmp_path).reason is None


def test_rows_may_lie_otherwise_at_another_size(tmp_path: Path) -> None:
    """An inner value of fewer dimensions at one size ties no rows together; it only crosses no cut."""
    text = """g (float[N,S,4] x) => (float[N,1] y) <int64 one = {1}, int64[1] at = {1}, int64[2] shape = {0,-1}>
    { r = Relu(x) s = Shape(r) n = Gather(s, one) c = Equal(n, one) i = If (c) <
      then_branch = t () => (float[A,B] p) { p = Squeeze(r, at) },
      else_branch = e () => (float[A,B,C] q) { q = Identity(r) }>
      f = Reshape(i, shape) w = ReduceMax<axes=[1]>(f) y = Tanh(w) }"""
    partition = cut(text, tmp_path)
    assert partition.reason is None
    assert "i" not in partition.boundaries


def test_a_branch_by_a_size_that_nothing_runs_is_refused(tmp_path: Path) -> None:
    """Neither a size that takes the branch was found, nor does it take the sizes that were: an example is asked for."""
    then = "k = Constant<value = int64[2] {-1,12345}>() p = Reshape(x, k)"
    partition = cut(SIZED.replace("MOST", "9999").replace("THEN", then), tmp_path)
    assert partition.reason is not None
    assert "('c')" in partition.reason
    assert "example_inputs" in partition.reason


def test_inputs_that_are_looked_for_do_not_turn_a_branch_back(tmp_path: Path) -> None:
    """Inputs drawn to run the other branch must not choose the first one again: then nothing runs it."""
    text = """g (float[N,W] x, int64 k) => (float[N,W] y)
    <int64[1] a = {0}, int64[1] b = {1}, int64[2] r = {-1,41}, int64 one = {1}>
    { c = Equal(k, one) y = If (c) <
      then_branch = t () => (float[N,W] p) { p = Neg(x) },
      else_branch = e () => (float[N,W] q) { f = Slice(x, a, b) g = Sub(x, f) q = Reshape(g, r) }> }"""
    partition = cut(text, tmp_path, example_inputs={"x": np.ones(37, np.float32), "k": np.array(1)})
    assert partition.reason is not None
    assert "example_inputs" in partition.reason


def nested(depth: int) -> str:
    """Choices within each other, each by a flag of its own; the innermost one mixes rows."""
    body = "f = Slice(x, a, b) p0 = Sub(x, f)"
    for k in range(depth):
        then = f"then_branch = t{k} () => (float[N,4] p{k}) {{ {body} }}"
        other = f"else_branch = e{k} () => (float[N,4] q{k}) {{ q{k} = Neg(x) }}"
        body = f"p{k + 1} = If (c{k}) <{then}, {other}>"
    flags = ", ".join(f"bool c{k}" for k in range(depth))
    return f"""g (float[N,4] x, {flags}) => (float[N,4] p{depth})
    <int64[1] a = {{0}}, int64[1] b = {{1}}> {{ {body} }}"""


@pytest.mark.parametrize(("depth", "sentence"), [(4, "output 'p4'"), (5, "others that do: too many ways to try")])
def test_choices_within_choices_are_limited(depth: int, sentence: str, tmp_path: Path) -> None:
    """As many sets of depths as there are would take a session each: beyond a limit rows are not joined."""
    example = {"x": np.ones(4, np.float32), **{f"c{k}": np.array(False) for k in range(depth)}}
    partition = cut(nested(depth), tmp_path, example_inputs=example)
    assert partition.reason is not None
    assert sentence in partition.reason


IN_PLACE = """g (float[N,S] x, int64 k) => (float[N,S] y) <int64[1] one = {1}, int64 no = {0}>
{ c = Tanh(x) f = Greater(k, no) a = If (f) <then_branch = t () => (float[N,T] p) { p = Relu(x) },
                             else_branch = e () => (float[N,T] q) { q = WIDTH }>
  d = Add(a, c) y = Neg(d) }"""


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("flag", [0, 1])
def test_nothing_is_written_over_what_may_be_smaller(flag: int, length: int, tmp_path: Path) -> None:
    """In the branch that the example leaves out, the operand of a sum is smaller than the sum; at one value, it is
    not, and only a longer one shows it."""
    example = {"x": np.linspace(0, 1, length, dtype=np.float32), "k": np.array(flag)}
    for width, may in (("Abs(x)", {("a", "d"), ("c", "d")}), ("ReduceSum(x, one)", {("c", "d")})):
        folder = tmp_path / width[:3]
        folder.mkdir()
        partition = cut(IN_PLACE.replace("WIDTH", width), folder, example_inputs=example)
        assert partition.reason is None
        pairs = {pair for piece in partition.pieces for pair in piece.in_place}
        assert pairs
        assert pairs <= may
