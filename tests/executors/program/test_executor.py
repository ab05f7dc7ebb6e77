"""Programs on ONNX Runtime and torch: whatever happens to its mates, a row's result is that of its plain loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lazybatch as lb
from lazybatch.executors.ort.model import OrtModel
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage
from tests.executors.partitions import cut, rows
from tests.executors.program import bodies, programs, torch_bodies
from tests.executors.program.programs import Course, matches, plain

ROWS_MAX = 8
TOLERANCE = 2e-6
UNSTEADY = 5e-5
"""Of `translate`: its decoder's state feeds an attention without a scale and itself, so what kernels for several rows
round otherwise than those for one grows from step to step, a few times tenfold in six steps. What a row would take from
another one is a thousand times larger."""
Rows = dict[int, dict[str, Any]]


def program(name: str, stages: tuple[Stage, ...], outputs: dict[str, str]) -> ProgramModel:
    """A program whose stages hold loaded models."""
    return ProgramModel(Program(name, stages, outputs), {stage.name: stage.model for stage in stages})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bodies lie."""
    return tmp_path_factory.mktemp("bodies")


@pytest.fixture(scope="module")
def speech(folder: Path) -> ProgramModel:
    """A loop over what the row brings, its state on axis 1."""
    body: Any = lb.load(bodies.lstm(folder / "lstm.onnx"), cache=False)
    loop = Repeat(carry={"s": "s_next"}, each={"x": "audio"}, collect=("y",))
    return program("speech", (Stage("step", body, loop=loop),), {"y": "step.y", "s": "step.s"})


@pytest.fixture(scope="module")
def count(folder: Path) -> ProgramModel:
    """A loop in whole numbers."""
    return programs.count(folder)


@pytest.fixture(scope="module")
def translate(folder: Path) -> ProgramModel:
    """Encoder, decoder and something behind it; cache and memory are outputs, too."""
    return programs.translate(folder, keys="decoder.keys", memory="encoder.memory")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> ProgramModel:
    """A body of three nodes: rows are merged and leave in its middle, too. x, h, m [3] in whole steps of a quarter.

    a = h / 2 + x -> b = relu(a) + m -> h_next = b - h / 4, finished where it sums up to enough.
    """
    make = bodies.node
    known = [
        *(rows(name, 3) for name in ("h", "x", "m", "a", "quarter", "b", "h_next")),
        rows("finished", dtype="bool"),
    ]
    partition = cut(
        _made(folder / "nodes"),
        [
            [make("Mul", ["h", "half"], ["halved"]), make("Add", ["halved", "x"], ["a"])],
            [
                make("Relu", ["a"], ["bent"]),
                make("Add", ["bent", "m"], ["b"]),
                make("Mul", ["h", "fourth"], ["quarter"]),
            ],
            [
                make("Sub", ["b", "quarter"], ["h_next"]),
                make("ReduceSum", ["h_next", "last"], ["total"], keepdims=0),
                make("Greater", ["total", "enough"], ["finished"]),
            ],
        ],
        known,
        ["h", "x", "m"],
        ["h_next", "finished", "a"],
        {
            "half": np.array(0.5, np.float32),
            "fourth": np.array(0.25, np.float32),
            "last": np.array([1]),
            "enough": np.array(9.0, np.float32),
        },
        in_place={2: ("b", "h_next")},
    )
    loop = Repeat(carry={"h": "h_next"}, each={"x": "xs"}, done="finished", collect=("a",))
    stage = Stage("step", OrtModel(partition), {"m": "m"}, loop)
    return program("nodes", (stage,), {"h": "step.h", "a": "step.a"})


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def several(folder: Path) -> ProgramModel:
    """Two loops; the second goes round as often as the first did, with one number of iteration for all rows."""
    parts: dict[str, Any] = {
        "heads": lb.load(bodies.heads(folder / "heads.onnx"), cache=False),
        "clock": lb.load(bodies.clocked(folder / "clocked.onnx"), cache=False),
    }
    growing = Repeat(
        carry={"v": Carry("v_next", "v"), "cache": Append("slice", 1, 5)}, done="finished", collect=("slice",)
    )
    clocked = Repeat(
        carry={"h": Carry("h_next", 2)}, iteration="time", trips=Feed(length_of="heads.slice"), trips_max=4
    )
    stages = (
        Stage("heads", parts["heads"], loop=dataclasses.replace(growing, trips_max=5)),
        Stage("clock", parts["clock"], loop=clocked),
    )
    return program("several", stages, {"v": "heads.v", "cache": "heads.cache", "slices": "heads.slice", "h": "clock.h"})


@pytest.fixture(scope="module")
def torch_steps() -> ProgramModel:
    """A torch body, its state on axis 1."""
    body: Any = lb.load(torch_bodies.GruStep().eval(), example_inputs=torch_bodies.step_example(), cache=False)
    loop = Repeat(carry={"h": "h_next"}, each={"x": "audio"}, collect=("y",))
    return program("torch_steps", (Stage("step", body, loop=loop),), {"y": "step.y", "h": "step.h"})


