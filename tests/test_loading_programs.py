"""One way in for programs: files, folders, descriptions; stages from ONNX, torch and partitions; options per stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lazybatch as lb
from lazybatch.errors import InvalidInput
from lazybatch.executors.ort.model import OrtModel
from lazybatch.executors.torch.model import TorchModel
from lazybatch.loading import takes_examples
from lazybatch.program.file import is_program, load_program
from tests.small_program import answer, rows, write_program


class Halving(torch.nn.Module):
    """Adds a part of each frame to a state."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> dict[str, torch.Tensor]:
        """One iteration."""
        new = torch.tanh(0.5 * h + x)
        return {"h_next": new, "y": new.sum(1)}


EXAMPLES = {"x": torch.zeros(2, 3), "h": torch.zeros(2, 3)}
REPEAT = lb.Repeat(carry={"h": "h_next"}, each={"x": "frames"}, collect=("y",))


def halved(frames: np.ndarray) -> np.ndarray:
    """What it makes of the frames of a row."""
    h, made = np.zeros(3, np.float32), []
    for x in frames:
        h = np.tanh(0.5 * h + x)
        made.append(h.sum())
    return np.array(made)


def test_programs_say_what_they_are(tmp_path: Path) -> None:
    """Name, nodes, stages, and whether rows may join."""
    assert repr(lb.load(write_program(tmp_path))) == "ProgramModel('small', 2 nodes in 2 stages, joinable)"


def served(program: Any) -> None:
    """Rows of 1 to 9 frames get what they should, joined."""
    frames = [np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32) for n in range(1, 10)]
    with lb.LazyBatcher(program, policy="continuous", max_batch_size=4) as batcher:
        for given, got in zip(frames, batcher.predict_batch([{"frames": one} for one in frames]), strict=True):
            np.testing.assert_allclose(got["y"], halved(given), rtol=1e-5, atol=1e-6)
            assert got.trips == (len(given),)


def test_what_is_a_program(tmp_path: Path) -> None:
    """A description, a json file, a folder that holds program.json; other paths are files that may be given rows."""
    path = write_program(tmp_path)
    assert is_program(load_program(path))
    assert is_program(path)
    assert is_program(str(tmp_path))
    assert not is_program(tmp_path / "step.onnx")
    assert not is_program(Halving())
    assert takes_examples(tmp_path / "step.onnx")
    assert not takes_examples(path)


def test_files_folders_and_descriptions(tmp_path: Path) -> None:
    """The same program, with the same fingerprint, whichever way it is given."""
    path = write_program(tmp_path)
    made = [lb.load(source) for source in (path, str(tmp_path), load_program(path))]
    assert len({model.fingerprint for model in made}) == 1
    assert made[0].graph == made[1].graph == made[2].graph
    assert [loop.name for loop in made[0].graph.loops] == ["decoder"]


def test_a_module_as_a_body() -> None:
    """A torch module with examples; joined rows get what they get alone, and it can be profiled."""
    model: Any = lb.load(
        lb.Program("half", (lb.Stage("loop", Halving().eval(), {}, REPEAT, EXAMPLES),), {"y": "loop.y"})
    )
    assert isinstance(model.models["loop"], TorchModel)
    assert model.joinable
    served(model)
    table = lb.profile(model, (1, 2), budget_s=0.1)
    assert table.nodes == ("loop",)
    found = lb.check(model)
    assert found.equal  # type: ignore[union-attr]


def test_an_exported_program_as_a_body(tmp_path: Path) -> None:
    """A .pt2 file beside program.json; providers are ONNX Runtime's, and are not its business."""
    axes = {name: {0: torch.export.Dim("n")} for name in EXAMPLES}
    exported = torch.export.export(Halving().eval(), (), EXAMPLES, dynamic_shapes=axes)
    torch.export.save(exported, tmp_path / "half.pt2")
    stage = lb.Stage("loop", tmp_path / "half.pt2", {}, REPEAT)
    path = lb.save_program(lb.Program("half", (stage,), {"y": "loop.y"}), tmp_path)
    served(lb.load(path, providers="cpu"))


def test_models_that_are_loaded_already(tmp_path: Path) -> None:
    """They are taken as they are; a torch body follows an ONNX encoder."""
    write_program(tmp_path)
    encoder = lb.load(tmp_path / "encoder.onnx")
    assert isinstance(encoder, OrtModel)

    class Body(torch.nn.Module):
        def forward(self, memory: torch.Tensor, h: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"h_next": torch.tanh(h + memory)}

    examples = {"memory": torch.zeros(2, 4), "h": torch.zeros(2, 4)}
    stages = (
        lb.Stage("encoder", encoder, {"tokens": lb.Feed("source", pad=(8,)), "length": lb.Feed(length_of="source")}),
        lb.Stage("loop", Body().eval(), {"memory": "encoder.memory"}, lb.Repeat({"h": "h_next"}, trips="n"), examples),
    )
    model: Any = lb.load(lb.Program("mixed", stages, {"h": "loop.h", "memory": "encoder.memory"}), device="cpu")
    assert model.models["encoder"] is encoder
    with lb.LazyBatcher(model, policy="continuous") as batcher:
        for got in batcher.predict_batch([{"source": [1, 2, n], "n": n} for n in range(1, 8)]):
            h = np.zeros(4, np.float32)
            for _ in range(got.trips[0]):
                h = np.tanh(h + got["memory"])
            np.testing.assert_allclose(got["h"], h, rtol=1e-5, atol=1e-6)


def test_what_a_stage_is_probed_with(tmp_path: Path) -> None:
    """Examples beside the file reach the stage's model, and are what it is measured with later."""
    path = write_program(tmp_path)
    given = load_program(path)
    examples = {"tokens": np.full((2, 8), 5), "length": np.array([3, 8])}
    encoder = replace(given.stages[0], examples=examples, batch_axes={"tokens": 0, "length": 0}, tolerance=1e-4)
    saved = lb.save_program(replace(given, stages=(encoder, given.stages[1])), tmp_path / "probed.json")
    model: Any = lb.load(saved)
    provenance = model.models["encoder"].partition.provenance
    assert provenance["tolerance"] == 1e-4
    assert provenance["probed_ranges"] == [{"tokens": [5, 5], "length": [3, 8]}]
    with lb.LazyBatcher(model, policy="continuous") as batcher:
        for row in rows(5):
            assert batcher.predict(row)["tokens"].tolist() == answer(row)["tokens"].tolist()


def test_a_module_without_examples() -> None:
    """torch.export needs them; the stage is named."""
    with pytest.raises(InvalidInput, match=r"program 'half': stage 'loop': .*example_inputs.*as Stage\(examples="):
        lb.load(lb.Program("half", (lb.Stage("loop", Halving().eval(), {}, REPEAT),), {"y": "loop.y"}))
