"""Voice detection: the trained network of the package silero-vad, as a program of one loop over chunks of sound.

Owns: the body made from the package's ONNX file, the program, chunking, and a plain evaluation of the original file.
Must not know: how programs are served.

The package's file holds two networks, for 8 and 16 kHz, behind a branch on the sampling rate, and more branches on
shapes. The body is its 16 kHz network with those branches settled (`graphs.branches`) and two things added which the
package's Python code does around it: each chunk of 512 samples is put behind the last 64 of the chunk before, and the
last 64 are handed on. The network's own state, of an LSTM, has its batch on the second axis. Weights are the package's
(Silero Team, MIT licence).

    chunks (N, 512) float32 -> voice, a loop over chunks -> probability (N,) float32, of voice in each chunk
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.build import BuildError
from graphs.packages import packaged
from graphs.sounds import RATE_HZ, durations_s, sounds

REQUIREMENT = "silero-vad==6.2.3"
NAME = "silero-vad"
CHARACTERISED, CHARACTERISED_SEED = 2000, 1 << 20
"""Sounds whose chunks are counted for the file of lengths; their seed is far from those of requests."""
CHUNK, CONTEXT, WIDTH = 512, 64, 128

Array = NDArray[Any]

PROGRAM = {
    "program": 1,
    "name": NAME,
    "stages": [
        {
            "name": "voice",
            "model": "voice.onnx",
            "loop": {
                "carry": {
                    "context": {"from": "context_next", "start": 0},
                    "state": {"from": "state_next", "start": 0},
                },
                "each": {"chunk": "chunks"},
                "collect": ["probability"],
            },
        }
    ],
    "outputs": {"probability": "voice.probability"},
}


def chunked(sound: Array) -> Array:
    """Samples (any number from 1 on, float32, -1..1) as the program's input: (chunks, 512), zeros after the end."""
    samples = np.asarray(sound, np.float32)
    return np.pad(samples, (0, -len(samples) % CHUNK)).reshape(-1, CHUNK)


def requests(count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Sounds of 0.5 to 10 s as rows of the program."""
    return [{"chunks": chunked(sound)} for sound in sounds(count, seed)]


def trips(row: Mapping[str, Array]) -> tuple[int]:
    """How often a row goes round in the loop."""
    return (len(row["chunks"]),)


def original() -> Path:
    """The package's file. Raises `BuildError` where it is missing."""
    return packaged("silero_vad", "data/silero_vad.onnx", REQUIREMENT)


class Plain:
    """Plain evaluation: the package's file as it is, one sound after the other, chunk by chunk, in a loop by hand."""

    def __init__(self) -> None:
        from lazybatch.executors.ort.session import open_session

        self._session = open_session(original(), optimise=True)

    def __call__(self, chunks: Array) -> Array:
        """Chunks (N, 512) to probabilities (N,)."""
        context, state = np.zeros((1, CONTEXT), np.float32), np.zeros((2, 1, WIDTH), np.float32)
        found = np.empty(len(chunks), np.float32)
        for k, chunk in enumerate(chunks):
            heard = np.concatenate([context, chunk[None]], axis=1)
            probability, state = self.step(heard, state)
            found[k] = probability[0, 0]
            context = heard[:, -CONTEXT:]
        return found

    def step(self, heard: Array, state: Array) -> tuple[Array, Array]:
        """One run of the file: heard (rows, 576), state (2, rows, 128) to probabilities (rows, 1) and the new state."""
        probability, following = self._session.run(
            ["output", "stateN"], {"input": heard, "state": state, "sr": np.array(RATE_HZ, np.int64)}
        )
        return probability, following


def export(directory: Path) -> Path:
    """Write the program into ``directory``/silero-vad and return its ``program.json``.

    Beside it lie lengths for ``lazybatch characterize``: the chunks of sounds such as `requests` makes. Raises
    `BuildError` where the package is missing or its file is not the one this module knows; `OSError`.
    """
    import onnx

    folder = directory / NAME
    made = body()
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(made, str(folder / "voice.onnx"))
    path = folder / "program.json"
    path.write_text(json.dumps(PROGRAM, indent=2) + "\n", encoding="utf-8")
    counts = [ceil(round(one * RATE_HZ) / CHUNK) for one in durations_s(CHARACTERISED, CHARACTERISED_SEED)]
    found = {"voice": [[count, count] for count in counts]}
    (folder / "lengths.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    return path


def check(path: Path, *, runs: int = 200) -> dict[str, object]:
    """Compare the exported body with the package's file. Raises `BuildError` where a single bit differs."""
    found = differing(path, runs=runs)
    if found:
        raise BuildError(f"{path}: {found} of {runs} runs are not, bit for bit, those of {original()}")
    return {"runs_compared": runs, "runs_differing": 0}


def differing(path: Path, *, runs: int = 200, seed: int = 0) -> int:
    """In how many of so many runs the exported body's results are not, bit for bit, those of the package's file.

    path: of the program. Runs have 1 to 8 rows of noise of all loudnesses, and states such as come and such as do not.
    """
    from lazybatch.executors.ort.session import open_session

    plain, body = Plain(), open_session(path.parent / "voice.onnx", optimise=True)
    rng = np.random.default_rng(seed)
    found = 0
    for run in range(runs):
        rows = 1 + run % 8
        loudness = 10 ** rng.uniform(-4, 0, (rows, 1))
        heard = (rng.standard_normal((rows, CONTEXT + CHUNK)) * loudness).astype(np.float32)
        state = (rng.standard_normal((2, rows, WIDTH)) * rng.choice([0.0, 0.3, 3.0])).astype(np.float32)
        probability, following, context = body.run(
            ["probability", "state_next", "context_next"],
            {"context": heard[:, :CONTEXT], "chunk": heard[:, CONTEXT:], "state": state},
        )
        wanted, wanted_state = plain.step(heard, state)
        same = np.array_equal(probability, wanted[:, 0]) and np.array_equal(following, wanted_state)
        found += not (same and np.array_equal(context, heard[:, -CONTEXT:]))
    return found


@cache
def body() -> Any:
    """The package's network as the body of the loop."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from graphs.branches import settle

    model = onnx.load(str(original()))
    graph = model.graph
    names = ({value.name for value in graph.input}, {value.name for value in graph.output})
    if names != ({"input", "state", "sr"}, {"output", "stateN"}):
        raise BuildError(f"{original()} is not the file of {REQUIREMENT}: it has the inputs and outputs {names}")
    del graph.input[:], graph.output[:]
    rate = helper.make_tensor_value_info("sr", TensorProto.INT64, [])
    graph.input.extend([_floats("chunk", CHUNK), _floats("context", CONTEXT), _state("state"), rate])
    graph.output.extend([_floats("probability"), _floats("context_next", CONTEXT), _state("state_next")])
    numbers = {"one": [1], "context_from": [CHUNK], "context_to": [CHUNK + CONTEXT]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()
    )
    nodes = [
        helper.make_node("Concat", ["context", "chunk"], ["input"], axis=1),
        *graph.node,
        helper.make_node("Slice", ["input", "context_from", "context_to", "one"], ["context_next"]),
        helper.make_node("Squeeze", ["output", "one"], ["probability"]),
        helper.make_node("Identity", ["stateN"], ["state_next"]),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    settled = settle(model, {"sr": np.array(RATE_HZ, np.int64)})
    if any(node.op_type == "If" for node in settled.graph.node):
        raise BuildError(f"{original()} is not the file of {REQUIREMENT}: not all of its branches can be settled")
    return settled


def _floats(name: str, *sizes: int) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *sizes])


def _state(name: str) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, "batch", WIDTH])
