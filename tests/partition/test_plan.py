"""Plans: which places may be cut, at what price, and where large values make looking dear."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazybatch.executors.ort.session import open_session
from lazybatch.partition import plan as module
from lazybatch.partition.onnx.build import residuals
from lazybatch.partition.onnx.graph import OnnxGraph
from lazybatch.partition.onnx.join import judge_onnx
from lazybatch.partition.onnx.optimise import optimise
from lazybatch.partition.onnx.source import read_source
from lazybatch.partition.pieces import Kind
from lazybatch.partition.plan import Plan
from tests.onnx_models import save
from tests.partition.parts import text_model
from tests.partition.test_build import convolutional

MIXED_INSIDE = """g (float[N,4] x) => (float[N,4] y) <int64[3] s = {-1,2,2}, int64[2] f = {-1,2}, int64[3] b = {2,-1,2},
int64[2] o = {-1,4}> { a = Reshape(x, s) t = Transpose<perm=[1,0,2]>(a) r = Reshape(t, f) u = Tanh(r)
v = Reshape(u, b) w = Transpose<perm=[1,0,2]>(v) y = Reshape(w, o) }"""


def planned(model: object, folder: Path) -> Plan:
    """The plan of a model."""
    source = read_source(save(model, folder / "m.onnx"))  # type: ignore[arg-type]
    optimised = optimise(source, folder, open_session)
    verdict = judge_onnx(source, optimised, None, None, None, open_session)
    return Plan(OnnxGraph(optimised, open_session), verdict, None)


def test_no_cut_through_interleaved_rows(tmp_path: Path) -> None:
    """Where rows do not lie in one stretch there is no cut, though the model may be joined."""
    plan = planned(text_model(MIXED_INSIDE), tmp_path)
    assert plan.reason is None
    crossing = {name for cut in plan.cuts() for name in plan.live[cut.position]}
    assert crossing
    assert all(plan.traits[name].kind is Kind.ROWS for name in crossing if name != "x")
    assert not crossing & {"r", "u"}


def test_cuts_are_weighed_by_what_lives(tmp_path: Path) -> None:
    """The price of a cut is the bytes alive there at one row."""
    plan = planned(text_model("g (float[N,4] x) => (float[N,4] y) { a = Tanh(x) b = Neg(x) y = Sub(a, b) }"), tmp_path)
    assert [cut.live_bytes for cut in plan.cuts()] == [32, 32, 16]


def test_residual_convolutions_are_found(tmp_path: Path) -> None:
    """Fused residual adds are known with the node that made what they add."""
    source = read_source(save(convolutional(), tmp_path / "m.onnx"))
    optimised = optimise(source, tmp_path, open_session)
    verdict = judge_onnx(source, optimised, None, None, None, open_session)
    found = residuals(Plan(OnnxGraph(optimised, open_session), verdict, None), optimised)
    assert all(residual.made < residual.position for residual in found)


def test_large_values_are_looked_at_sparingly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all inner values together are too large to watch, fewer places are offered."""
    full = planned(convolutional(), tmp_path)
    monkeypatch.setattr(module, "WATCH_BYTES_MAX", sum(full.sizes.values()) // 3)
    monkeypatch.setattr(module, "SMALL_BYTES", 0)
    folder = tmp_path / "thin"
    folder.mkdir()
    thin = planned(convolutional(), folder)
    assert 0 < len(thin.cuts()) < len(full.cuts())
    assert thin.reason is None


def test_places_kept_are_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a model has large values: a place there is kept all the same, or that half would be one node."""
    body = " ".join(f"a{k + 1} = Tanh(a{k})" for k in range(12)) + " b0 = ReduceSum<keepdims=1>(a12, axes) "
    body += " ".join(f"b{k + 1} = Tanh(b{k})" for k in range(12))
    text = f"g (float[N,900] a0) => (float[N,1] b12) <int64[1] axes = {{1}}> {{ {body} }}"
    monkeypatch.setattr(module, "WATCH_BYTES_MAX", 3 * 3600)
    monkeypatch.setattr(module, "SMALL_BYTES", 0)
    plan = planned(text_model(text), tmp_path)
    large = [name for cut in plan.cuts() for name in plan.live[cut.position] if name.startswith("a")]
    assert 1 <= len(large) <= 3
    assert sum(plan.sizes[name] for k in plan.places for name in plan.live[k]) <= 3 * 3600


RARE = """g (float[N,4] x MORE) => (float[N,4] y OUT) <float t = {100.0}, float h = {200.0}>
{ g = Greater(x, t) l = Less(x, h) c = And(g, l) f = Cast<to=1>(c) m = ReduceMax<keepdims=0>(f) y = Add(x, m) TAIL }"""


def test_small_values_prove_wherever_they_lie(tmp_path: Path) -> None:
    """Where too many values live for a cut, a flag of the whole batch that no ordinary row raises is found as well."""
    more = "".join(f", float[N,1] p{k}" for k in range(module.LIVE_MAX + 1))
    out = "".join(f", float[N,4] q{k}" for k in range(module.LIVE_MAX + 1))
    tail = " ".join(f"q{k} = Add(p{k}, y)" for k in range(module.LIVE_MAX + 1))
    text = RARE.replace("MORE", more).replace("OUT", out).replace("TAIL", tail)
    plan = planned(text_model(text), tmp_path)
    assert not plan.places
    assert plan.reason is not None
    assert plan.reason.startswith("operator ReduceMax (makes 'm') ties rows together")


def test_small_values_prove_where_others_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not watched for its size is no reason to leave a number out that is made of it."""
    monkeypatch.setattr(module, "WATCH_BYTES_MAX", 0)
    monkeypatch.setattr(module, "SMALL_BYTES", 8)
    head = " ".join(f"n{k + 1} = Neg(n{k})" for k in range(6)).replace("Neg(n0)", "Neg(x)")
    text = RARE.replace("MORE", "").replace("OUT", "").replace("TAIL", "").replace("Greater(x", "Greater(n6")
    plan = planned(text_model(text.replace("{ g =", f"{{ {head} g =")), tmp_path)
    assert plan.reason is not None
    assert plan.reason.startswith("operator ReduceMax (makes 'm') ties rows together")


def test_sizes_are_tried_one_by_one(tmp_path: Path) -> None:
    """Two free lengths that were tried together are told apart, and what is known of a value holds for both."""
    text = """g (float[N,S,8] s, float[N,T,8] x) => (float[N,U,8] y)
    { a = Tanh(s) b = Relu(x) d = Add(a, b) y = Neg(d) }"""
    plan = planned(text_model(text), tmp_path)
    assert plan.reason is None
    assert plan.shapes["a"].seen != plan.shapes["d"].seen
    assert plan.shapes["b"].seen != plan.shapes["d"].seen
    assert plan.boundaries([])["y"].dims == (None, None, 8)
