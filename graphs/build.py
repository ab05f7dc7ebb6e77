"""The zoo as torch modules: built with seeded weights, loaded by lazybatch, or written as exported programs.

Owns: `build`, `arguments`, `load` and `save`.
Must not know: the networks themselves; ONNX.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lazybatch as lb
from graphs.zoo import LENGTH_DEFAULT, ZOO, file_name, sample
from lazybatch.executors.base import Model

if TYPE_CHECKING:
    from torch import Tensor, nn

ROWS_MAX = 1 << 16


class BuildError(RuntimeError):
    """A model cannot be built here."""


def build(name: str, seed: int = 0) -> nn.Module:
    """A network in evaluation mode, its weights seeded. Raises `BuildError` where torch is missing."""
    try:
        module: nn.Module = importlib.import_module(ZOO[name].module).build(seed)
    except ModuleNotFoundError as missing:
        raise BuildError("building the zoo needs torch: pip install 'lazybatch[torch]'") from missing
    return module


def arguments(name: str, rows: int, *, length: int = LENGTH_DEFAULT, seed: int = 0) -> tuple[Tensor, ...]:
    """Seeded arguments of one call, as `graphs.zoo.sample` makes them."""
    import torch

    return tuple(torch.from_numpy(array) for array in sample(name, rows, length=length, seed=seed).values())


def load(name: str, *, length: int = LENGTH_DEFAULT, seed: int = 0, **options: Any) -> Model:
    """A network as a model that lazybatch serves. options: of `lazybatch.load`."""
    return lb.load(build(name, seed), example_inputs=arguments(name, 2, length=length), **options)


def save(name: str, directory: Path, *, length: int = LENGTH_DEFAULT, seed: int = 0) -> Path:
    """Write a network as an exported program with a dynamic batch; a file already there is replaced in one step."""
    module = build(name, seed)
    import torch

    axes = {0: torch.export.Dim("batch", min=1, max=ROWS_MAX)}
    example = arguments(name, 2, length=length)
    program = torch.export.export(module, example, dynamic_shapes=tuple(axes for _ in example))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / Path(file_name(name, length)).with_suffix(".pt2").name
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        torch.export.save(program, str(partial))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
