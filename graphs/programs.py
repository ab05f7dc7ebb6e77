"""The models with loops, from builder to program: a folder of ONNX files with ``program.json``, or torch modules.

Owns: `export_program`, `compare_program`, `ensure_program` and `torch_program`.
Must not know: the networks themselves; how programs are loaded and run.

A folder holds one ONNX file per stage with its weights inside, ``STAGE.npz`` with rows that the stage accepts (to
probe it with), ``program.json``, and ``lengths.csv``: source and target lengths for ``lazybatch characterize``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphs.export import TOLERANCE, ExportError, relative, write
from graphs.plans import Part, plan
from graphs.sizes import FULL, Size, draw_lengths
from lazybatch.program import Program
from lazybatch.program.file import PROGRAM_FILE
from lazybatch.program.saving import save_program

if TYPE_CHECKING:
    from torch import Tensor, nn

LENGTHS_FILE = "lengths.csv"
EXAMPLE_ROWS = 3
CHARACTERISED = 2000
"""Pairs in the file of lengths."""
CHARACTERISED_SEED = 1 << 20
"""Far from the seeds of requests: what is characterised is not what is served."""


def build_stages(name: str, size: Size, seed: int = 0) -> dict[str, nn.Module]:
    """The stages' modules in evaluation mode. Raises `ExportError` where torch is missing."""
    try:
        made: dict[str, nn.Module] = importlib.import_module(f"graphs.{name}").build(size, seed)
    except ModuleNotFoundError as missing:
        raise ExportError("building the zoo needs torch: pip install 'lazybatch[torch]'") from missing
    return made


def export_program(name: str, directory: Path, *, size: Size | None = None, seed: int = 0) -> Path:
    """Write a model into ``directory / name`` and return the path of its ``program.json``.

    size: as published where None. Files already there are replaced one by one, ``program.json`` last.
    """
    size = size or FULL[name]
    modules = build_stages(name, size, seed)
    from graphs.recurrent import translations

    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    made = plan(name, size)
    for part in made.parts:
        examples = part.examples(EXAMPLE_ROWS, seed)
        path = folder / f"{part.name}.onnx"
        write(modules[part.name], path, _tensors(examples), part.outputs, translations=translations())
        with _replacing(folder / f"{part.name}.npz") as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **examples)
    write_lengths(size, folder / LENGTHS_FILE)
    models = {part.name: folder / f"{part.name}.onnx" for part in made.parts}
    return save_program(made.program(models, {name: path.with_suffix(".npz") for name, path in models.items()}), folder)


def write_lengths(size: Size, path: Path) -> None:
    """Write lengths as the model's requests have them, of other requests than any seed below a million gives."""
    pairs = draw_lengths(size, CHARACTERISED, seed=CHARACTERISED_SEED)
    with _replacing(path) as partial:
        partial.write_text("input,output\n" + "".join(f"{source},{target}\n" for source, target in pairs))


def ensure_program(name: str, directory: Path, *, size: Size | None = None, seed: int = 0) -> Path:
    """The exported program's file, made now if it is not there yet."""
    path = directory / name / PROGRAM_FILE
    return path if path.exists() else export_program(name, directory, size=size, seed=seed)


def compare_program(
    name: str, path: Path, *, size: Size | None = None, rows: int = 3, seed: int = 0
) -> dict[str, float]:
    """Per stage the largest difference between ONNX Runtime on its file and torch, relative to the largest value.

    Raises `ExportError` above the tolerance, for whole numbers that differ at all, and where torch's own answer is not
    finite.
    """
    size = size or FULL[name]
    modules = build_stages(name, size, seed)
    return {
        part.name: _compare(part, modules[part.name], path.parent / f"{part.name}.onnx", part.examples(rows, seed + 1))
        for part in plan(name, size).parts
    }


def _compare(part: Part, module: nn.Module, path: Path, inputs: Mapping[str, NDArray[Any]]) -> float:
    import torch

    from lazybatch.executors.ort.session import open_session

    with torch.inference_mode():
        answer = module(*_tensors(inputs).values())
    got = open_session(path, optimise=True).run(list(part.outputs), dict(inputs))
    worst = 0.0
    for name, ours, tensor in zip(part.outputs, got, answer, strict=True):
        theirs = tensor.numpy()
        if theirs.dtype.kind == "f":
            difference = relative(ours, theirs)
        else:
            difference = 0.0 if np.array_equal(ours, theirs) else float("nan")
        if not difference <= TOLERANCE:
            raise ExportError(
                f"{path}: output {name!r} differs from torch by {difference:.2e} of the largest value, "
                f"allowed {TOLERANCE}"
            )
        worst = max(worst, difference)
    return worst


def torch_program(name: str, *, size: Size | None = None, seed: int = 0) -> Program:
    """A model as a program of torch modules, for `lazybatch.load`. size: as published where None."""
    size = size or FULL[name]
    modules = build_stages(name, size, seed)
    made = plan(name, size)
    from graphs.named import Named

    named = {part.name: Named(modules[part.name], tuple(part.inputs), part.outputs) for part in made.parts}
    return made.program(named, {part.name: part.examples(EXAMPLE_ROWS, seed) for part in made.parts})


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes ``path`` when all went well."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
