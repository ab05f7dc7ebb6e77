"""A program run by hand: its `program.json` read word by word, one row after the other, with plain ONNX Runtime.

Owns: `Interpreter`, the reading of the file that what serves programs is compared with.
Must not know: lazybatch, but for the way in which a process opens its sessions.

Everything is run at one row, whose axis is the one that the model calls "batch".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.executors.ort.session import open_session

BATCH = "batch"


@dataclass
class Answer:
    """Outputs of one row, the iterations of each loop, and whether one of them was cut off."""

    outputs: dict[str, np.ndarray]
    trips: tuple[int, ...]
    truncated: bool


class _Model:
    """An ONNX file, run on single rows without a batch axis."""

    def __init__(self, path: Path) -> None:
        self._session = open_session(path, optimise=True)
        self.inputs = {value.name: value for value in self._session.get_inputs()}
        self.outputs = {value.name: value for value in self._session.get_outputs()}

    def row_shape(self, name: str) -> list[Any]:
        """Shape of an input without the batch axis."""
        return [size for size in self.inputs[name].shape if size != BATCH]

    def zeros(self, name: str, value: float = 0) -> np.ndarray:
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
        return np.full(self.row_shape(name), value, kinds[self.inputs[name].type])

    def __call__(self, row: Mapping[str, Any]) -> dict[str, np.ndarray]:
        feeds = {}
        for name, value in self.inputs.items():
            array = np.asarray(row[name])
            feeds[name] = np.expand_dims(array, value.shape.index(BATCH)) if BATCH in value.shape else array
        made = self._session.run(list(self.outputs), feeds)
        return {
            name: np.squeeze(array, value.shape.index(BATCH)) if BATCH in value.shape else array
            for (name, value), array in zip(self.outputs.items(), made, strict=True)
        }


class Interpreter:
    """A program ready to be asked. Raises `KeyError` for references to nothing."""

    def __init__(self, path: Path) -> None:
        self.program = json.loads(path.read_text(encoding="utf-8"))
        assert self.program["program"] == 1
        self._models = {stage["name"]: _Model(path.parent / stage["model"]) for stage in self.program["stages"]}

    def __call__(self, row: Mapping[str, Any]) -> Answer:
        """The answer to one row, given without a batch axis."""
        known = {name: np.asarray(value) for name, value in row.items()}
        trips, truncated = [], False
        for stage in self.program["stages"]:
            model = self._models[stage["name"]]
            given = {name: _given(known, entry) for name, entry in stage.get("inputs", {}).items()}
            if "loop" in stage:
                made, count, cut = _loop(model, stage["loop"], given, known)
                trips.append(count)
                truncated |= cut
            else:
                made = model(given)
            known |= {f"{stage['name']}.{name}": value for name, value in made.items()}
        outputs = {name: known[reference] for name, reference in self.program["outputs"].items()}
        return Answer(outputs, tuple(trips), truncated)


def _given(known: Mapping[str, np.ndarray], entry: Any) -> np.ndarray:
    if isinstance(entry, str):
        return known[entry]
    if "length_of" in entry:
        return np.int64(len(known[entry["length_of"]]))
    array = known[entry["of"]]
    sizes = entry.get("pad", [])
    size = min(
        (one for one in (sizes if isinstance(sizes, list) else [sizes]) if one >= len(array)), default=len(array)
    )
    return np.pad(array, [(0, size - len(array)), *[(0, 0)] * (array.ndim - 1)])


def _loop(
    model: _Model, loop: Mapping[str, Any], fixed: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], int, bool]:
    """What later stages may read of a loop, its iterations, and whether it was cut off."""
    states = {}
    for name, entry in loop.get("carry", {}).items():
        start = entry.get("start", 0)
        states[name] = known[start] if isinstance(start, str) else model.zeros(name, start)
    each, most = loop.get("each", {}), loop.get("trips_max")
    planned = _planned(loop, known)
    collected: dict[str, list[np.ndarray]] = {name: [] for name in loop.get("collect", [])}
    count, done = 0, False
    while not done and (most is None or count < most):
        row = {**fixed, **states, **{name: known[source][count] for name, source in each.items()}}
        if "iteration" in loop:
            row[loop["iteration"]] = np.int64(count)
        made = model(row)
        for name, entry in loop.get("carry", {}).items():
            if "append" in entry:
                place = [slice(None)] * states[name].ndim
                place[entry["axis"]] = count
                states[name] = states[name].copy()
                states[name][tuple(place)] = made[entry["append"]]
            else:
                states[name] = made[entry["from"]]
        for name, steps in collected.items():
            steps.append(made[name])
        count += 1
        done = bool(made[loop["done"]]) if "done" in loop else False
        done |= count == planned
    for name, entry in loop.get("carry", {}).items():
        if "append" in entry:
            states[name] = states[name].take(range(count), axis=entry["axis"])
    return states | {name: np.stack(steps) for name, steps in collected.items()}, count, not done


def _planned(loop: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> int | None:
    """Iterations known beforehand."""
    if isinstance(loop.get("trips"), str):
        return int(known[loop["trips"]])
    if "trips" in loop:
        return len(known[loop["trips"]["length_of"]])
    each = loop.get("each", {})
    return min((len(known[source]) for source in each.values()), default=None)
