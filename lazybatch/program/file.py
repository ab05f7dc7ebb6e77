"""``program.json``: a program as a file beside its models.

Owns: the file's keys, `is_program`, `load_program`; every word about a file that is wrong.
Must not know: how models are loaded or run; what a program means (the dataclasses say).

    {"program": 1, "name": "speech",
     "stages": [
       {"name": "encoder", "model": "encoder.onnx",
        "inputs": {"tokens": {"of": "source", "pad": [16, 32, 64]}, "length": {"length_of": "source"}}},
       {"name": "decoder", "model": "step.onnx", "inputs": {"memory": "encoder.memory"},
        "loop": {"carry": {"h": {"from": "h_next", "start": "encoder.h"}, "token": {"from": "token_next", "start": 1},
                           "keys": {"append": "key", "axis": 1, "room": 64}},
                 "iteration": "position", "done": "finished", "trips_max": 64, "collect": ["token_next"]}}],
     "outputs": {"tokens": "decoder.token_next"}}

A stage may also have ``examples`` (an ``.npz`` file), ``batch_axes`` and ``tolerance``; a loop ``each``, ``trips`` and
``at_max``; a state with ``from`` may be kept ``"in_place": true``. Paths are relative to the file's own folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.files import unrepeated
from lazybatch.program.parts import Append, Carry, Feed, Repeat
from lazybatch.program.spec import Program, Stage

PROGRAM_FILE = "program.json"
"""The file's name in a directory that holds a program."""
JSON_SUFFIX = ".json"
"""Of files that describe a program of stages."""
FORMAT_VERSION = 1

_PROGRAM = ("program", "name", "stages", "outputs")
_STAGE = ("name", "model", "inputs", "loop", "examples", "batch_axes", "tolerance")
_LOOP = ("carry", "each", "iteration", "done", "trips", "trips_max", "at_max", "collect")
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def is_program(source: Any) -> bool:
    """Whether it is a program of stages, its file, or the directory that holds one."""
    if isinstance(source, str | Path):
        path = Path(source)
        return path.suffix == JSON_SUFFIX or (path.is_dir() and (path / PROGRAM_FILE).exists())
    return isinstance(source, Program)


def load_program(path: str | Path) -> Program:
    """Read a program from its file, or from the directory that holds it as ``program.json``.

    Raises `InvalidInput` for whatever is wrong with the file, naming the file, the stage and the tensor; `ModelError`
    for a model or examples that are not there.
    """
    path = Path(path)
    path = path / PROGRAM_FILE if path.is_dir() else path
    document = _document(path)
    where = f"program {str(path)!r}"
    try:
        return _program(path, document)
    except (InvalidInput, ModelError) as error:
        raise type(error)(f"{where}: {error}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unrepeated)
    except OSError as error:
        raise InvalidInput(f"cannot read the program {str(path)!r}: {error.strerror or error}") from error
    except InvalidInput as error:
        raise InvalidInput(f"program {str(path)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{str(path)!r} is not a program: damaged or not JSON ({error})") from error
    if not isinstance(document, dict) or "program" not in document:
        raise InvalidInput(f'{str(path)!r} is not a program: expected a JSON object with "program": {FORMAT_VERSION}')
    return document


def _program(path: Path, document: Mapping[str, Any]) -> Program:
    if document["program"] != FORMAT_VERSION or isinstance(document["program"], bool):
        raise InvalidInput(f"it has format version {document['program']!r}, this lazybatch reads {FORMAT_VERSION}")
    _known("the program", document, _PROGRAM)
    name = _typed("the program", document, "name", str) if "name" in document else path.resolve().parent.name
    stages = [
        _stage(path.parent, _kind(f"stage {number}", one, dict))
        for number, one in enumerate(_typed("the program", document, "stages", list))
    ]
    return Program(name, tuple(stages), _texts("the program", document, "outputs"))


def _stage(folder: Path, given: Mapping[str, Any]) -> Stage:
    name = _typed("a stage", given, "name", str)
    where = f"stage {name!r}"
    _known(where, given, _STAGE)
    model = _file(folder, where, "model", _typed(where, given, "model", str))
    inputs = _typed(where, given, "inputs", dict) if "inputs" in given else {}
    examples = None
    if given.get("examples") is not None:
        examples = _file(folder, where, "examples", _typed(where, given, "examples", str))
    return Stage(
        name,
        model,
        {tensor: _feed(f"{where}: input {tensor!r}", one) for tensor, one in inputs.items()},
        None if given.get("loop") is None else _loop(where, _typed(where, given, "loop", dict)),
        examples=examples,
        batch_axes=_axes(where, given),
        tolerance=None if given.get("tolerance") is None else _number(where, given, "tolerance"),
    )


def _file(folder: Path, where: str, what: str, name: str) -> str:
    """A path beside the program. Raises `ModelError` where nothing is there."""
    path = folder / name
    if not name or not path.exists():
        raise ModelError(f"{where}: {what} {name!r}: no such file ({path})")
    return str(path)


def _axes(where: str, given: Mapping[str, Any]) -> dict[str, int | None] | None:
    if given.get("batch_axes") is None:
        return None
    axes: dict[str, int | None] = _typed(where, given, "batch_axes", dict)
    for tensor, axis in axes.items():
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or axis < 0):
            raise InvalidInput(f"{where}: batch_axes of {tensor!r} must be an axis from 0 on or null, got {axis!r}")
    return axes


