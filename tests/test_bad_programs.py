"""Programs that are wrong, and rows that are: one clear error naming stage and tensor, and nothing else lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lazybatch as lb
from lazybatch.errors import ExecutionError, InvalidInput, LazyBatchError, ModelError
from tests.small_program import ROOM, answer, rows, write_mixing, write_program

Change = Callable[[dict[str, Any]], None]


def changed(folder: Path, change: Change) -> Path:
    """The small program with its document changed."""
    path = write_program(folder)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def rewired(folder: Path, model: str, change: Callable[[onnx.ModelProto], None]) -> Path:
    """The small program with one of its models changed."""
    path = write_program(folder)
    proto = onnx.load(folder / model)
    change(proto)
    onnx.save(proto, folder / model)
    return path


def at(document: dict[str, Any], *path: Any) -> Any:
    """What lies there."""
    for key in path:
        document = document[key]
    return document


def setting(*path: Any, to: Any) -> Change:
    """A change of one place."""

    def change(document: dict[str, Any]) -> None:
        at(document, *path[:-1])[path[-1]] = copy.deepcopy(to)

    return change


LOOP = ("stages", 1, "loop")
MISMATCHES: dict[str, tuple[Change, str]] = {
    "a carry of another shape": (
        setting(*LOOP, "carry", "h", to={"from": "token_next"}),
        r"stage 'decoder': state 'h'.*(float32|int64|shape)",
    ),
    "a carry from an output that is not there": (
        setting(*LOOP, "carry", "h", to={"from": "hidden"}),
        "stage 'decoder': .*'hidden'",
    ),
    "a start of another shape": (
        setting(*LOOP, "carry", "token", to={"from": "token_next", "start": "encoder.memory"}),
        r"stage 'decoder': .*'token'.*'encoder\.memory'",
    ),
    "room of another size": (
        setting(*LOOP, "carry", "keys", to={"append": "key", "axis": 0, "room": ROOM + 1}),
        "stage 'decoder': .*'keys'",
    ),
    "a slice of another shape": (
        setting(*LOOP, "carry", "keys", to={"append": "token_next", "axis": 0, "room": ROOM}),
        "stage 'decoder': .*'keys'",
    ),
    "a done flag of numbers": (setting(*LOOP, "done", to="h_next"), "stage 'decoder': done 'h_next'"),
    "a done flag that is not there": (setting(*LOOP, "done", to="over"), "stage 'decoder': .*'over'"),
    "a collected output that is not there": (
        lambda document: (
            setting(*LOOP, "collect", to=["word"])(document),
            setting("outputs", to={"y": "decoder.word"})(document),
        )[0],
        "stage 'decoder': .*'word'",
    ),
    "an input that the model does not have": (
        setting("stages", 0, "inputs", "mask", to="mask"),
        "stage 'encoder': its model has no input 'mask'; it has 'tokens', 'length'",
    ),
    "an input that is given nothing": (
        setting("stages", 1, "inputs", to={"target": "target"}),
        "stage 'decoder': input 'memory' of its model is given nothing",
    ),
    "an output that the encoder does not have": (
        setting("stages", 1, "inputs", "memory", to="encoder.context"),
        r"stage 'decoder': input 'memory' is given 'encoder\.context'|stage 'encoder': .*'context'",
    ),
    "an output of the program that nobody makes": (
        setting("outputs", "memory", to="encoder.context"),
        r"'encoder\.context'|stage 'encoder': .*'context'",
    ),
    "an input of another type": (
        setting("stages", 1, "inputs", "target", to="encoder.memory"),
        r"stage 'decoder': input 'target'.*'encoder\.memory'",
    ),
    "padding to what the model does not take": (
        setting("stages", 0, "inputs", "tokens", to={"of": "source", "pad": [4, 8]}),
        "stage 'encoder': input 'tokens' takes 8 entries, but 'source' is padded to 4",
    ),
    "a program as a stage": (
        setting("stages", 0, "model", to="program.json"),
        "stage 'encoder': a stage needs a model that can be cut into nodes, got a program: '.*program.json'",
    ),
    "a position of another kind": (
        lambda document: (
            at(document, *LOOP).update(iteration="memory"),
            at(document, "stages", 1, "inputs").update(position="target"),
            at(document, "stages", 1, "inputs").pop("memory"),
        )[0],
        "stage 'decoder': .*'memory'",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_program_that_does_not_fit_its_models(tmp_path: Path, case: str) -> None:
    """Refused when it is loaded."""
    change, words = MISMATCHES[case]
    with pytest.raises((ModelError, InvalidInput), match=words) as caught:
        lb.load(changed(tmp_path, change))
    assert "\n" not in str(caught.value)


def test_a_model_that_is_damaged(tmp_path: Path) -> None:
    """The program, the stage and the file."""
    path = write_program(tmp_path)
    (tmp_path / "step.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=r"program 'small': stage 'decoder': .*step\.onnx"):
        lb.load(path)


def test_examples_that_do_not_fit(tmp_path: Path) -> None:
    """An npz that lacks an input of the stage's model."""
    np.savez(tmp_path / "rows.npz", tokens=np.zeros((2, 8), np.int64))
    with pytest.raises(InvalidInput, match=r"program 'small': stage 'encoder': .*'length'"):
        lb.load(changed(tmp_path, setting("stages", 0, "examples", to="rows.npz")))


