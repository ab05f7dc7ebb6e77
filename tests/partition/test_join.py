"""Whether rows may join: every way of tying rows together that we know of is refused, with a sentence that says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.partition.pieces import Kind
from tests.partition.parts import cut

ROW = "float[N,4] x) => (float[N,4] y)"

MIXERS = {
    "maximum over the batch as a bound": (
        f"g ({ROW} {{ m = ReduceMax<keepdims=0>(x) y = Min(x, m) }}",
        "",
    ),
    "first row subtracted": (
        f"""g ({ROW} <int64[1] a = {{0}}, int64[1] b = {{1}}> {{ f = Slice(x, a, b) y = Sub(x, f) }}""",
        "",
    ),
    "running sum down the batch": (f"g ({ROW} <int64 a = {{0}}> {{ y = CumSum(x, a) }}", "output 'y'"),
    "running sum down the batch of what no ordinary value raises": (
        f"""g ({ROW} <int64 a = {{0}}, float t = {{100.0}}, float h = {{200.0}}>
        {{ m = Greater(x, t) l = Less(x, h) c = And(m, l) f = Cast<to=1>(c) r = CumSum(f, a) y = Add(x, r) }}""",
        "operator CumSum walks over the rows of the batch",
    ),
    "a maximum over the batch inside a body, of what no ordinary value raises": (
        f"""g ({ROW} <int64 k = {{2}}, bool on = {{1}}, float t = {{100.0}}, float h = {{200.0}}>
        {{ m = Greater(x, t) l = Less(x, h) c = And(m, l) f = Cast<to=1>(c)
        y = Loop (k, on, x) <body = b (int64 i, bool p, float[N,4] v) => (bool q, float[N,4] w)
        {{ q = Identity(p) r = ReduceMax<axes=[0]>(f) w = Add(v, r) }}> }}""",
        "operator ReduceMax (makes 'r') in the body",
    ),
    "the batch size beyond eight": (
        f"""g ({ROW} <int64[1] i = {{0}}, int64[1] e = {{8}}>
        {{ s = Shape(x) n = Gather(s, i) d = Sub(n, e) f = Cast<to=1>(d) r = Relu(f) y = Add(x, r) }}""",
        "output 'y': a row changes by up to 25 when 33 rows share its batch",
    ),
    "softmax over the batch": (f"g ({ROW} {{ y = Softmax<axis=0>(x) }}", "output 'y'"),
    "rows turned round": (
        f"""g ({ROW} <int64[1] a = {{-1}}, int64[1] b = {{-9999}}, int64[1] c = {{0}}, int64[1] d = {{-1}}>
        {{ y = Slice(x, a, b, c, d) }}""",
        "output 'y'",
    ),
    "rows turned round where a value is huge": (
        f"""g ({ROW} <int64[1] a = {{-1}}, int64[1] b = {{-9999}}, int64[1] c = {{0}}, int64[1] d = {{-1}},
        float t = {{1e20}}> {{ r = Slice(x, a, b, c, d) c2 = Greater(x, t) y = Where(c2, r, x) }}""",
        "ties rows together",
    ),
    "a flag of the whole batch that no ordinary value raises": (
        f"""g ({ROW} <float t = {{1e30}}, float z = {{0.0}}>
        {{ m = ReduceMax<keepdims=0>(x) f = Greater(m, t) y = Where(f, z, x) }}""",
        "",
    ),
    "position in the batch": (
        f"""g ({ROW} <int64 i = {{0}}, int64 one = {{1}}, int64[1] ax = {{1}}>
        {{ s = Shape(x) n = Gather(s, i) r = Range(i, n, one) f = Cast<to=1>(r)
        u = Unsqueeze(f, ax) y = Add(x, u) }}""",
        "output 'y'",
    ),
    "divided by the batch size": (
        f"""g ({ROW} <int64 i = {{0}}> {{ s = Shape(x) n = Gather(s, i) f = Cast<to=1>(n) y = Div(x, f) }}""",
        "output 'y'",
    ),
    "a step every eight rows": (
        f"""g ({ROW} <int64 i = {{0}}, int64 e = {{8}}>
        {{ s = Shape(x) n = Gather(s, i) q = Div(n, e) f = Cast<to=1>(q) y = Add(x, f) }}""",
        "operator Div (makes 'q') steers by the number of rows",
    ),
    "a threshold on the batch size": (
        f"""g ({ROW} <int64 i = {{0}}, int64 e = {{8}}, float z = {{0.0}}>
        {{ s = Shape(x) n = Gather(s, i) q = Greater(n, e) y = Where(q, z, x) }}""",
        "operator Greater (makes 'q') steers by the number of rows",
    ),
    "the batch size capped": (
        f"""g ({ROW} <int64 i = {{0}}, int64 e = {{8}}>
        {{ s = Shape(x) n = Gather(s, i) m = Min(n, e) d = Sub(n, m) f = Cast<to=1>(d) y = Add(x, f) }}""",
        "operator Min (makes 'm') steers by the number of rows",
    ),
    "a branch on data": (
        f"""g ({ROW} <float t = {{1e30}}> {{ m = ReduceMax<keepdims=0>(x) c = Greater(m, t)
        y = If (c) <then_branch = a () => (float[N,4] p) {{ p = Neg(x) }},
                    else_branch = b () => (float[N,4] q) {{ q = Identity(x) }}> }}""",
        "operator If (makes 'y') branches",
    ),
    "as many steps as rows": (
        f"""g ({ROW} <int64 i = {{0}}, bool on = {{1}}> {{ s = Shape(x) n = Gather(s, i)
        y = Loop (n, on, x) <body = b (int64 k, bool c, float[N,4] v) => (bool d, float[N,4] w)
        {{ d = Identity(c) w = Add(v, v) }}> }}""",
        "",
    ),
    "a loop until all rows are large": (
        f"""g ({ROW} <int64 n = {{5}}, bool on = {{1}}, float t = {{1e4}}>
        {{ y = Loop (n, on, x) <body = b (int64 k, bool c, float[N,4] v) => (bool d, float[N,4] w)
        {{ w = Add(v, v) m = ReduceMax<keepdims=0>(w) d = Less(m, t) }}> }}""",
        "operator Loop (makes 'y') goes on or stops by a value of the batch",
    ),
    "a walk over the rows with a state": (
        """g (float[N,4] x) => (float[N,4] y) <float[4] z = {0.0, 0.0, 0.0, 0.0}, float t = {1e38}>
        { last, y = Scan <num_scan_inputs=1, body = b (float[4] s, float[4] v) => (float[4] r, float[4] w)
        { q = IsNaN(v) h = IsInf(v) o = Or(q, h) g = Greater(v, t) n = Not(o) e = And(g, n) r = Where(e, v, s)
        w = Add(v, r) }> (z, x) }""",
        "operator Scan",
    ),
    "rows found in the batch": (
        "g (float[N,4] x) => (int64[2,M] y) { y = NonZero(x) }",
        "operator NonZero (makes 'y') returns as many rows as it finds",
    ),
    "the best rows of the batch": (
        f"""g ({ROW} {{ s = Shape(x) i = Constant<value = int64[1] {{0}}>() n = Gather(s, i)
        y, k = TopK<axis=0>(x, n) }}""",
        "",
    ),
    "a scale of the whole tensor": (
        """g (float[N,4] x) => (uint8[N,4] y) { y, s, z = DynamicQuantizeLinear(x) }""",
        "operator DynamicQuantizeLinear (makes 'y') takes its scale from the whole tensor",
    ),
    "noise": (f"g ({ROW} {{ r = RandomNormalLike(x) y = Add(x, r) }}", "draws random numbers"),
    "dropout in training": (
        f"g ({ROW} <float r = {{0.5}}, bool t = {{1}}> {{ y = Dropout(x, r, t) }}",
        "draws random numbers",
    ),
    "means of the batch": (
        f"""g ({ROW} <float[4] s = {{1.0,1.0,1.0,1.0}}, float[4] b = {{0.0,0.0,0.0,0.0}}>
        {{ y, m, v = BatchNormalization<training_mode=1>(x, s, b, b, s) }}""",
        "",
    ),
    "all pairs of rows": (
        """g (float[N,4] x) => (float[N,1] y) <int64[1] a = {1}>
        { t = Transpose<perm=[1,0]>(x) p = MatMul(x, t) y = ReduceMax<axes=[1], keepdims=1>(p) }""",
        "",
    ),
    "another row by an index in the data": ("g (float[N,4] x, int64[N] i) => (float[N,4] y) { y = Gather(x, i) }", ""),
    "a shape from the data": (
        """g (float[N,4] x, int64[N] n) => (float[N,M] y) <int64 i = {0}, int64 one = {1}, float[1] z = {0.0}>
        { k = ReduceMax<keepdims=0>(n) r = Range(i, k, one) f = Cast<to=1>(r) m = ReduceSum<keepdims=0>(f)
        q = Mul(m, z) y = Add(x, q) }""",
        "takes a shape or bound",
    ),
    "a copy of the whole batch behind the batch": (
        "g (float[N,4] x) => (float[M,4] y) <int64[2] r = {2,1}> { y = Tile(x, r) }",
        "output 'y'",
    ),
}


@pytest.mark.parametrize("name", MIXERS)
def test_rows_tied_together_are_refused(name: str, tmp_path: Path) -> None:
    """Each of these gives a row another answer in company, for some values or some batch size; none may join."""
    text, sentence = MIXERS[name]
    partition = cut(text, tmp_path)
    assert not partition.joinable
    assert partition.reason is not None
    assert sentence in partition.reason


KEEPERS = {
    "elementwise": (f"g ({ROW} {{ a = Relu(x) y = Neg(a) }}", 0, True),
    "several indices per row": (
        "g (float[N,4] x) => (float[M,2] y) <int64[2] s = {-1,2}> { a = Relu(x) y = Reshape(a, s) }",
        0,
        False,
    ),
    "rows on the last axis of the output": (
        "g (float[N,4] x) => (float[4,N] y) { a = Relu(x) y = Transpose<perm=[1,0]>(a) }",
        1,
        True,
    ),
    "heads before rows inside": (
        """g (float[N,4] x) => (float[N,4] y) <int64[3] s = {-1,2,2}, int64[3] b = {2,-1,2}, int64[2] f = {-1,2},
        int64[2] o = {-1,4}> { a = Reshape(x, s) t = Transpose<perm=[1,0,2]>(a) r = Reshape(t, f) u = Relu(r)
        v = Reshape(u, b) w = Transpose<perm=[1,0,2]>(v) y = Reshape(w, o) }""",
        0,
        True,
    ),
    "a shape computed from the batch size": (
        """g (float[N,4] x) => (float[N,2,2] y) <int64 i = {0}, int64[1] z = {0}, int64[2] t = {2,2}>
        { s = Shape(x) n = Gather(s, i) u = Unsqueeze(n, z) c = Concat<axis=0>(u, t) a = Relu(x) y = Reshape(a, c) }""",
        0,
        True,
    ),
    "an expand that asks for -1": (
        """g (float[N,4] x) => (float[N,4] y) <int64[2] m = {-1,-1}, int64[2] one = {1,1},
        float[1,4] k = {1.,2.,3.,4.}>
        { s = Shape(x) q = Equal(s, m) w = Where(q, one, s) e = Expand(k, w) y = Mul(x, e) }""",
        0,
        True,
    ),
    "a loop of fixed length": (
        f"""g ({ROW} <int64 n = {{3}}, bool on = {{1}}>
        {{ y = Loop (n, on, x) <body = b (int64 k, bool c, float[N,4] v) => (bool d, float[N,4] w)
        {{ d = Identity(c) w = Add(v, v) }}> }}""",
        0,
        True,
    ),
    "a walk over time, not over rows": (
        """g (float[T,N,4] x, float[N,4] h) => (float[T,N,4] y)
        { last, y = Scan <num_scan_inputs=1, body = b (float[N,4] s, float[N,4] v) => (float[N,4] r, float[N,4] w)
        { r = Add(s, v) w = Tanh(r) }> (h, x) }""",
        1,
        True,
    ),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_rows_that_keep_to_themselves_may_join(name: str, tmp_path: Path) -> None:
    """Independent rows are recognised, with the axis they lie on, whatever detours the graph takes."""
    text, axis, unit = KEEPERS[name]
    partition = cut(text, tmp_path)
    assert partition.reason is None
    result = partition.boundaries["y"]
    assert (result.kind, result.axis, result.unit) == (Kind.ROWS, axis, unit)


def test_cuts_only_where_every_value_is_proven(tmp_path: Path) -> None:
    """Values that are neither rows, shared nor sizes never cross a cut of a joinable model."""
    for name, (text, _, _) in KEEPERS.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        kinds = {boundary.kind for boundary in cut(text, folder).boundaries.values()}
        assert Kind.OPAQUE not in kinds, name


def test_size_vector_across_a_cut(tmp_path: Path) -> None:
    """A computed shape that lives across a cut is told apart element by element: the batch size, and fixed numbers."""
    partition = cut(
        """g (float[N,4] x) => (float[N,4] y) <int64 i = {0}, int64[1] z = {0}, int64[1] four = {4}, float k = {2.0}>
        { s = Shape(x) n = Gather(s, i) u = Unsqueeze(n, z) c = Concat<axis=0>(u, four) a = Relu(x) b = Neg(a)
        e = Expand(k, c) y = Mul(b, e) }""",
        tmp_path,
    )
    assert partition.joinable
    sizes = [boundary for boundary in partition.boundaries.values() if boundary.kind is Kind.SIZE]
    assert (True, False) in [size.proportional for size in sizes]


def test_unbatched_table_is_told_from_rows(tmp_path: Path) -> None:
    """A table and a scalar without a batch axis are shared inputs, and an output computed from them is shared too."""
    partition = cut(
        """g (float[N,4] x, float temp, float[K,4] table) => (float[N,K] y, int64 count)
        { t = Transpose<perm=[1,0]>(table) a = Div(x, temp) b = MatMul(a, t) y = Softmax<axis=-1>(b)
          count = Size(table) }""",
        tmp_path,
    )
    assert partition.joinable
    kinds = {name: partition.boundaries[name].kind for name in (*partition.inputs, *partition.outputs)}
    assert kinds == {
        "x": Kind.ROWS,
        "temp": Kind.SHARED,
        "table": Kind.SHARED,
        "y": Kind.ROWS,
        "count": Kind.SHARED,
    }


def test_declared_axes_overrule_the_search(tmp_path: Path) -> None:
    """A user who says which inputs are batched is taken at their word, and still has to be right."""
    text = "g (float[N,4] x, float[N,4] t) => (float[N,4] y) { y = Add(x, t) }"
    assert cut(text, tmp_path, batch_axes={"x": 0, "t": 0}).joinable
    wrong = cut("g (float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }", tmp_path, batch_axes={"x": 0})
    assert not wrong.joinable


def test_tolerance_lets_a_dynamic_scale_pass(tmp_path: Path) -> None:
    """Dynamic quantisation joins only when the user allows a deviation, which the manifest keeps."""
    text = """g (float[N,64] x) => (float[N,64] y)
    { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"""
    assert not cut(text, tmp_path).joinable
    allowed = cut(text, tmp_path, tolerance=0.1)
    assert allowed.joinable
    assert allowed.provenance["tolerance"] == 0.1
    assert allowed.max_abs_diff is not None
    assert 0 < allowed.max_abs_diff < 0.5


def test_no_acceptable_input_is_a_reason(tmp_path: Path) -> None:
    """Where no made-up input runs, the reason asks for an example, and an example settles it."""
    text = """g (int64[N,T] ids) => (float[N,T,2] y) <float[3,2] w = {1.,2.,3.,4.,5.,6.}, int64[2] s = {-1,37}>
    { a = Reshape(ids, s) k = Constant<value_int=4000>() b = Sub(ids, k) y = Gather(w, b) }"""
    refused = cut(text, tmp_path)
    assert refused.reason == "no input found that the model accepts; pass example_inputs"
    example = {"ids": np.full((1, 37), 4001, np.int64)}
    assert cut(text, tmp_path, example_inputs=example).joinable


def test_fixed_dimensions_are_a_reason(tmp_path: Path) -> None:
    """A model without any free axis is served whole, one request at a time, and says so."""
    partition = cut("g (float[1,4] x) => (float[1,4] y) { a = Relu(x) y = Neg(a) }", tmp_path)
    assert partition.reason == "no input has a batch axis: every dimension is fixed"
    assert partition.boundaries["x"].kind is Kind.SHARED
    assert partition.boundaries["y"].kind is Kind.OPAQUE
    assert len(partition.pieces) == 2


def test_refused_model_still_strips_a_proven_batch_axis(tmp_path: Path) -> None:
    """Of a model that may not be joined, only outputs whose axis was seen to grow are given without it."""
    partition = cut(
        """g (float[N,4] x) => (float y, float[N,4] z) { n = RandomNormalLike(x) a = Add(x, n) z = Relu(a)
        y = ReduceSum<keepdims=0>(x) }""",
        tmp_path,
    )
    assert not partition.joinable
    assert (partition.boundaries["z"].kind, partition.boundaries["z"].axis) == (Kind.ROWS, 0)
    assert partition.boundaries["y"].kind is Kind.OPAQUE


def test_an_example_without_any_past_may_join(tmp_path: Path) -> None:
    """All rows' scores laid end to end: none where the table is empty, a part per row where it is not."""
    text = """g (float[N,4] x, float[P,4] past) => (float[N,4] y) <int64[1] flat = {-1}>
    { t = Transpose<perm=[1,0]>(past) m = MatMul(x, t) s = Shape(m) f = Reshape(m, flat) e = Exp(f)
    r = Reshape<allowzero=1>(e, s) w = MatMul(r, past) y = Add(x, w) }"""
    row = np.linspace(0.0, 1.0, 4, dtype=np.float32)
    examples = [{"x": row, "past": np.ones((length, 4), np.float32)} for length in (3, 0)]
    partition = cut(text, tmp_path, example_inputs=examples, batch_axes={"x": 0, "past": None})
    assert partition.reason is None
