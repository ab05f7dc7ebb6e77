"""The examples do what they say, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from graphs import silero
from graphs.sounds import RATE_HZ, sounds
from tests.small_program import write_program

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: object, cache: Path) -> subprocess.CompletedProcess[str]:
    """An example in a process of its own."""
    environment = {**os.environ, "LAZYBATCH_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cache,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported program's folder."""
    return silero.export(tmp_path_factory.mktemp("zoo")).parent


def record(path: Path, samples: np.ndarray, rate_hz: int = RATE_HZ, channels: int = 1) -> Path:
    """Samples of 16 bits as a wav file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype(np.int16).tobytes())
    return path


def told(path: Path, samples: np.ndarray) -> list[str]:
    """What is to be printed of a recording: the moments at which its own probabilities cross over, and how it ends."""
    lines, speaking = [], False
    probabilities = silero.Plain()(silero.chunked(samples / np.float32(32768)))
    for k, probability in enumerate(probabilities):
        if speaking != (probability > (0.35 if speaking else 0.5)):
            speaking = not speaking
            lines.append(f"{path}: {k * 0.032:6.2f} s  {'speaks' if speaking else 'silent'}")
    if speaking:
        lines.append(f"{path}: {len(probabilities) * 0.032:6.2f} s  ends while somebody speaks")
    return lines or [f"{path}: no voice"]


def test_listening_tells_when_voices_begin_and_end(program: Path, tmp_path: Path) -> None:
    """Recordings at once: of each what it gives alone, in order; silence has no voice, and some end within a word."""
    made = [(sound * 32767).astype(np.int16) for sound in sounds(2, seed=3, longest_s=4.0)]
    made.append(np.zeros(RATE_HZ))
    wanted = {tmp_path / f"{k}.wav": told(tmp_path / f"{k}.wav", samples) for k, samples in enumerate(made)}
    spoken = next(k for k, lines in enumerate(wanted.values()) if lines[0].endswith("speaks"))
    chunk = round(float(wanted[tmp_path / f"{spoken}.wav"][0].split()[-3]) * RATE_HZ / silero.CHUNK)
    cut = made[spoken][: (chunk + 1) * silero.CHUNK]
    wanted[tmp_path / "cut.wav"] = told(tmp_path / "cut.wav", cut)
    for path, samples in zip(wanted, [*made, cut], strict=True):
        record(path, samples)
    done = run(ROOT / "examples" / "listen.py", program, *wanted, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for path, expected in wanted.items():
        assert [line for line in lines if line.startswith(f"{path}: ")] == expected
    assert len(lines) == sum(map(len, wanted.values()))
    assert wanted[tmp_path / "2.wav"] == [f"{tmp_path / '2.wav'}: no voice"]
    assert wanted[tmp_path / "cut.wav"][-1].endswith("ends while somebody speaks")


@pytest.mark.parametrize("case", ["missing", "text", "cut off", "stereo", "slow", "empty"])
def test_listening_refuses_other_recordings(case: str, tmp_path: Path) -> None:
    """One line that names the file, before the program is looked at."""
    path, silence = tmp_path / "x.wav", np.zeros(800)
    words = {
        "missing": "no recording that can be read (No such file or directory)",
        "text": "no recording that can be read (file does not start with RIFF id)",
        "cut off": "no recording that can be read (it is cut off)",
        "stereo": "expected 16 kHz, one channel, 16 bit",
        "slow": "expected 16 kHz, one channel, 16 bit",
        "empty": "holds no sound",
    }
    if case in ("text", "cut off"):
        path.write_text("not a recording at all" if case == "text" else "")
    elif case != "missing":
        samples = silence[: 0 if case == "empty" else 800]
        record(path, samples, 8000 if case == "slow" else RATE_HZ, 2 if case == "stereo" else 1)
    done = run(ROOT / "examples" / "listen.py", "no-program", path, cache=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"{path}: {words[case]}"]


def test_listening_needs_a_program(tmp_path: Path) -> None:
    """None, one that is not there, one that is no such program: one line."""
    record(tmp_path / "x.wav", np.zeros(800))
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    write_program(tmp_path / "other")
    given = {"usage: python examples/listen.py PROGRAM": []}
    given |= {f"{name}: no program that listens (": [name, "x.wav"] for name in ("gone", "empty", "other")}
    for words, arguments in given.items():
        done = run(ROOT / "examples" / "listen.py", *arguments, cache=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(words)
