"""``program.json``: what is read, what is written, and every mistake in one line that names file, stage and tensor."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazybatch.errors import InvalidInput, LazyBatchError, ModelError
from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage
from lazybatch.program.examples import read_arrays
from lazybatch.program.file import load_program
from lazybatch.program.saving import save_program
from tests.program.kit import decoder, encoder, program

DOCUMENT: dict[str, Any] = {
    "program": 1,
    "name": "speech",
    "stages": [
        {
            "name": "encoder",
            "model": "encoder.onnx",
            "inputs": {"tokens": {"of": "source", "pad": [16, 32]}, "length": {"length_of": "source"}},
        },
        {
            "name": "decoder",
            "model": "step.onnx",
            "inputs": {"memory": "encoder.memory", "length": {"length_of": "source"}},
            "loop": {
                "carry": {
                    "h": {"from": "h_next", "start": "encoder.h"},
                    "token": {"from": "token_next", "start": 1},
                    "keys": {"append": "key", "axis": 1, "room": 64},
                },
                "iteration": "position",
                "done": "finished",
                "trips_max": 64,
                "collect": ["token_next"],
            },
        },
    ],
    "outputs": {"tokens": "decoder.token_next"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the models a program names; they are looked into by nobody here."""
    for name in ("encoder.onnx", "step.onnx"):
        (tmp_path / name).write_bytes(b"model")
    return tmp_path


def write(folder: Path, document: object) -> Path:
    """The document as program.json."""
    path = folder / "program.json"
    path.write_text(json.dumps(document))
    return path


class TestReading:
    """What a sound file means."""

    def test_a_program(self, folder: Path) -> None:
        """All that it says is in the program; models are found beside the file."""
        read = load_program(write(folder, DOCUMENT))
        assert (read.name, read.outputs) == ("speech", program().outputs)
        assert [stage.model for stage in read.stages] == [str(folder / "encoder.onnx"), str(folder / "step.onnx")]
        for found, want in zip(read.stages, program().stages, strict=True):
            assert (found.name, found.feeds, found.loop) == (want.name, want.feeds, want.loop)

    def test_a_folder(self, folder: Path) -> None:
        """A folder that holds program.json stands for it; without a name the folder's is taken."""
        write(folder, {key: value for key, value in DOCUMENT.items() if key != "name"})
        assert load_program(folder).name == folder.name

    def test_shorthands(self, folder: Path) -> None:
        """One size to pad to, a state by its output's name, trips by an input's; nulls are what is not said."""
        document = copy.deepcopy(DOCUMENT)
        document["stages"][0]["inputs"]["tokens"]["pad"] = 16
        document["stages"][0] |= {"examples": None, "tolerance": None, "batch_axes": None, "loop": None}
        document["stages"][1]["loop"] = {"carry": {"h": "h_next"}, "trips": "count", "done": None, "trips_max": None}
        document["outputs"] = {"h": "decoder.h"}
        read = load_program(write(folder, document))
        assert read.stages[0].feeds["tokens"].pad == (16,)
        assert read.stages[1].loop == Repeat(carry={"h": Carry("h_next")}, trips=Feed("count"))

    def test_what_a_stage_is_probed_with(self, folder: Path) -> None:
        """Examples beside the file, axes and tolerance."""
        np.savez(folder / "rows.npz", tokens=np.zeros((2, 16), np.int64))
        document = copy.deepcopy(DOCUMENT)
        document["stages"][0] |= {
            "examples": "rows.npz",
            "batch_axes": {"tokens": 0, "length": None},
            "tolerance": 1e-3,
        }
        stage = load_program(write(folder, document)).stages[0]
        assert (stage.batch_axes, stage.tolerance) == ({"tokens": 0, "length": None}, 1e-3)
        assert read_arrays(stage.examples, "examples")["tokens"].shape == (2, 16)


