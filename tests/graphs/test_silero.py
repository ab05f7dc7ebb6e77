"""Voice detection as a program: the body is the package's network, and every sound is judged as by itself."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from graphs import silero
from graphs.__main__ import main
from graphs.build import BuildError
from graphs.sounds import RATE_HZ, sounds
from graphs.trained import LENGTHS_FILE, TRAINED
from lazybatch.lengths import load_lengths
from tests.graphs.interpreter import Interpreter
from tests.graphs.replay import Course, replay
from tests.serving import flat_table

POLICIES = ("continuous", "lazy", "lookahead", "graph")
Plain = Callable[[Any], Any]
ROUNDING = 1e-5
"""How far a probability may lie from the plain one: for several rows a runtime may add in another order."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported program."""
    return silero.export(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def model(program: Path) -> Any:
    """The program, loaded: its body cut and proved joinable."""
    return lb.load(program, cache=False)


@pytest.fixture(scope="module")
def plain() -> Plain:
    """The package's own file in a loop, run once per sound."""
    evaluate, known = silero.Plain(), {}

    def answer(chunks: Any) -> Any:
        key = chunks.tobytes()
        if key not in known:
            known[key] = evaluate(chunks)
        return known[key]

    return answer


def test_the_body_is_the_packages_network(program: Path) -> None:
    """Bit for bit, at 1 to 8 rows, for noise of all loudnesses and for states that occur and that do not."""
    assert silero.differing(program, runs=64) == 0


def test_the_body_has_no_branches(program: Path) -> None:
    """One sampling rate is left; a tenth of the file's operators do all the work, and its weights are half as large."""
    import onnx

    body = onnx.load(str(program.parent / "voice.onnx"))
    assert not [node for node in body.graph.node if node.op_type == "If"]
    assert body.ByteSize() < 0.6 * silero.original().stat().st_size


def test_chunks_cover_the_sound() -> None:
    """The last chunk is filled with zeros; a sound that ends with a chunk needs no filling."""
    sound = np.arange(1, 1025, dtype=np.float32)
    assert np.array_equal(silero.chunked(sound), sound.reshape(2, 512))
    longer = silero.chunked(np.append(sound, np.float32(7)))
    assert longer.shape == (3, 512)
    assert longer[2, 0] == 7
    assert not longer[2, 1:].any()


def test_the_program_read_by_hand(program: Path, plain: Plain) -> None:
    """The program's file says what the package's loop does: context and state carried, a probability per chunk."""
    interpreter = Interpreter(program)
    for sound in sounds(4, seed=5, longest_s=2.0):
        chunks = silero.chunked(sound)
        answer = interpreter({"chunks": chunks})
        assert answer.trips == (len(chunks),)
        assert not answer.truncated
        assert np.array_equal(answer.outputs["probability"], plain(chunks))


def test_sounds_are_worth_listening_to(plain: Plain) -> None:
    """Lengths differ, samples are in range, the seed decides; some sounds hold what is taken for voice, some do not."""
    made = sounds(16, seed=2)
    assert len({len(sound) for sound in made}) == len(made)
    assert all(0.5 * RATE_HZ - 1 <= len(sound) <= 10 * RATE_HZ + 1 for sound in made)
    assert all(sound.dtype == np.float32 and np.abs(sound).max() <= 1 for sound in made)
    assert all(np.array_equal(one, other) for one, other in zip(made, sounds(16, seed=2), strict=True))
    highest = [float(plain(silero.chunked(sound[: 2 * RATE_HZ])).max()) for sound in made]
    assert sum(one > 0.5 for one in highest) >= 3
    assert sum(one < 0.5 for one in highest) >= 3


def test_an_export_says_all_there_is(program: Path) -> None:
    """The folder holds the program and its body, and a second export replaces them by the same."""
    assert sorted(path.name for path in program.parent.iterdir()) == ["lengths.json", "program.json", "voice.onnx"]
    before = (program.parent / "voice.onnx").read_bytes()
    assert silero.export(program.parent.parent) == program
    assert (program.parent / "voice.onnx").read_bytes() == before
    assert json.loads(program.read_text())["name"] == "silero-vad"


def check(given: Sequence[Any], plain: Plain, results: Sequence[Any]) -> None:
    """Every answer that is there is the sound's own, a probability per chunk."""
    for chunks, result in zip(given, results, strict=True):
        if result is None:
            continue
        wanted = plain(chunks)
        assert result["probability"].shape == wanted.shape
        assert np.abs(result["probability"] - wanted).max() <= ROUNDING
        assert result.trips == (len(chunks),)
        assert not result.truncated


def check_course(given: Sequence[Any], plain: Plain, course: Course, policy: str) -> None:
    """The same, of a replay; what was streamed are the answers; and it was no trivial one."""
    check(given, plain, course.results)
    for result, steps in zip(course.results, course.steps, strict=True):
        if result is not None:
            assert np.array_equal([step["probability"] for step in steps], result["probability"])
    assert course.rows_most > 1
    assert 0 < sum(result is None for result in course.results) < 0.5 * len(given)
    if policy != "graph":
        assert course.joins > 5
        assert course.left > 5


def test_rows_may_join(model: Any) -> None:
    """The body is proved to keep rows apart at any iteration, with its state's batch on the second axis."""
    assert model.joinable
    assert [(loop.name, loop.same_iteration, loop.trips_max) for loop in model.graph.loops] == [("voice", False, None)]
    assert model.models["voice"].partition.boundaries["state"].axis == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_joined_answers_are_the_sounds_own(policy: str, model: Any, plain: Plain) -> None:
    """Sounds arrive at random, join others at different chunks, end while others go on, are withdrawn."""
    given = [silero.chunked(sound) for sound in sounds(20, seed=6, longest_s=1.5)]
    rows = [{"chunks": chunks} for chunks in given]
    course = replay(model, rows, policy, seed=4, gap_nodes=8, withdrawn=0.3)
    check_course(given, plain, course, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_two_hundred_sounds(policy: str, model: Any, plain: Plain) -> None:
    """The same for 220 sounds of 0.5 to 10 s: those that are there in the end are more than two hundred."""
    given = [silero.chunked(sound) for sound in sounds(220, seed=1)]
    assert len({len(chunks) for chunks in given}) > 50
    rows = [{"chunks": chunks} for chunks in given]
    course = replay(model, rows, policy, seed=2, gap_nodes=20, sla_nodes=5000, withdrawn=0.05)
    check_course(given, plain, course, policy)
    assert sum(result is not None for result in course.results) >= 200


@pytest.mark.parametrize("policy", POLICIES)
def test_through_the_batcher(policy: str, model: Any, plain: Plain) -> None:
    """Live, all sounds at once and one of them streamed: each gets its own probabilities, in steps where asked for."""
    given = [silero.chunked(sound) for sound in sounds(12, seed=9, longest_s=1.0)]
    table = {"table": flat_table(model), "sla": 30.0} if policy in ("lazy", "lookahead") else {}
    with lb.LazyBatcher(model, policy=policy, max_batch_size=8, **table) as batcher:
        futures = [batcher.submit({"chunks": chunks}) for chunks in given]
        streamed = [float(step["probability"]) for step in batcher.stream({"chunks": given[0]})]
        results = [future.result(timeout=120) for future in futures]
    check(given, plain, results)
    assert np.abs(np.array(streamed) - plain(given[0])).max() <= ROUNDING


@pytest.mark.parametrize(
    ("row", "culprit"),
    [
        ({"chunks": np.zeros((3, 512))}, "chunks"),
        ({"chunks": np.zeros((3, 256), np.float32)}, "chunks"),
        ({"chunks": np.zeros((0, 512), np.float32)}, "chunks"),
        ({"sound": np.zeros((3, 512), np.float32)}, "chunks"),
    ],
)
def test_wrong_rows_are_refused(row: dict[str, Any], culprit: str, model: Any) -> None:
    """Wrong types, shapes, names, and a sound without samples: refused with the name of the input."""
    with pytest.raises(lb.InvalidInput, match=culprit):
        model.admit(row)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes the program and compares its body with the package's file."""
    assert main(["export", "--model", "silero-vad", "-o", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    path = tmp_path / "silero-vad" / "program.json"
    assert report == {"model": "silero-vad", "file": str(path), "runs_compared": 200, "runs_differing": 0}


def test_requests_are_sounds_and_know_their_trips(program: Path) -> None:
    """Rows of many lengths, by the seed alone; the lengths that were seen are of the same kind."""
    made = TRAINED["silero-vad"].requests(6, 5)
    given = [silero.chunked(sound) for sound in sounds(6, seed=5)]
    assert all(np.array_equal(row["chunks"], chunks) for row, chunks in zip(made, given, strict=True))
    assert [TRAINED["silero-vad"].trips(row) for row in made] == [(len(chunks),) for chunks in given]
    lengths = [length for _, length in load_lengths(program.parent / LENGTHS_FILE).pairs["voice"]]
    assert 16 <= min(lengths) < 20
    assert 300 < max(lengths) <= 313


def test_another_body_is_noticed(program: Path, tmp_path: Path) -> None:
    """Where a weight of the body differs in its last bit, the check says so."""
    import onnx
    from onnx import numpy_helper

    path = silero.export(tmp_path)
    body = onnx.load(str(path.parent / "voice.onnx"))
    tensor = max(body.graph.initializer, key=lambda one: one.ByteSize())
    changed = np.nextafter(numpy_helper.to_array(tensor), np.float32(1))
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    onnx.save(body, str(path.parent / "voice.onnx"))
    with pytest.raises(BuildError, match=r"of 8 runs are not, bit for bit"):
        silero.check(path, runs=8)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install and how."""
    silero.body.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"pip install --no-deps silero-vad==6\.2\.3"):
        silero.export(tmp_path)
    assert not list(tmp_path.iterdir())