def test_options_that_belong_to_stages(tmp_path: Path) -> None:
    """Examples, axes and tolerances are a stage's; a callable is no stage."""
    path = write_program(tmp_path)
    for name, value in {"example_inputs": {}, "batch_axes": {"x": 0}, "tolerance": 0.1}.items():
        with pytest.raises(InvalidInput, match=f"program 'small': {name} are given per stage"):
            lb.load(path, **{name: value})
    stage = lb.Stage("only", lambda batch: batch, loop=lb.Repeat(trips="n", collect=("y",)))
    with pytest.raises(InvalidInput, match="stage 'only': a stage needs a model that can be cut"):
        lb.load(lb.Program("p", (stage,), {"y": "only.y"}))


def test_a_state_that_cannot_be_joined(tmp_path: Path) -> None:
    """Served one row at a time with a reason that names the stage; refused where joining was asked for."""
    path = write_mixing(tmp_path)
    model = lb.load(path)
    assert not model.joinable
    assert model.reason is not None
    assert model.reason.startswith("stage 'decoder': ")
    with lb.LazyBatcher(model, policy="graph") as batcher:
        first, second = batcher.predict_batch(rows(2))
    assert len(first["tokens"]) == int(rows(2)[0]["target"])
    assert len(second["tokens"]) == int(rows(2)[1]["target"])
    with pytest.raises(ModelError, match=r"stage 'decoder': .*cannot share a batch"):
        lb.load(path, require_joinable=True)


class TestALoopThatNeverEnds:
    """The maximum is reached: the row is marked, or fails, and its mates get their answers."""

    def test_truncated(self, tmp_path: Path) -> None:
        """As it is after the maximum, and marked."""
        endless = {**rows(1)[0], "target": np.int64(1000)}
        with lb.LazyBatcher(lb.load(write_program(tmp_path)), policy="continuous") as batcher:
            got, mate = batcher.predict_batch([endless, rows(2)[1]])
        assert (got.truncated, got.trips) == (True, (ROOM,))
        assert got["tokens"].tolist() == answer({**endless, "target": ROOM})["tokens"].tolist()
        assert (mate.truncated, mate["tokens"].tolist()) == (False, answer(rows(2)[1])["tokens"].tolist())

    def test_an_error(self, tmp_path: Path) -> None:
        """With at_max "error" that row alone fails, with stage and maximum in the message."""
        endless = {**rows(1)[0], "target": np.int64(1000)}
        with lb.LazyBatcher(lb.load(write_program(tmp_path, at_max="error")), policy="continuous") as batcher:
            got, mate = batcher.predict_batch([endless, rows(2)[1]], return_exceptions=True)
        assert isinstance(got, ExecutionError)
        assert "stage 'decoder'" in str(got)
        assert str(ROOM) in str(got)
        assert mate["tokens"].tolist() == answer(rows(2)[1])["tokens"].tolist()


def test_a_row_whose_step_raises(tmp_path: Path) -> None:
    """A token outside the table in the encoder, and in the fourth step: that row alone fails, naming the stage."""

    def stumble(proto: onnx.ModelProto) -> None:
        """Where a row asks for 7 iterations, the index of its fourth one is out of range."""
        for node in proto.graph.node:
            if node.output[0] == "word":
                node.input[1] = "picked"
        made = [
            onnx.helper.make_node("Equal", ["target", "seven"], ["asked"]),
            onnx.helper.make_node("Equal", ["position", "three"], ["there"]),
            onnx.helper.make_node("And", ["asked", "there"], ["falls"]),
            onnx.helper.make_node("Where", ["falls", "beyond", "token"], ["picked"]),
        ]
        for node in reversed(made):
            proto.graph.node.insert(0, node)
        for name, value in {"seven": 7, "three": 3, "beyond": 999}.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))

    model = lb.load(rewired(tmp_path, "step.onnx", stumble))
    given = [{"source": np.array([1, 2, 3]), "target": np.int64(n)} for n in (2, 7, 5, 8, 7, 1)]
    given.append({"source": np.array([1, 99]), "target": np.int64(3)})
    with lb.LazyBatcher(model, policy="continuous") as batcher:
        got = batcher.predict_batch(given, return_exceptions=True)
        stats = batcher.stats()
    for row, result in zip(given, got, strict=True):
        if row["source"].max() > 16:
            assert isinstance(result, ExecutionError)
            assert "stage 'encoder'" in str(result)
        elif row["target"] == 7:
            assert isinstance(result, ExecutionError)
            assert "stage 'decoder'" in str(result)
        else:
            assert result["tokens"].tolist() == answer(row)["tokens"].tolist()
    assert (stats.completed, stats.failed) == (4, 3)


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no dict": ([1, 2], "a row of program 'small' is a dict"),
    "an input missing": ({"source": [1]}, "input 'target' is missing"),
    "an input too many": ({"source": [1], "target": 1, "mask": 1}, "unknown input 'mask'"),
    "a wrong type": ({"source": np.zeros(3, np.float32), "target": 1}, "'source' .*float32.*stage 'encoder'"),
    "too long": ({"source": np.zeros(9, np.int64), "target": 1}, "'source' has 9 entries, more than the 8"),
    "a wrong shape": ({"source": np.zeros((2, 2), np.int64), "target": 1}, "'source' has shape .*stage 'encoder'"),
    "an array for a number": ({"source": [1], "target": np.array([1, 2])}, "'target' has shape .*stage 'decoder'"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_wrong(tmp_path: Path, case: str) -> None:
    """Refused before they are admitted, naming the input and the stage that reads it; the batcher serves on."""
    row, words = BAD_ROWS[case]
    with lb.LazyBatcher(lb.load(write_program(tmp_path)), policy="continuous") as batcher:
        with pytest.raises(LazyBatchError, match=words):
            batcher.submit(row)
        assert batcher.predict(rows(1)[0])["tokens"].tolist() == answer(rows(1)[0])["tokens"].tolist()
