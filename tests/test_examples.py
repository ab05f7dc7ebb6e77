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


def test_listening_tells_when_voices_begin_and_end(program: Path, tmp_path: Path) -> None:
    """Two recordings at once: what is printed of each are the moments at which its own probabilities cross over."""
    wanted, plain = [], silero.Plain()
    for number, sound in enumerate(sounds(2, seed=3, longest_s=4.0)):
        path = tmp_path / f"{number}.wav"
        samples = (sound * 32767).astype(np.int16)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(samples.tobytes())
        speaking = False
        for k, probability in enumerate(plain(silero.chunked(samples / np.float32(32768)))):
            if speaking != (probability > (0.35 if speaking else 0.5)):
                speaking = not speaking
                wanted.append(f"{path}: {k * 0.032:6.2f} s  {'speaks' if speaking else 'silent'}")
    done = run(ROOT / "examples" / "listen.py", program, tmp_path / "0.wav", tmp_path / "1.wav", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == wanted
    assert wanted, "these sounds were chosen because they hold voices"


def test_listening_refuses_other_recordings(program: Path, tmp_path: Path) -> None:
    """A file at another rate is one line; no arguments are the explanation."""
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\0" * 800)
    done = run(ROOT / "examples" / "listen.py", program, tmp_path / "x.wav", cache=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"{tmp_path / 'x.wav'}: expected 16 kHz, one channel, 16 bit"]
    assert "python examples/listen.py" in run(ROOT / "examples" / "listen.py", cache=tmp_path).stderr