class TestWriting:
    """What is written is read again."""

    def test_there_and_back(self, folder: Path) -> None:
        """The same program, from another folder, with relative paths."""
        inner = folder / "made" / "here"
        inner.mkdir(parents=True)
        first = load_program(write(folder, DOCUMENT))
        path = save_program(first, inner)
        assert path == inner / "program.json"
        assert "../../encoder.onnx" in path.read_text()
        read = load_program(path)
        assert [Path(stage.model).resolve() for stage in read.stages] == [
            folder / "encoder.onnx",
            folder / "step.onnx",
        ]
        assert replace(read, stages=first.stages) == first
        for ours, theirs in zip(first.stages, read.stages, strict=True):
            assert (ours.feeds, ours.loop) == (theirs.feeds, theirs.loop)

    def test_everything_a_stage_can_have(self, folder: Path) -> None:
        """Examples in memory become a file; endings, axes and trips survive."""
        repeat = Repeat(
            carry={"h": Carry("n", 0.5), "c": Carry("c_next", in_place=True), "k": Append("s", 0, 9)},
            each={"x": "frames"},
            trips=Feed(length_of="words"),
            trips_max=9,
            at_max="error",
            collect=("y",),
        )
        examples = {"x": np.ones((2, 4), np.float32)}
        stage = Stage("a", folder / "step.onnx", loop=repeat, examples=examples, batch_axes={"x": 0}, tolerance=0.1)
        read = load_program(save_program(Program("p", (stage,), {"y": "a.y"}), folder / "other.json"))
        assert read.stages[0].loop == repeat
        assert (read.stages[0].batch_axes, read.stages[0].tolerance) == ({"x": 0}, 0.1)
        np.testing.assert_array_equal(read_arrays(read.stages[0].examples, "examples")["x"], examples["x"])

    def test_a_model_in_memory(self, tmp_path: Path) -> None:
        """It has no path to write down."""
        with pytest.raises(InvalidInput, match="stage 'encoder': its model is a object in memory"):
            save_program(program(encoder(model=object()), decoder()), tmp_path)

    def test_examples_of_no_kind(self, folder: Path) -> None:
        """Only arrays by name can be written."""
        with pytest.raises(InvalidInput, match="stage 'encoder': its examples cannot be saved"):
            save_program(program(encoder(model=folder / "encoder.onnx", examples=(1, 2)), decoder()), folder)

    def test_nowhere_to_write(self, folder: Path) -> None:
        """The path is in the message."""
        with pytest.raises(InvalidInput, match=r"cannot write the program .*nowhere/p\.json"):
            save_program(load_program(write(folder, DOCUMENT)), folder / "nowhere" / "p.json")

    def test_a_name_without_a_suffix_is_a_folders(self, folder: Path) -> None:
        """It is made where it is missing, with or without a slash behind it; not within another one that is missing."""
        first = load_program(write(folder, DOCUMENT))
        for name in ("speech", "speech/", str(folder / "speech")):
            path = save_program(first, folder / name)
            assert path == folder / "speech" / "program.json"
            assert load_program(path).name == first.name
        with pytest.raises(InvalidInput, match=r"cannot make the folder .*nowhere"):
            save_program(first, folder / "nowhere" / "speech")


def change(*path: str | int, to: Any = None, drop: bool = False) -> Callable[[], dict[str, Any]]:
    """A maker of the document with one thing changed, or dropped."""

    def make() -> dict[str, Any]:
        document = copy.deepcopy(DOCUMENT)
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        if drop:
            del at[path[-1]]
        else:
            at[path[-1]] = to
        return document

    return make