def _feed(where: str, given: object) -> Feed:
    if isinstance(given, str):
        return Feed(given)
    one = _kind(where, given, dict)
    _known(where, one, ("of", "pad", "length_of"))
    pad: object = one.get("pad", ())
    sizes = [pad] if isinstance(pad, int) else _kind(f"{where}: pad", pad, list) if pad != () else ()
    texts = {key: _typed(where, one, key, str) for key in ("of", "length_of") if key in one}
    return Feed(pad=tuple(sizes), **texts)


def _loop(where: str, given: Mapping[str, Any]) -> Repeat:
    where = f"{where}: loop"
    _known(where, given, _LOOP)
    carry = _typed(where, given, "carry", dict) if "carry" in given else {}
    texts = {
        key: _typed(where, given, key, str) for key in ("iteration", "done", "at_max") if given.get(key) is not None
    }
    return Repeat(
        carry={tensor: _state(f"{where}: state {tensor!r}", one) for tensor, one in carry.items()},
        each=_texts(where, given, "each") if "each" in given else {},
        trips=None if given.get("trips") is None else _feed(f"{where}: trips", given["trips"]),
        trips_max=None if given.get("trips_max") is None else _typed(where, given, "trips_max", int),
        collect=tuple(
            _kind(f"{where}: collect", one, str)
            for one in (_typed(where, given, "collect", list) if "collect" in given else ())
        ),
        **texts,
    )


def _state(where: str, given: object) -> Carry | Append:
    if isinstance(given, str):
        return Carry(given)
    one = _kind(where, given, dict)
    if "append" in one:
        _known(where, one, ("append", "axis", "room"))
        return Append(*(_typed(where, one, key, kind) for key, kind in (("append", str), ("axis", int), ("room", int))))
    _known(where, one, ("from", "start", "in_place"))
    start = one.get("start", 0)
    return Carry(
        _typed(where, one, "from", str),
        start if isinstance(start, str) else _number(where, one, "start", 0),
        _typed(where, one, "in_place", bool) if "in_place" in one else False,
    )


def _known(where: str, given: Mapping[str, Any], keys: Collection[str]) -> None:
    unknown = [key for key in given if key not in keys]
    if unknown:
        raise InvalidInput(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(map(repr, keys))}")


def _typed(where: str, given: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in given:
        raise InvalidInput(f"{where}: {key!r} is missing")
    return _kind(f"{where}: {key!r}", given[key], kind)


def _kind(where: str, value: object, kind: type) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(f"{where} must be {_KINDS[kind]}, got {json.dumps(value):.80}")
    return value


def _number(where: str, given: Mapping[str, Any], key: str, default: float = 0) -> float:
    value: float = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{where}: {key!r} must be a number, got {json.dumps(value):.80}")
    return value


def _texts(where: str, given: Mapping[str, Any], key: str) -> dict[str, str]:
    found = _typed(where, given, key, dict)
    return {name: _kind(f"{where}: {key} {name!r}", text, str) for name, text in found.items()}
