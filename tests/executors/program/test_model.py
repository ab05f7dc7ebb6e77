"""Programs ready to be served: graph, identity, sample rows, reasons, and what only a run tells."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.graph import Loop
from lazybatch.errors import ExecutionError
from lazybatch.executors.ort.session import CPU, CUDA
from lazybatch.executors.program.model import ProgramModel
from lazybatch.executors.program.rows import ProgramResult
from lazybatch.program import Carry, Feed, Program, Repeat, Stage
from tests.executors.program import bodies
from tests.executors.program.programs import STEP

OUTPUTS = {"tokens": "decoder.token"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An encoder, a decoder step, and others."""
    folder = tmp_path_factory.mktemp("bodies")
    made = {
        "encoder": bodies.encoder(folder / "encoder.onnx"),
        "decoder": bodies.attention(folder / "attention.onnx"),
        "clock": bodies.clocked(folder / "clocked.onnx"),
        "lstm": bodies.lstm(folder / "lstm.onnx"),
        "counter": bodies.counter(folder / "counter.onnx"),
    }
    return {name: lb.load(path, cache=False) for name, path in made.items()}


def translate(models: dict[str, Any], loop: Repeat = STEP, **inputs: Any) -> ProgramModel:
    """Encoder and decoder. inputs: changes to what the decoder is given."""
    source = {"source": Feed("source", (3, 6)), "length": Feed(length_of="source")}
    given = {name: feed for name, feed in ({"memory": "encoder.memory"} | inputs).items() if feed is not None}
    stages = (
        Stage("encoder", models["encoder"], source),
        Stage("decoder", models["decoder"], given, loop),
    )
    return ProgramModel(Program("translate", stages, OUTPUTS), models)


def single(models: dict[str, Any], name: str, loop: Repeat, output: str, **inputs: Any) -> ProgramModel:
    """One loop."""
    stage = Stage("step", models[name], inputs, loop)
    return ProgramModel(Program("single", (stage,), {"out": f"step.{output}"}), {"step": models[name]})


def changed(**parts: Any) -> Repeat:
    """The decoder's loop, changed."""
    carry = {**STEP.carry, **parts.pop("carry", {})}
    return dataclasses.replace(STEP, carry=carry, **parts)


def test_the_graph(models: dict[str, Any]) -> None:
    """Nodes are named by their stages, loops are where they are, and may mix iterations where the body can."""
    model = translate(models)
    assert model.name == "translate"
    assert [node.name for node in model.graph.nodes] == ["encoder", "decoder"]
    assert model.graph.loops == (Loop("decoder", 1, 2, same_iteration=False, trips_max=6),)
    assert model.joinable
    assert model.reason is None
    assert model.models["encoder"] is models["encoder"]


def test_one_number_of_iteration_for_all_rows(models: dict[str, Any]) -> None:
    """A body that takes one number for all rows joins them at equal iterations only."""
    loop = Repeat(carry={"h": Carry("h_next", 1)}, iteration="time", trips="steps", trips_max=4)
    model = single(models, "clock", loop, "h")
    assert model.joinable
    assert model.graph.loops[0].same_iteration


def test_identity(models: dict[str, Any]) -> None:
    """Another program over the same models is another model; the same one again is the same."""
    assert translate(models).fingerprint == translate(models).fingerprint
    assert translate(models).fingerprint != translate(models, changed(trips_max=5)).fingerprint


def test_it_says_what_its_stages_run_on(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are compared by it: nothing where all run on the CPU, else each accelerator once."""
    model = translate(models)
    assert model.accelerator is None
    for plan in model.plans:
        monkeypatch.setattr(plan.model, "_providers", [CUDA, CPU])
    assert model.accelerator == "CUDAExecutionProvider"


def test_sample_rows_are_taken(models: dict[str, Any]) -> None:
    """Made-up rows pass admission, may share a sub-batch, and differ."""
    for model in (
        translate(models),
        single(models, "lstm", Repeat(carry={"s": "s_next"}, each={"x": "audio"}), "s"),
        single(models, "clock", Repeat(carry={"h": "h_next"}, iteration="time", trips="n", trips_max=4), "h"),
    ):
        first, second = model.sample_row(0), model.sample_row(1)
        assert model.admit(first).signature == model.admit(second).signature
        assert any(not np.array_equal(first[name], second[name]) for name in first) or model.program.inputs == ("n",)


def test_results_are_dicts_that_say_more() -> None:
    """Outputs by name, iterations per loop, and whether a maximum ended it."""
    result = ProgramResult({"y": 1}, (3, 2), True)
    assert result == {"y": 1}
    assert (result.trips, result.truncated) == ((3, 2), True)


def test_a_state_that_turns_out_to_change_its_shape(tmp_path: Path) -> None:
    """Where shapes are open, the first run tells: the error names stage, state and both shapes."""
    node = bodies.node
    path = bodies.save(
        tmp_path / "longer.onnx",
        [node("Concat", ["h", "h"], ["h_next"], axis=1)],
        {"h": ("float32", ["N", "K"])},
        {"h_next": ("float32", ["N", "K2"])},
    )
    body: Any = lb.load(path, cache=False)
    assert body.joinable
    stage = Stage("step", body, {}, Repeat(carry={"h": Carry("h_next", "h")}, trips="n", trips_max=4))
    model = ProgramModel(Program("longer", (stage,), {"h": "step.h"}), {"step": body})
    executor = model.executor(max_batch_size=4)
    executor.open(0, {0: model.admit({"h": np.ones(3, np.float32), "n": np.array(2)})}, 1)
    with pytest.raises(ExecutionError, match=r"stage 'step': state 'h' is float32 \[1, 3\] .*'h_next'.*\[1, 6\]"):
        executor.run(0, 0)


def test_states_that_have_no_batch_axis_are_served_alone(tmp_path: Path) -> None:
    """What all rows of a batch would share cannot be each row's own: the reason names the stage and the state."""
    node = bodies.node
    path = bodies.save(
        tmp_path / "scalar.onnx",
        [node("Add", ["x", "gain"], ["y"]), node("Mul", ["gain", "two"], ["gain_next"])],
        {"x": ("float32", ["N", 2]), "gain": ("float32", [])},
        {"y": ("float32", ["N", 2]), "gain_next": ("float32", [])},
        {"two": np.array(2, np.float32)},
    )
    body: Any = lb.load(path, cache=False)
    loop = Repeat(carry={"gain": Carry("gain_next", 1)}, each={"x": "xs"}, collect=("y",))
    model = ProgramModel(Program("scalar", (Stage("step", body, {}, loop),), {"y": "step.y"}), {"step": body})
    assert not model.joinable
    assert model.reason is not None
    assert "stage 'step'" in model.reason
    executor = model.executor(max_batch_size=4)
    executor.open(0, {0: model.admit({"xs": np.zeros((4, 2), np.float32)})}, 1)
    for _ in range(4):
        executor.run(0, 0)
    assert executor.close(0)[0]["y"][:, 0].tolist() == [1, 2, 4, 8]
