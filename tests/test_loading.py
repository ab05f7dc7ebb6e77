"""load(): model files, partition directories, callables, and everything else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.callable import CallableModel
from lazybatch.executors.ort.model import OrtModel
from lazybatch.loading import load
from lazybatch.partition.cache import CACHE_VARIABLE
from lazybatch.partition.onnx import partition_onnx
from tests.onnx_models import floats, mlp, save


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def onnx_model(source: Any, **options: Any) -> OrtModel:
    """A loaded model that is known to come from an ONNX file."""
    model = load(source, **options)
    assert isinstance(model, OrtModel)
    return model


def test_file(tmp_path: Path) -> None:
    """A model file is partitioned, and gives the answers it gives whole."""
    model = onnx_model(str(save(mlp(), tmp_path / "net.onnx")), preempt_within=1e-9)
    assert (model.name, model.joinable, model.reason) == ("net", True, None)
    assert len(model.graph) == 6 or len(model.graph) > 1
    x = floats(0, 3, 4)
    assert np.array_equal(model.run({"x": x})["y"], model.whole_session().run(None, {"x": x})[0])


def test_second_load_takes_the_same_cuts(tmp_path: Path, cache: Path) -> None:
    """The same model and options give the same partition; other options another one."""
    path = save(mlp(), tmp_path / "net.onnx")
    first, second = onnx_model(path), onnx_model(path)
    assert first.fingerprint == second.fingerprint
    assert first.partition == second.partition
    assert len(list(cache.iterdir())) == 1
    onnx_model(path, preempt_within=1e-9)
    assert len(list(cache.iterdir())) == 2


def test_changed_file_is_another_model(tmp_path: Path) -> None:
    """The cache goes by what is in the file, not by its name or date."""
    path = save(mlp(), tmp_path / "net.onnx")
    before = onnx_model(path).fingerprint
    save(mlp(hidden=16), path)
    assert onnx_model(path).fingerprint != before


def test_without_cache(tmp_path: Path, cache: Path) -> None:
    """Nothing is kept where nothing shall be."""
    assert onnx_model(save(mlp(), tmp_path / "net.onnx"), cache=False).joinable
    assert not cache.exists()


def test_directory(tmp_path: Path) -> None:
    """A partition written before is loaded as it is, and its cuts cannot be argued with."""
    partition = partition_onnx(save(mlp(), tmp_path / "net.onnx"), tmp_path / "parts", preempt_within_s=1e-9)
    assert onnx_model(tmp_path / "parts").fingerprint == partition.fingerprint
    with pytest.raises(InvalidInput, match="partitioned already: preempt_within"):
        load(tmp_path / "parts", preempt_within=1.0)


def test_callable() -> None:
    """A callable becomes a model of one node, and takes no ONNX options."""
    model = load(lambda xs: xs)
    assert isinstance(model, CallableModel)
    with pytest.raises(InvalidInput, match="tolerance"):
        load(lambda xs: xs, tolerance=0.1)


def test_callable_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be at it: the module is there before its classes are, and nobody has one of theirs."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert isinstance(load(lambda xs: xs), CallableModel)


def test_require_joinable(tmp_path: Path) -> None:
    """A model whose rows cannot join is refused on request, with the reason."""
    model = mlp()
    model.graph.node[-1].op_type = "Softmax"
    model.graph.node[-1].attribute.add(name="axis", type=2, i=0)
    path = save(model, tmp_path / "net.onnx")
    assert not onnx_model(path).joinable
    with pytest.raises(ModelError, match="model 'net': rows cannot share a batch: output 'y'"):
        load(path, require_joinable=True)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", ["a"]])
def test_other_things(wrong: object) -> None:
    """Whatever is neither path nor callable is named by its type."""
    with pytest.raises(InvalidInput, match=f"cannot load a {type(wrong).__name__}"):
        load(wrong)


def test_missing_file(tmp_path: Path, cache: Path) -> None:
    """A file that is not there is named, and leaves nothing in the cache."""
    with pytest.raises(ModelError, match=r"gone\.onnx: no such file"):
        load(tmp_path / "gone.onnx")
    assert not cache.exists() or not list(cache.iterdir())


def test_examples_are_part_of_the_key(tmp_path: Path, cache: Path) -> None:
    """Other examples may lead to other cuts, so they are another entry."""
    path = save(mlp(), tmp_path / "net.onnx")
    for example in (np.ones(4, np.float32), np.zeros(4, np.float32), np.ones(4, np.float32)):
        load(path, example_inputs={"x": example})
    assert len(list(cache.iterdir())) == 2
