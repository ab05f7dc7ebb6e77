"""Voice detection as a program: the body is the package's network, and every sound is judged as by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphs import silero
from graphs.sounds import RATE_HZ, sounds
from tests.graphs.interpreter import Interpreter


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported program."""
    return silero.export(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def plain() -> silero.Plain:
    """The package's own file in a loop."""
    return silero.Plain()


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


def test_the_program_read_by_hand(program: Path, plain: silero.Plain) -> None:
    """The program's file says what the package's loop does: context and state carried, a probability per chunk."""
    interpreter = Interpreter(program)
    for sound in sounds(6, seed=5, longest_s=2.0):
        chunks = silero.chunked(sound)
        answer = interpreter({"chunks": chunks})
        assert answer.trips == (len(chunks),)
        assert not answer.truncated
        assert np.array_equal(answer.outputs["probability"], plain(chunks))


def test_sounds_are_worth_listening_to(plain: silero.Plain) -> None:
    """Lengths differ, samples are in range, the seed decides; some sounds hold what is taken for voice, some do not."""
    made = sounds(24, seed=2)
    assert len({len(sound) for sound in made}) == len(made)
    assert all(0.5 * RATE_HZ - 1 <= len(sound) <= 10 * RATE_HZ + 1 for sound in made)
    assert all(sound.dtype == np.float32 and np.abs(sound).max() <= 1 for sound in made)
    assert all(np.array_equal(one, other) for one, other in zip(made, sounds(24, seed=2), strict=True))
    highest = [float(plain(silero.chunked(sound[: 3 * RATE_HZ])).max()) for sound in made]
    assert sum(one > 0.5 for one in highest) >= 4
    assert sum(one < 0.5 for one in highest) >= 4


def test_an_export_says_all_there_is(program: Path) -> None:
    """The folder holds the program and its body, and a second export replaces them by the same."""
    assert sorted(path.name for path in program.parent.iterdir()) == ["program.json", "voice.onnx"]
    before = (program.parent / "voice.onnx").read_bytes()
    assert silero.export(program.parent.parent) == program
    assert (program.parent / "voice.onnx").read_bytes() == before
    assert json.loads(program.read_text())["name"] == "silero-vad"
