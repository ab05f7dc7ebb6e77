"""Plain evaluation of the models with loops: hand-written decoding loops over the exported files.

Owns: `Reference`: one batch from its encoder to its longest row's end, without lazybatch's scheduling.
Must not know: programs, schedulers, torch.

With one row at a time it says what the right answers are. With several it is what a server without node-level
scheduling does: the batch is padded, and all its rows step on until the longest is done. Each step's body is one call
of ONNX Runtime; states are whatever the step before returned, caches are arrays written in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.sizes import START, Las, Row, Size, Transformer
from lazybatch.executors.ort.session import open_session

Array = NDArray[Any]


class Reference:
    """The sessions of one exported model. folder: with its files. size: as it was exported."""

    def __init__(self, folder: Path, size: Size) -> None:
        self._size = size
        encode, step = ("listener", "speller") if isinstance(size, Las) else ("encoder", "decoder")
        self._encode = open_session(folder / f"{encode}.onnx", optimise=True)
        self._step = open_session(folder / f"{step}.onnx", optimise=True)
        self._made = [value.name for value in self._step.get_outputs()]

    def __call__(self, rows: Sequence[Row]) -> list[Array]:
        """Tokens of every row, END included, decoded as one batch."""
        fixed = self.encode(rows)
        fixed["target_length"] = np.stack([row["target_length"] for row in rows])
        state = self.start(len(rows))
        tokens: list[list[int]] = [[] for _ in rows]
        done = np.zeros(len(rows), dtype=bool)
        for position in range(self._size.target_max):
            made = self.step(fixed, state, position)
            for k in np.flatnonzero(~done):
                tokens[k].append(int(made["token_next"][k]))
            done |= made["finished"]
            if done.all():
                break
        return [np.array(one, dtype=np.int64) for one in tokens]

    def encode(self, rows: Sequence[Row]) -> dict[str, Array]:
        """What the decoder reads of the sources, by the names of its inputs."""
        source = "frames" if isinstance(self._size, Las) else "source"
        tensor = "frames" if isinstance(self._size, Las) else "tokens"
        lengths = np.array([len(row[source]) for row in rows], dtype=np.int64)
        first = rows[0][source]
        padded = np.zeros((len(rows), self._size.source_max, *first.shape[1:]), dtype=first.dtype)
        for k, row in enumerate(rows):
            padded[k, : lengths[k]] = row[source]
        names = [value.name for value in self._encode.get_outputs()]
        made = self._encode.run(names, {tensor: padded, "length": lengths})
        return {**dict(zip(names, made, strict=True)), "length": lengths}

    def start(self, rows: int) -> dict[str, Array]:
        """The decoder's state before its first step."""
        size = self._size
        state: dict[str, Array] = {"token": np.full(rows, START, dtype=np.int64)}
        if isinstance(size, Transformer):
            deep = size.width // size.heads
            for layer in range(size.layers):
                state[f"keys{layer}"] = np.zeros((rows, size.heads, deep, size.target_max), dtype=np.float32)
                state[f"values{layer}"] = np.zeros((rows, size.heads, size.target_max, deep), dtype=np.float32)
            return state
        layers, width = (size.spellers, size.speller) if isinstance(size, Las) else (size.layers, size.width)
        state["h"], state["c"] = (np.zeros((rows, layers, width), dtype=np.float32) for _ in range(2))
        if isinstance(size, Las):
            state["context"] = np.zeros((rows, 2 * size.side), dtype=np.float32)
        return state

    def step(self, fixed: Mapping[str, Array], state: dict[str, Array], position: int) -> dict[str, Array]:
        """One step of all rows, at one position; the state becomes the next step's. Returns all that the body does."""
        positions = np.full(len(state["token"]), position, dtype=np.int64)
        outputs = self._step.run(self._made, {**fixed, **state, "position": positions})
        made = dict(zip(self._made, outputs, strict=True))
        state["token"] = made["token_next"]
        if isinstance(self._size, Transformer):
            for layer in range(self._size.layers):
                state[f"keys{layer}"][..., position] = made[f"key{layer}"]
                state[f"values{layer}"][:, :, position] = made[f"value{layer}"]
        else:
            state |= {name: made[f"{name}_next"] for name in state if name != "token"}
        return made
