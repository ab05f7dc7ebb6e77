"""Programs and their models put together: graph, identity, reasons, and every refusal with its stage and tensor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.graph import Loop
from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.program_model import ProgramModel
from lazybatch.executors.program_rows import ProgramResult
from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage
from tests.executors import bodies

STEP = Repeat(
    carry={"h": Carry("h_next", "encoder.h"), "keys": Append("key", 0, 7)},
    iteration="position",
    done="finished",
    trips_max=6,
    collect=("token",),
)
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


@pytest.mark.parametrize(
    ("loop", "inputs", "says"),
    [
        (STEP, {"memory": None}, "stage 'decoder': input 'memory' of its model is given nothing"),
        (STEP, {"extra": Feed(length_of="source")}, "stage 'decoder': its model has no input 'extra'"),
        (STEP, {"memory": "encoder.nothing"}, "stage 'decoder': .*stage 'encoder' makes no such tensor"),
        (
            STEP,
            {"memory": "encoder.h"},
            r"stage 'decoder': input 'memory' has the shape \[any, 6\] per row, but .* \[6\]",
        ),
        (changed(carry={"h": Carry("token", "encoder.h")}), {}, "stage 'decoder': state 'h' is float32, but 'token'"),
        (changed(carry={"h": Carry("missing")}), {}, "stage 'decoder': its model has no output 'missing'"),
        (changed(carry={"h": Carry("h_next", "encoder.memory")}), {}, "the start of state 'h' has the shape"),
        (changed(carry={"keys": Append("key", 0, 8)}), {}, "state 'keys' has the shape .* with room for 8"),
        (changed(carry={"keys": Append("key", 1, 7)}), {}, "state 'keys' has the shape"),
        (
            changed(carry={"keys": Append("token", 0, 7)}),
            {},
            "state 'keys' is float32, but 'token', its slice, is int64",
        ),
        (changed(done="h_next"), {}, "stage 'decoder': done 'h_next' is float32"),
        (changed(done="nothing"), {}, "stage 'decoder': its model has no output 'nothing'"),
        (changed(collect=("token", "nothing")), {}, "stage 'decoder': its model has no output 'nothing'"),
        (
            changed(iteration="memory"),
            {"memory": None, "position": Feed(length_of="source")},
            "stage 'decoder': input 'memory' takes",
        ),
        (
            changed(each={"memory": "source"}, done=None),
            {"memory": None},
            r"expected \[any, any, 6\] \(read by stage 'decoder' as 'memory'\)",
        ),
    ],
)
def test_what_does_not_fit(models: dict[str, Any], loop: Repeat, inputs: dict[str, Any], says: str) -> None:
    """A carry whose shape or type differs, a flag that is none, a name of nothing: refused, naming stage and tensor."""
    with pytest.raises((ModelError, InvalidInput), match=says):
        translate(models, loop, **inputs).admit({"source": np.zeros((2, 4), np.float32)})


def test_numbers_that_cannot_start_a_state(models: dict[str, Any]) -> None:
    """A state of whole numbers does not start as a half."""
    loop = Repeat(carry={"n": Carry("n_next", 0.5)}, done="finished", trips_max=5)
    with pytest.raises(ModelError, match=r"stage 'step': state 'n' is int64 and cannot start as 0\.5"):
        single(models, "counter", loop, "n", target="to")


def test_models_that_are_no_stages(models: dict[str, Any]) -> None:
    """A stage is something that can be cut into nodes; a callable is not."""
    stage = Stage(
        "step", models["counter"], {"target": "to"}, Repeat(carry={"n": "n_next"}, done="finished", trips_max=5)
    )
    program = Program("single", (stage,), {"n": "step.n"})
    with pytest.raises(ModelError, match="stage 'step': its model cannot be cut into nodes"):
        ProgramModel(program, {"step": lb.load(lambda rows: rows)})  # type: ignore[dict-item]


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