LOOP: tuple[str | int, ...] = ("stages", 1, "loop")
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: [1], r'expected a JSON object with "program": 1'),
    "no version": (change("program", drop=True), r'expected a JSON object with "program": 1'),
    "a later version": (change("program", to=2), "format version 2, this lazybatch reads 1"),
    "an unknown key": (change("stage", to=[]), "the program: unknown key 'stage'; known are"),
    "a name of a wrong type": (change("name", to=3), "the program: 'name' must be a string, got 3"),
    "no stages": (change("stages", drop=True), "the program: 'stages' is missing"),
    "stages by name": (change("stages", to={}), r"'stages' must be a list, got \{\}"),
    "a stage that is a name": (change("stages", 1, to="step.onnx"), "stage 1 must be an object"),
    "a stage without a name": (change("stages", 1, "name", drop=True), "a stage: 'name' is missing"),
    "an unknown key of a stage": (change("stages", 1, "lop", to=1), "stage 'decoder': unknown key 'lop'; known are"),
    "a place that is a number": (
        change(*LOOP, "carry", "h", to={"from": "h_next", "in_place": 1}),
        "stage 'decoder': loop: state 'h': 'in_place' must be true or false, got 1",
    ),
    "no model": (change("stages", 0, "model", drop=True), "stage 'encoder': 'model' is missing"),
    "a model that is not there": (
        change("stages", 0, "model", to="gone.onnx"),
        r"stage 'encoder': model 'gone\.onnx': no",
    ),
    "a model without a name": (change("stages", 0, "model", to=""), "stage 'encoder': model '': no such file"),
    "examples that are not there": (
        change("stages", 0, "examples", to="x.npz"),
        r"'encoder': examples 'x\.npz': no such",
    ),
    "an axis that is text": (change("stages", 0, "batch_axes", to={"x": "0"}), "'encoder': batch_axes of 'x' must be"),
    "a tolerance that is text": (change("stages", 0, "tolerance", to="0"), "'encoder': 'tolerance' must be a number"),
    "inputs as a list": (change("stages", 0, "inputs", to=["x"]), "stage 'encoder': 'inputs' must be an object"),
    "an input fed a number": (change("stages", 0, "inputs", "x", to=1), "stage 'encoder': input 'x' must be an object"),
    "an unknown key of an input": (
        change("stages", 0, "inputs", "x", to={"from": "y"}),
        "stage 'encoder': input 'x': unknown key 'from'; known are 'of', 'pad', 'length_of'",
    ),
    "padding that is text": (
        change("stages", 0, "inputs", "tokens", "pad", to="16"),
        "stage 'encoder': input 'tokens': pad must be a list",
    ),
    "padding out of order": (
        change("stages", 0, "inputs", "tokens", "pad", to=[8, 4]),
        "stage 'encoder': input 'tokens': the sizes to pad to must increase",
    ),
    "an unknown key of a loop": (change(*LOOP, "until", to="x"), "stage 'decoder': loop: unknown key 'until'"),
    "a state that is a number": (change(*LOOP, "carry", "h", to=3), "stage 'decoder': loop: state 'h' must be an obj"),
    "a state from nothing": (change(*LOOP, "carry", "h", to={}), "stage 'decoder': loop: state 'h': 'from' is missing"),
    "a state of both kinds": (
        change(*LOOP, "carry", "h", to={"append": "k", "from": "h"}),
        "stage 'decoder': loop: state 'h': unknown key 'from'; known are 'append', 'axis', 'room'",
    ),
    "a state without room": (
        change(*LOOP, "carry", "keys", "room", drop=True),
        "stage 'decoder': loop: state 'keys': 'room' is missing",
    ),
    "a start that is a list": (change(*LOOP, "carry", "h", "start", to=[0]), "state 'h': 'start' must be a number"),
    "done that is a number": (change(*LOOP, "done", to=1), "stage 'decoder': loop: 'done' must be a string, got 1"),
    "a maximum that is true": (change(*LOOP, "trips_max", to=True), "'trips_max' must be a whole number, got true"),
    "a maximum of none": (change(*LOOP, "trips_max", to=0), "stage 'decoder': trips_max must be a whole number"),
    "another ending": (change(*LOOP, "at_max", to="stop"), "stage 'decoder': at_max must be 'truncate' or 'error'"),
    "each as a list": (change(*LOOP, "each", to=["x"]), "stage 'decoder': loop: 'each' must be an object"),
    "each of a number": (change(*LOOP, "each", to={"x": 1}), "stage 'decoder': loop: each 'x' must be a string"),
    "collect as text": (change(*LOOP, "collect", to="token_next"), "'decoder': loop: 'collect' must be a list"),
    "collect a number": (change(*LOOP, "collect", to=[1]), "stage 'decoder': loop: collect must be a string, got 1"),
    "trips as a number": (change(*LOOP, "trips", to=4), "stage 'decoder': loop: trips must be an object, got 4"),
    "no outputs": (change("outputs", drop=True), "the program: 'outputs' is missing"),
    "an output of a wrong type": (change("outputs", to={"y": 1}), "the program: outputs 'y' must be a string, got 1"),
    "an output of no tensor": (change("outputs", to={"y": "decoder.x"}), "output 'y' is given 'decoder.x', but loop"),
    "an input of no stage": (
        change("stages", 1, "inputs", "memory", to="coder.memory"),
        r"stage 'decoder': input 'memory' is given 'coder\.memory', but there is no such stage",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_wrong(folder: Path, case: str) -> None:
    """One line that names the file and the culprit."""
    make, words = BAD[case]
    path = write(folder, make())
    with pytest.raises((InvalidInput, ModelError), match=words) as caught:
        load_program(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, '{"program": 1, "program": 1}'])
def test_a_file_that_is_no_json(tmp_path: Path, text: str) -> None:
    """Damaged, or with a key twice: named with the path."""
    path = tmp_path / "program.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"program\.json"):
        load_program(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A path, a folder, a folder instead of the file."""
    with pytest.raises(InvalidInput, match=r"cannot read the program .*nowhere\.json"):
        load_program(tmp_path / "nowhere.json")
    with pytest.raises(LazyBatchError, match=r"cannot read the program .*program\.json"):
        load_program(tmp_path)


def test_examples_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, damaged, or a single array: named with the path."""
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and so on")
    np.save(tmp_path / "single.npy", np.zeros(3))
    for name, words in {"gone.npz": "cannot read", "damaged.npz": "damaged", "single.npy": "must be an .npz"}.items():
        with pytest.raises(InvalidInput, match=words) as caught:
            read_arrays(tmp_path / name, "examples")
        assert name in str(caught.value)
