"""A torch module as a model: what it takes, what it gives, and its place in the public API."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lazybatch as lb
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.torch.model import TorchModel
from lazybatch.loading import _torch_key
from lazybatch.partition.cache import CACHE_VARIABLE
from lazybatch.partition.torch import partition_torch, read_source
from lazybatch.partition.torch.build import _fingerprint
from tests.torch_modules import CASES, FINEST_S, Case, Wrapped, fine, load_fine, sound

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@CASES
def test_run_and_whole_call_agree(case: Case) -> None:
    """A whole batch node by node is the module's own answer, bit for bit where it runs the same kernels."""
    model, batch = fine(case.name), case.batch(5, seed=1)
    feeds = {
        name: value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    got, want = model.run(feeds), model.whole_call()(feeds)
    assert list(got) == list(want) == list(model.partition.outputs)
    for name, array in want.items():
        assert np.array_equal(got[name], array) or (not case.exact and np.allclose(got[name], array, atol=1e-5))


def test_it_says_what_it_is() -> None:
    """Name, number of nodes, whether rows may join, and what it runs on where that is not the CPU."""
    model = fine("tied")
    assert model.accelerator is None
    assert repr(model) == f"TorchModel('Tied', {len(model.graph)} nodes, joinable)"


def test_tensors_and_arrays_are_taken() -> None:
    """Rows may be given as tensors, with gradients too, or as arrays; what is wrong is told by name."""
    model = fine("tied")
    array = np.linspace(-1, 1, 8, dtype=np.float32)
    for given in (array, torch.from_numpy(array), torch.from_numpy(array).requires_grad_()):
        assert np.array_equal(model.admit({"x": given}).values["x"], array)
    kept = model.admit({"x": array})
    array[:] = 0
    assert kept.values["x"][0] == -1
    for wrong, said in (
        ({"x": np.zeros((1, 8), np.float32)}, "batch axis of 1 was left in"),
        ({"x": np.zeros(8)}, "dtype float64, expected float32"),
        ({"y": array}, "'x' is missing"),
        (array, "is a dict from input name to array"),
    ):
        with pytest.raises(InvalidInput, match=said):
            model.admit(wrong)


def test_arrays_that_torch_cannot_share() -> None:
    """Read-only arrays and views that run backwards are taken as they are."""
    model, array = fine("tied"), np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    wanted = model.run({"x": array[::-1].copy()})["output"]
    array.setflags(write=False)
    assert np.array_equal(model.run({"x": array[::-1]})["output"], wanted)


def test_half_precision_crosses_as_float32() -> None:
    """NumPy has no bfloat16: such inputs and outputs are float32 for callers."""
    model = fine("half")
    assert (model.partition.boundaries["x"].dtype, model.partition.boundaries["output"].dtype) == ("float32", "float32")


def test_sample_rows_are_accepted() -> None:
    """Made-up rows fit the examples' shapes and the range of their integers; shared inputs are the same for all."""
    for case in (sound("picks"), sound("several"), sound("tokens")):
        model = fine(case.name)
        rows = [model.admit(model.sample_row(seed)) for seed in range(4)]
        assert len({row.signature for row in rows}) == 1


def test_cuts_are_kept_in_the_cache(cache: Path) -> None:
    """The same module has the same cuts and fingerprint; other weights are another model."""
    case = sound("residual")
    first, second = (lb.load(case.module(), example_inputs=case.batch(2), preempt_within=FINEST_S) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert len(list(cache.iterdir())) == 1
    module = case.module()
    with torch.no_grad():
        module.head.bias[0] += 1.0
    third = lb.load(module, example_inputs=case.batch(2), preempt_within=FINEST_S)
    assert third.fingerprint != first.fingerprint
    assert len(list(cache.iterdir())) == 2


def test_cuts_of_another_device_are_not_taken() -> None:
    """Costs and proof hold for the kernels of one device: what is kept, and a table's model, are told apart by it."""
    case = sound("tied")
    source = read_source(case.module(), case.batch(2))
    elsewhere = replace(source, leaves=tuple(leaf.to("meta") for leaf in source.leaves))
    assert (source.device, elsewhere.device) == ("cpu", "meta")
    cutting = dict.fromkeys(("preempt_within", "batch_axes", "example_inputs", "tolerance"))
    here, again, there = (_torch_key(one, cutting) for one in (source, source, elsewhere))
    assert here == again != there
    assert _fingerprint("graph", "cpu", [1]) != _fingerprint("graph", "cuda", [1])


def test_refused_modules_are_kept_too() -> None:
    """What is served alone comes from the cache as well, with its reason."""
    x = torch.randn(4, 6)
    made = [lb.load(Wrapped(lambda x: x - x.mean(0)), example_inputs=x) for _ in range(2)]
    assert made[0].reason == made[1].reason is not None
    assert made[0].fingerprint == made[1].fingerprint


def test_partition_directory_and_program_file(tmp_path: Path) -> None:
    """A saved program and a partition with its program are loaded like model files."""
    case = sound("tied")
    batch = case.batch(3)
    program = torch.export.export(case.module(), (), batch, dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    torch.export.save(program, str(tmp_path / "net.pt2"))
    model = lb.load(tmp_path / "net.pt2", preempt_within=FINEST_S)
    assert (model.name, model.joinable) == ("net", True)
    partition_torch(read_source(program, None), tmp_path / "parts", preempt_within_s=FINEST_S, save_program=True)
    again = lb.load(tmp_path / "parts", require_joinable=True)
    assert isinstance(model, TorchModel)
    assert isinstance(again, TorchModel)
    feeds = {"x": batch["x"].numpy()}
    assert np.array_equal(model.run(feeds)["output"], again.run(feeds)["output"])
    assert np.array_equal(again.whole_call()(feeds)["output"], again.run(feeds)["output"])
    for options in ({"preempt_within": 1.0}, {"device": "cpu"}):
        with pytest.raises(InvalidInput, match="cannot be changed any more"):
            lb.load(tmp_path / "parts", **options)  # type: ignore[arg-type]


def test_options_that_are_not_torchs() -> None:
    """Options of another framework are refused by name."""
    with pytest.raises(InvalidInput, match="providers"):
        lb.load(nn.ReLU(), example_inputs=torch.ones(2, 2), providers="cpu")
    with pytest.raises(InvalidInput, match="threads"):
        load_fine(Wrapped(torch.sin), torch.ones(2, 2), threads=0)
    with pytest.raises(InvalidInput, match="needs example_inputs"):
        lb.load(nn.ReLU())


def test_profile_and_check() -> None:
    """`profile` and `check` take a torch model like any other."""
    model = fine("residual")
    table = lb.profile(model, (1, 2, 4), budget_s=0.2)
    assert table.nodes == tuple(node.name for node in model.graph.nodes)
    assert table.provenance["fingerprint"] == model.fingerprint
    report = lb.check(model)
    assert (report.joinable, report.identical, report.nodes) == (True, True, len(model.graph))
    assert report.chain_over_whole is not None
    with pytest.raises(InvalidInput, match="plain callable"):
        lb.check(lb.CallableModel(lambda rows: rows))


def test_threads_are_the_process_wide_setting() -> None:
    """Asked for a number of threads, torch is told; the model says what there is."""
    before = torch.get_num_threads()
    try:
        assert load_fine(Wrapped(torch.sin), torch.ones(2, 2), threads=1).threads == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_partition_of_another_framework() -> None:
    """A partition without cuts of a torch graph is refused."""
    model: Any = fine("tied")
    from dataclasses import replace

    foreign = replace(model.partition, provenance={})
    with pytest.raises(ModelError, match="not one of a torch module"):
        TorchModel(foreign, model._flat)


def test_torch_needs_nothing_of_onnx(tmp_path: Path) -> None:
    """A torch module is loaded and run where neither onnx nor ONNX Runtime is installed."""
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('onnx', 'onnxruntime', 'onnxscript')))\n"
        "import torch, lazybatch as lb\n"
        "model = lb.load(torch.nn.Linear(3, 2).eval(), example_inputs=torch.ones(2, 3), cache=False)\n"
        "print(model.joinable, len(model.run({'input': torch.ones(4, 3).numpy()})['output']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.split() == ["True", "4"], done.stderr
