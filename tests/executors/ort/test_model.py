"""The model: what it says of itself, what it hands to callers, and the executors it makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.base import Executor, Model
from lazybatch.executors.ort.model import OrtModel
from lazybatch.executors.ort.session import CPU, CUDA
from lazybatch.words import counted
from tests.executors.partitions import data_dependent, recurrent, residual


def test_it_is_a_model_with_an_executor(tmp_path: Path) -> None:
    """Types hold the contracts (mypy reads this test), and the properties are those of the partition."""
    net = residual(tmp_path)
    model: Model = OrtModel(net)
    executor: Executor = model.executor(max_batch_size=2)
    executor.shutdown()
    assert model.name == "tiny"
    assert [node.name for node in model.graph.nodes] == ["node0", "node1", "node2", "node3"]
    assert model.joinable
    assert model.reason is None
    assert model.fingerprint == net.fingerprint
    assert repr(model) == "OrtModel('tiny', 4 nodes, joinable)"


def test_it_says_what_it_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are compared by it: nothing on the CPU, else the providers that come before it."""
    model = OrtModel(residual(tmp_path))
    assert model.accelerator is None
    monkeypatch.setattr(model, "_providers", [CUDA, CPU])
    assert model.accelerator == "CUDAExecutionProvider"


def test_what_cannot_be_joined_says_why(tmp_path: Path) -> None:
    """The reason of the partition reaches the caller."""
    model = OrtModel(data_dependent(tmp_path))
    assert not model.joinable
    assert model.reason == "the shape of 'n' depends on values"
    assert repr(model) == f"OrtModel({model.name!r}, {counted(len(model.graph), 'node')}, not joinable)"


def test_a_row_is_admitted_or_refused(tmp_path: Path) -> None:
    """Admission is that of the partition's inputs."""
    model = OrtModel(recurrent(tmp_path))
    assert model.admit({"x": [1, 2, 3, 4]}).values["x"].dtype == np.float32
    with pytest.raises(InvalidInput, match="unknown input 'z'"):
        model.admit({"x": [1, 2, 3, 4], "z": 1})
    noted = replace(model.partition, provenance={"weights": ["z"]})
    with pytest.raises(InvalidInput, match=r"'z' .*is a weight"):
        OrtModel(noted).admit({"x": [1, 2, 3, 4], "z": 1})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_whole_batch_node_by_node(tmp_path: Path, count: int) -> None:
    """`run` gives all outputs of the whole model, also without rows."""
    model = OrtModel(recurrent(tmp_path))
    feeds = {"x": np.random.default_rng(0).standard_normal((count, 4)).astype(np.float32)}
    got = model.run(feeds)
    for name, array in zip(got, model.whole_session().run(list(got), feeds), strict=True):
        assert np.array_equal(got[name], array)


def test_memory_is_planned_where_shapes_are_known(tmp_path: Path) -> None:
    """With all dimensions fixed, buffers for the largest batch are there before the first row."""
    executor = OrtModel(recurrent(tmp_path)).executor(max_batch_size=4)
    plan = executor.memory()
    assert plan.buffers_bytes > 0
    assert plan.total_bytes == plan.weights_bytes + plan.buffers_bytes + plan.scratch_bytes
    assert executor.buffer_sets == 2


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A piece or a whole model that is not there is a ModelError with its path."""
    net = residual(tmp_path)
    model = OrtModel(net)
    (tmp_path / "whole.onnx").unlink()
    with pytest.raises(ModelError, match=str(tmp_path)):
        model.whole_session()
    gone = replace(net.pieces[1], path=tmp_path / "gone.onnx")
    with pytest.raises(ModelError, match=r"gone\.onnx"):
        OrtModel(replace(net, pieces=(net.pieces[0], gone, *net.pieces[2:])))
