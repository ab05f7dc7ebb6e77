"""Writing a program to its file.

Owns: `save_program`. Must not know: how the file is read, how models are loaded or run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput
from lazybatch.program.file import FORMAT_VERSION, PROGRAM_FILE
from lazybatch.program.parts import Append, Carry, Feed, Repeat
from lazybatch.program.spec import Program, Stage


def save_program(program: Program, path: str | Path) -> Path:
    """Write a program so that `load_program` reads the same one; returns the file's path.

    path: of the file, or of a directory, where it becomes ``program.json``; a name without a suffix is that of a
    directory, and made where it is missing. The stages' models must be files or partition directories; they are not
    copied, and named relative to the program. Examples in memory, a dict of arrays
    with a batch axis, are written beside it, as ``STAGE.examples.npz``.

    Raises `InvalidInput` for a model that is no file, and where nothing can be written.
    """
    path = Path(path)
    if path.is_dir() or (not path.suffix and not path.exists()):
        path = _within(path)
    document = {
        "program": FORMAT_VERSION,
        "name": program.name,
        "stages": [_stage(stage, path.parent) for stage in program.stages],
        "outputs": dict(program.outputs),
    }
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write the program {str(path)!r}: {error.strerror or error}") from error
    return path


def _within(folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the folder {str(folder)!r}: {error.strerror or error}") from error
    return folder / PROGRAM_FILE


def _stage(stage: Stage, folder: Path) -> dict[str, Any]:
    if not isinstance(stage.model, str | Path):
        raise InvalidInput(
            f"stage {stage.name!r}: its model is a {type(stage.model).__name__} in memory; a program that is saved "
            "needs the path of a model file or a partition directory"
        )
    made: dict[str, Any] = {"name": stage.name, "model": _relative(stage.model, folder)}
    if stage.inputs:
        made["inputs"] = {name: _feed(feed) for name, feed in stage.feeds.items()}
    if stage.loop is not None:
        made["loop"] = _loop(stage.loop)
    if stage.examples is not None:
        made["examples"] = _examples(stage, folder)
    if stage.batch_axes is not None:
        made["batch_axes"] = dict(stage.batch_axes)
    if stage.tolerance is not None:
        made["tolerance"] = stage.tolerance
    return made


def _relative(given: str | Path, folder: Path) -> str:
    return Path(os.path.relpath(given, folder)).as_posix()


def _feed(feed: Feed) -> str | dict[str, Any]:
    if feed.of is None:
        return {"length_of": feed.length_of}
    return {"of": feed.of, "pad": list(feed.pad)} if feed.pad else feed.of


def _loop(loop: Repeat) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if loop.carry:
        made["carry"] = {name: _state(state) for name, state in loop.states.items()}
    if loop.each:
        made["each"] = dict(loop.each)
    for key in ("iteration", "done", "trips_max"):
        if getattr(loop, key) is not None:
            made[key] = getattr(loop, key)
    if loop.trips is not None:
        made["trips"] = loop.trips if isinstance(loop.trips, str) else _feed(loop.trips)
    if loop.at_max != "truncate":
        made["at_max"] = loop.at_max
    if loop.collect:
        made["collect"] = list(loop.collect)
    return made


def _state(state: Carry | Append) -> dict[str, Any]:
    if isinstance(state, Append):
        return {"append": state.slice, "axis": state.axis, "room": state.room}
    made = {"from": state.next, "start": state.start}
    return {**made, "in_place": True} if state.in_place else made


def _examples(stage: Stage, folder: Path) -> str:
    """The examples' file, relative to the folder; arrays in memory are written there."""
    examples = stage.examples
    if isinstance(examples, str | Path):
        return _relative(examples, folder)
    if not isinstance(examples, Mapping):
        raise InvalidInput(
            f"stage {stage.name!r}: its examples cannot be saved; expected one dict from input to array, batch axis "
            f"included, or the path of an .npz file, got {type(examples).__name__}"
        )
    name = f"{stage.name}.examples.npz"
    arrays: dict[str, Any] = {tensor: np.asarray(array) for tensor, array in examples.items()}
    try:
        np.savez(folder / name, **arrays)
    except OSError as error:
        raise InvalidInput(f"cannot write the examples {str(folder / name)!r}: {error.strerror or error}") from error
    return name
