"""The models with loops that benchmarks run: exported on first use, with seeded rows and lengths that were seen.

Owns: `Looped` and `looped`: names, files, rows, how often a row really goes round; `served`, any model by name.
Must not know: what is measured, how programs are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lazybatch as lb
from bench.common import CACHE, progress
from bench.models import NAMES, Subject, subject
from graphs.build import BuildError
from graphs.export import ExportError
from graphs.programs import LENGTHS_FILE, ensure_program, write_lengths
from graphs.sizes import FULL, SHORT, TINY, Row, Size, requests
from graphs.trained import LENGTHS_FILE as TRAINED_LENGTHS_FILE
from graphs.trained import TRAINED
from lazybatch.checking.rows import varied_rows
from lazybatch.errors import InvalidInput
from lazybatch.program.file import is_program

ZOO_FOLDER = CACHE / "zoo"
TINY_FOLDER = CACHE / "zoo-tiny"
SHORT_LENGTHS_FILE = "lengths-short.csv"


@dataclass(frozen=True, slots=True)
class Looped:
    """A program's file and a maker of rows. make: rows as callers submit them, from a number and a seed.

    trips: how many iterations a row makes in each loop, in order; what a simulation needs to be told.
    lengths: file of (source, target) lengths that were seen, none of them of the rows that are served.
    """

    name: str
    path: Path
    make: Callable[[int, int], list[Row]]
    trips: Callable[[Row], tuple[int, ...]]
    lengths: Path

    def load(self) -> Any:
        """The model, its stages split and proved joinable or not."""
        return lb.load(self.path)

    def rows(self, count: int, seed: int = 0) -> list[Row]:
        """Rows of different lengths, without a batch axis."""
        return self.make(count, seed)


def _zoo(name: str, sizes: Mapping[str, Size], folder: Path) -> Looped:
    progress(f"exporting {name}")
    try:
        path = ensure_program(name, folder, size=sizes[name])
    except ExportError as error:
        raise InvalidInput(str(error)) from error
    return Looped(
        name,
        path,
        lambda count, seed: requests(sizes[name], count, seed=seed),
        lambda row: (int(row["target_length"]),),
        path.parent / LENGTHS_FILE,
    )


def _short(name: str) -> Looped:
    """The published model with shorter requests, and the lengths of such."""
    full, size = _zoo(name, FULL, ZOO_FOLDER), SHORT[name]
    lengths = full.path.parent / SHORT_LENGTHS_FILE
    if not lengths.exists():
        write_lengths(size, lengths)
    return replace(
        full, name=f"{name}-short", make=lambda count, seed: requests(size, count, seed=seed), lengths=lengths
    )


def _trained(name: str) -> Looped:
    progress(f"exporting {name}")
    model = TRAINED[name]
    try:
        path = model.export(ZOO_FOLDER)
    except BuildError as error:
        raise InvalidInput(str(error)) from error
    return Looped(name, path, model.requests, model.trips, path.parent / TRAINED_LENGTHS_FILE)


LOOPED: Mapping[str, Callable[[], Looped]] = {
    **{name: partial(_zoo, name, FULL, ZOO_FOLDER) for name in FULL},
    **{f"{name}-short": partial(_short, name) for name in SHORT},
    **{f"{name}-tiny": partial(_zoo, name, TINY, TINY_FOLDER) for name in TINY},
    **{name: partial(_trained, name) for name in TRAINED},
}
"""By name; exported when asked for (needs torch, or the package that a trained one lies in)."""


@dataclass(slots=True)
class ProgramFile:
    """A program by its file, with made-up rows of different lengths; how often they go round, only a run tells."""

    name: str
    path: Path
    _model: Any = None

    def load(self) -> Any:
        """The program, its stages split and proved."""
        if self._model is None:
            self._model = lb.load(self.path)
        return self._model

    def rows(self, count: int, seed: int = 0) -> list[Row]:
        """Rows without a batch axis, as callers submit them."""
        return varied_rows(self.load(), count, seed)


def served(name: str) -> Subject | Looped | ProgramFile:
    """A model with loops or without, by name, or by the path of an ONNX file or a program. Raises `InvalidInput`."""
    if name in LOOPED:
        return looped(name)
    path = Path(name)
    if is_program(path) and path.exists():
        return ProgramFile(path.resolve().parent.name if path.is_file() else path.resolve().name, path)
    if name not in NAMES and not path.exists():
        known = ", ".join((*NAMES, *LOOPED))
        raise InvalidInput(f"model {name!r} is neither a file that exists nor one of {known}")
    return subject(name)


def looped(name: str) -> Looped:
    """A model with loops by name. Raises `InvalidInput` for a name that is none."""
    if name not in LOOPED:
        raise InvalidInput(f"model {name!r} is no program; known are {', '.join(LOOPED)}")
    return LOOPED[name]()
