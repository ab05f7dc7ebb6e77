"""check: what `lazybatch check` reports."""

from __future__ import annotations

from pathlib import Path

from lazybatch.checking import check
from lazybatch.executors.ort.model import OrtModel
from tests.onnx_models import mlp
from tests.partition.parts import cut


def test_joinable_model(tmp_path: Path) -> None:
    """Nodes, proof and the price of node by node, with equal bits."""
    model = OrtModel(cut(mlp(), tmp_path))
    report = check(model)
    assert (report.model, report.nodes, report.joinable, report.reason) == ("model", len(model.graph), True, None)
    assert report.identical is True
    assert report.chain_over_whole is not None
    assert report.chain_over_whole > 0
    assert report.max_abs_diff is not None
    assert report.max_abs_diff < 1e-5


def test_refused_model(tmp_path: Path) -> None:
    """A model that cannot be joined is measured all the same, and the reason is passed on."""
    text = "g (float[N,4] x) => (float[4] y) { a = Tanh(x) y = ReduceSum<keepdims=0>(a) }"
    partition = cut(text.replace("ReduceSum<keepdims=0>", "ReduceMean<axes=[0],keepdims=0>"), tmp_path)
    report = check(OrtModel(partition))
    assert not report.joinable
    assert report.reason
    assert report.identical is True


def test_model_without_a_known_input(tmp_path: Path) -> None:
    """Where no input is known, nothing is measured, and nothing is made up."""
    text = """g (int64[N,T] ids) => (float[N,T,2] y) <float[3,2] w = {1.,2.,3.,4.,5.,6.}, int64[2] s = {-1,37}>
    { a = Reshape(ids, s) k = Constant<value_int=4000>() b = Sub(ids, k) y = Gather(w, b) }"""
    report = check(OrtModel(cut(text, tmp_path)))
    assert (report.chain_over_whole, report.identical, report.joinable) == (None, None, False)
