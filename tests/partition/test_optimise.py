"""The optimised graph: cut-ready, its weights in one file, and a fall-back where it cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from lazybatch.executors.ort.session import WEIGHTS_FILE, open_session
from lazybatch.partition.onnx import optimise as module
from lazybatch.partition.onnx.optimise import WHOLE_FILE, optimise, weights_of
from lazybatch.partition.onnx.source import read_source
from tests.onnx_models import F32, build, const, floats, mlp, op, save, value


def test_saved_graph_gives_the_answers_of_the_optimised_session(tmp_path: Path) -> None:
    """Loading the saved graph without further optimisation changes no bit."""
    path = save(mlp(64, 96, 4), tmp_path / "m.onnx")
    made = optimise(read_source(path), tmp_path, open_session)
    assert made.note is None
    x = floats(1, 3, 64)
    want = open_session(path, optimise=True).run(None, {"x": x})[0]
    got = open_session(made.path, optimise=False).run(None, {"x": x})[0]
    assert np.array_equal(got, want)
    assert [node.name for node in made.proto.graph.node] == [f"n{k}" for k in range(len(made.proto.graph.node))]


def test_weight_used_twice_is_stored_once(tmp_path: Path) -> None:
    """One weight, two users, one region of the weights file."""
    model = build(
        [op("MatMul", "x w", "a"), op("Tanh", "a", "b"), op("MatMul", "b w", "y")],
        [value("x", F32, ["N", 64])],
        [value("y", F32, ["N", 64])],
        [const("w", floats(0, 64, 64))],
    )
    made = optimise(read_source(save(model, tmp_path / "m.onnx")), tmp_path, open_session)
    assert weights_of(made.proto) == 64 * 64 * 4
    assert (tmp_path / WEIGHTS_FILE).stat().st_size < 2 * 64 * 64 * 4


def test_original_graph_where_the_optimised_one_cannot_be_saved(tmp_path: Path) -> None:
    """Without a saved optimised graph the original is cut, and the reason is noted."""
    folder = tmp_path / "out"
    folder.mkdir()

    def opener(model: Any, *, save_to: Path | None = None, **options: Any) -> Any:
        if save_to is not None:
            raise RuntimeError("no room for it")
        return open_session(model, **options)

    path = save(mlp(64, 96, 3), tmp_path / "m.onnx")
    made = optimise(read_source(path), folder, opener)
    assert made.note is not None
    assert "no room for it" in made.note
    x = floats(1, 3, 64)
    got = open_session(made.path, optimise=False).run(None, {"x": x})[0]
    assert np.array_equal(got, open_session(path, optimise=False).run(None, {"x": x})[0])


def test_original_graph_where_the_saved_one_cannot_be_read(tmp_path: Path) -> None:
    """A saved graph the runtime does not take back is replaced by the original one."""
    folder = tmp_path / "out"
    folder.mkdir()
    refused = []

    def opener(model: Any, **options: Any) -> Any:
        if model == folder / WHOLE_FILE and not refused:
            refused.append(model)
            raise RuntimeError("cannot read this")
        return open_session(model, **options)

    made = optimise(read_source(save(mlp(), tmp_path / "m.onnx")), folder, opener)
    assert made.note is not None
    assert "read back" in made.note


@pytest.mark.parametrize("seed", range(3))
def test_sorting_keeps_what_is_sorted(seed: int) -> None:
    """Nodes in any order end up after what they read; a sorted graph is left as it is."""
    graph = mlp(layers=4).graph
    wanted = [node.output[0] for node in graph.node]
    order = np.random.default_rng(seed).permutation(len(wanted))
    mixed = [graph.node[k] for k in order]
    shuffled = onnx.GraphProto()
    shuffled.CopyFrom(graph)
    del shuffled.node[:]
    shuffled.node.extend(mixed)
    module._sort(shuffled)
    assert [node.output[0] for node in shuffled.node] == wanted
