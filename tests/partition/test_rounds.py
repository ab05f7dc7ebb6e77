"""Loops whose rounds callers choose: bodies that no example runs are run as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazybatch.partition.onnx.rounds import forced
from lazybatch.partition.onnx.taint import spread
from tests.partition.parts import cut, text_model

ROUNDS = """g (float[N,4] x, int64 k, bool on) => (float[N,4] y) <int64[1] a = {0}, int64[1] b = {1}>
{ r = Relu(x) y = Loop (k, on, r) <
  body = l (int64 i, bool p, float[N,4] v) => (bool q, float[N,4] w) { q = Identity(p) BODY }> }"""
BODIES = {"f = Slice(v, a, b) w = Sub(v, f)": False, "f = Slice(v, a, b, b) w = Sub(v, f)": True}


def request(k: int, on: bool = True) -> dict[str, object]:
    """One that goes round so often."""
    return {"x": np.arange(4, dtype=np.float32), "k": np.array(k), "on": np.array(on)}


@pytest.mark.parametrize("example", [request(0), request(2), request(5, False)], ids=["none", "two", "off"])
@pytest.mark.parametrize("body", BODIES)
def test_a_body_no_example_runs_is_probed(body: str, example: dict[str, object], tmp_path: Path) -> None:
    """Callers say how often: a body that mixes rows is found though the only example leaves it out."""
    partition = cut(ROUNDS.replace("BODY", body), tmp_path, example_inputs=example)
    assert partition.joinable is BODIES[body], partition.reason
    if partition.reason is not None and example["k"] != 2:
        assert partition.reason.startswith("operator Loop (makes 'y') goes round by a value of the caller ('k')")
        assert "output 'y'" in partition.reason


def test_no_round_is_probed_as_well(tmp_path: Path) -> None:
    """Without a round, an output is what the loop begins with: here no row's own."""
    text = """g (float[N,4] x, int64 k) => (float[N,4] z, float[A,B] y) <bool on = {1}, float[1,4] s = {1.,2.,3.,4.}>
    { z = Neg(x) y = Loop (k, on, s) <
      body = l (int64 i, bool p, float[A,B] v) => (bool q, float[A,B] w) { q = Identity(p) w = Abs(x) }> }"""
    example = {"x": np.arange(4, dtype=np.float32), "k": np.array(3)}
    partition = cut(text, tmp_path, example_inputs=example, tolerance=0.1)
    assert partition.reason is not None
    assert "goes round by a value of the caller ('k')" in partition.reason


def test_a_choice_in_a_body_no_example_runs(tmp_path: Path) -> None:
    """The body is run, and both branches in it."""
    body = """w = If (flag) <then_branch = t () => (float[N,4] m) { m = Neg(v) },
                             else_branch = e () => (float[N,4] n) { f = OTHER n = Sub(v, f) }>"""
    for other, joins in (("Slice(v, a, b)", False), ("Slice(v, a, b, b)", True)):
        folder = tmp_path / str(joins)
        folder.mkdir()
        text = ROUNDS.replace("BODY", body.replace("OTHER", other)).replace("bool on)", "bool on, bool flag)")
        partition = cut(text, folder, example_inputs={**request(0), "flag": np.array(True)})
        assert partition.joinable is joins, partition.reason


def test_what_runs_show() -> None:
    """A way that examples take needs no copy; who collects a value per round always goes round."""
    graph = text_model(ROUNDS.replace("BODY", "w = Neg(v)")).graph
    none, two = (forced(graph, spread(graph, ["x"]), times) for times in (0, 2))
    assert none is not None
    assert two is not None
    assert (two.flag, two.loops, two.hidden) == ("k", (("k", "on"),), False)
    runs = [{"k": np.array(k), "on": np.array(on)} for k, on in ((0, True), (1, True), (3, False))]
    assert [(none.taken([run]), two.taken([run])) for run in runs] == [(True, False), (False, False), (True, False)]
    assert two.taken([*runs, {"k": np.array([2]), "on": np.array(True)}])
    assert not two.taken([{"k": np.array(2)}])
    collecting = """g (float[N,4] x, int64 k) => (float[N,4] y, float[K,N,4] z) <bool on = {1}>
    { y, z = Loop (k, on, x) <body = l (int64 i, bool p, float[N,4] v) => (bool q, float[N,4] w, float[N,4] u)
    { q = Identity(p) w = Neg(v) u = Abs(v) }> }"""
    graph = text_model(collecting).graph
    assert forced(graph, spread(graph, ["x"]), 0) is None
    assert forced(graph, spread(graph, ["x"]), 2) is not None
    assert forced(graph, spread(graph, []), 2) is None
