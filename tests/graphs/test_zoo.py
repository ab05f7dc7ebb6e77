"""The model zoo: sizes as published, activations that keep their scale, files that compute what torch computes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from graphs.__main__ import main
from graphs.build import arguments, build
from graphs.export import ExportError, compare, ensure
from graphs.zoo import ZOO, file_name, sample

PARAMETERS = {
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "mobilenetv2": 3_504_872,
    "bert-base": 109_482_240,
    "minilm": 22_565_376,  # without the pooler that its sentence vectors do not use
}


@pytest.mark.parametrize("name", ZOO)
def test_size_and_scale(name: str) -> None:
    """Each network has the published number of parameters, and its outputs are finite and neither tiny nor huge."""
    import torch

    model = importlib.import_module(ZOO[name].module).build(0)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    with torch.no_grad():
        answer = model(*(torch.from_numpy(array) for array in sample(name, 2).values()))
    for output in answer if isinstance(answer, tuple) else (answer,):
        assert 0.05 < float(output.std()) < 50


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
def test_batch_norm_is_not_the_identity(name: str) -> None:
    """Scales, shifts, means and variances are all away from 1 and 0, so fusing them changes weights."""
    import torch

    model = importlib.import_module(ZOO[name].module).build(0).requires_grad_(False)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        assert float((norm.weight - 1).abs().mean()) > 0.05
        assert float(norm.bias.abs().mean()) > 0.01
        assert float(norm.running_mean.abs().mean()) > 0.001
        assert float((norm.running_var - 1).abs().mean()) > 0.01


def test_same_seed_same_weights() -> None:
    """A seed names one set of weights; another seed gives others."""
    import torch

    builder = importlib.import_module("graphs.mobilenet")
    first, again, other = (torch.cat([p.flatten() for p in builder.build(s).parameters()]) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sample_tokens_are_masked_beyond_their_length() -> None:
    """Token rows have their own lengths; padding is 0 in ids and mask, and the seed decides everything."""
    inputs = sample("bert-base", 8, length=32, seed=3)
    lengths = inputs["attention_mask"].sum(axis=1)
    assert inputs["input_ids"].shape == (8, 32)
    assert inputs["input_ids"].dtype == np.int64
    assert lengths.min() >= 16
    assert len(set(lengths.tolist())) > 1
    assert (inputs["input_ids"][inputs["attention_mask"] == 0] == 0).all()
    assert np.array_equal(inputs["input_ids"], sample("bert-base", 8, length=32, seed=3)["input_ids"])


def test_export_command(minilm: tuple[Path, dict[str, Any]]) -> None:
    """One command writes a file with a dynamic batch whose answers are torch's, and leaves nothing else behind."""
    folder, report = minilm
    assert report["inputs"] == {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]}
    assert report["relative_difference_from_torch"] < 1e-4
    path = folder / file_name("minilm", None)
    assert list(folder.iterdir()) == [path]
    before = path.stat().st_mtime_ns
    assert ensure("minilm", folder, length=None) == path
    assert path.stat().st_mtime_ns == before


def test_a_file_with_other_weights_is_noticed(minilm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """One matrix of a copy is a hundredth larger: the file differs from torch."""
    model = onnx.load(minilm[0] / file_name("minilm", None))
    held = max(model.graph.initializer, key=lambda tensor: (len(tensor.dims) == 2, -len(tensor.raw_data)))
    held.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(held) * np.float32(1.01), held.name))
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    with pytest.raises(ExportError, match="differs from torch"):
        compare("minilm", path, rows=1, length=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length"),
    [
        *((name, 64) for name in ("mobilenetv2", "resnet50", "vgg16", "bert-base")),
        ("bert-base", None),
    ],
)
def test_every_export(tmp_path: Path, name: str, length: int | None) -> None:
    """The other networks too compute what torch computes, BERT also at a length it was not exported with."""
    path = ensure(name, tmp_path, length=length)
    compare(name, path, rows=1, length=length or 48)
    compare(name, path, rows=5, length=length or 96)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["export", "--model", "vgg", "-o", "x"], "vgg"),
        (["export", "--model", "bert-base", "--length", "1", "-o", "x"], "length '1'"),
        (["export", "--model", "bert-base"], "-o"),
        (["build", "--model", "bert-base", "--length", "any", "-o", "x"], "'any'"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong options end with status 2 and a line that names them."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert culprit in capsys.readouterr().err


def test_unwritable_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An output that is a file, not a folder, is one clear line and status 1."""
    target = tmp_path / "file"
    target.write_text("")
    assert main(["export", "--model", "mobilenetv2", "-o", str(target)]) == 1
    assert str(target) in capsys.readouterr().err


def test_build_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes a torch program with a dynamic batch, whose answers are the module's, and nothing else."""
    import torch

    assert main(["build", "--model", "minilm", "--length", "16", "-o", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    path = Path(report["file"])
    assert list(tmp_path.iterdir()) == [path]
    assert path.suffix == ".pt2"
    given = arguments("minilm", 3, length=16, seed=1)
    with torch.inference_mode():
        for got, want in zip(torch.export.load(str(path)).module()(*given), build("minilm")(*given), strict=True):
            assert torch.equal(got, want)