@pytest.fixture(scope="module")
def torch_cache() -> ProgramModel:
    """A torch body whose cache grows behind its heads."""
    room = 6
    body: Any = lb.load(
        torch_bodies.CacheStep(room).eval(), example_inputs=torch_bodies.cache_example(room), cache=False
    )
    loop = Repeat(
        carry={"h": Carry("h_next", "h"), "keys": Append("key", 1, room)},
        iteration="position",
        done="finished",
        trips_max=room,
        collect=("peak",),
    )
    outputs = {"keys": "step.keys", "h": "step.h", "peak": "step.peak"}
    return program("torch_cache", (Stage("step", body, loop=loop),), outputs)


def speech_rows(rng: np.random.Generator, count: int) -> Rows:
    """Sound of different lengths."""
    return {k: {"audio": rng.standard_normal((rng.integers(1, 6), 4)).astype(np.float32)} for k in range(count)}


def count_rows(rng: np.random.Generator, count: int) -> Rows:
    """Some come to their target, some are cut off."""
    return {k: {"from": np.array(rng.integers(0, 4)), "to": np.array(rng.integers(0, 12))} for k in range(count)}


def translate_rows(rng: np.random.Generator, count: int) -> Rows:
    """Sentences of different lengths, in two padded sizes."""
    return {k: {"source": rng.standard_normal((rng.integers(1, 7), 4)).astype(np.float32)} for k in range(count)}


def node_rows(rng: np.random.Generator, count: int) -> Rows:
    """Numbers whose halves and quarters stay exact for as long as they are looked at."""

    def exact(*shape: int) -> np.ndarray:
        return (rng.integers(-8, 9, shape) / 4).astype(np.float32)

    return {k: {"xs": exact(rng.integers(1, 5), 3), "m": exact(3)} for k in range(count)}


def several_rows(rng: np.random.Generator, count: int) -> Rows:
    """Starts of any size."""
    return {k: {"v": rng.integers(0, 97, (2, 3))} for k in range(count)}


def cache_rows(rng: np.random.Generator, count: int) -> Rows:
    """Starts of any size."""
    return {k: {"h": rng.standard_normal(torch_bodies.HIDDEN).astype(np.float32)} for k in range(count)}


CASES: dict[str, tuple[Callable[[np.random.Generator, int], Rows], float]] = {
    "speech": (speech_rows, TOLERANCE),
    "count": (count_rows, 0.0),
    "translate": (translate_rows, UNSTEADY),
    "nodes": (node_rows, 0.0),
    "several": (several_rows, 0.0),
    "torch_steps": (speech_rows, TOLERANCE),
    "torch_cache": (cache_rows, TOLERANCE),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[ProgramModel, Any, Callable[..., Rows], float]]:
    """A program, one executor for all examples (what earlier rows left must not matter), and how to make rows."""
    model = request.getfixturevalue(request.param)
    executor = model.executor(max_batch_size=ROWS_MAX)
    yield (model, executor, *CASES[request.param])
    executor.shutdown()


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), seed=st.integers(0, 2**16), whole=st.booleans())
def test_every_row_is_alone(case: tuple[Any, ...], data: st.DataObject, seed: int, whole: bool) -> None:
    """Opened, run, parked, merged, evicted, split off, padded, in any order: each result is that of the row alone."""
    model, executor, make, tolerance = case
    given_rows = make(np.random.default_rng(seed), 7)
    course = Course(model, executor, given_rows, whole=whole)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    course.drive(lambda n: int(rng.integers(n)), rows_max=ROWS_MAX)
    assert len(course.results) == len(given_rows) - course.evicted
    for request, got in course.results.items():
        want = plain(model, given_rows[request])
        matches(got, want, tolerance)
        for name in model.program.stages[0].loop.collect if model.program.stages[0].loop else ():
            steps = [step[name] for step in course.emitted[request]]
            assert np.abs(np.stack(steps) - np.stack(want_steps(model, want, name))).max() <= tolerance


def want_steps(model: ProgramModel, want: dict[str, Any], name: str) -> Any:
    """What the plain loop collected under the output that shows it."""
    shown = next(key for key, text in model.program.outputs.items() if text.endswith(f".{name}"))
    return want[shown]


def test_text_goes_from_stage_to_stage(tmp_path: Path) -> None:
    """Arrays of objects are handed on like any other."""
    parts: dict[str, Any] = {name: lb.load(bodies.words(tmp_path / f"{name}.onnx"), cache=False) for name in "ab"}
    stages = (Stage("a", parts["a"], {"word": "text"}), Stage("b", parts["b"], {"word": "a.word_next"}))
    model = ProgramModel(Program("words", stages, {"text": "b.word_next"}), parts)
    executor = model.executor(max_batch_size=2)
    executor.open(0, {k: model.admit({"text": np.array(word, dtype=object)}) for k, word in enumerate("xy")}, 2)
    for node in range(len(model.graph)):
        executor.run(0, node)
    assert [result["text"].item() for result in executor.close(0).values()] == ["x", "y"]
