"""The models benchmarks run: trained ones from installed packages, the zoo's, or any ONNX file.

Owns: names, files and seeded rows of inputs.
Must not know: what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lazybatch as lb
from bench.common import CACHE, progress
from graphs import zoo
from graphs.export import ExportError, ensure
from lazybatch.demo.models import find
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model file and a maker of inputs: ``batch(rows, seed)`` has a batch axis.

    cutting: options of `lazybatch.load` that say how it is cut, where the defaults are not what is wanted.
    """

    name: str
    path: Path
    batch: Callable[[int, int], Batch]
    cutting: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Model:
        """The model, split and planned for the shapes that are measured."""
        return lb.load(self.path, **{"example_inputs": self.rows(2), **self.cutting})

    def load_whole(self) -> Model:
        """The model as one node, as servers without node-level scheduling run it."""
        return lb.load(self.path, **{"example_inputs": self.rows(2), **self.cutting, "preempt_within": WHOLE_S})

    def rows(self, count: int, seed: int = 0) -> list[Batch]:
        """Rows without a batch axis, as callers submit them."""
        whole = self.batch(count, seed)
        return [{name: array[k] for name, array in whole.items()} for k in range(count)]


_PACKAGED = {
    "ppocr-det": ("detector", (3, 320, 320)),
    "ppocr-rec": ("reader", (3, 48, 320)),
    "ppocr-cls": ("direction", (3, 48, 192)),
}
LARGE, LARGE_SIDE, CUT_SIDE = "ppocr-det-960", 960, 320
"""The detector on a page instead of a label. It is cut by what it costs at a smaller size: inner values of large images
are too many bytes to be looked at all at once, and the shares of its nodes stay the same."""
LARGE_NODE_S = 0.010
"""No node of it longer than this, where there is a cut."""
WHOLE_S = 3600.0
NAMES = (*zoo.ZOO, *_PACKAGED, LARGE)
ZOO_FOLDER = CACHE / "zoo"


def subject(name: str, *, zoo_folder: Path = ZOO_FOLDER) -> Subject:
    """A model by name, or by the path of an ONNX file. Raises `InvalidInput` for neither.

    Zoo models are exported on first use (needs torch). Rows for a file are noise of its inputs' shapes, where every
    dimension but the first must be fixed.
    """
    if name in zoo.ZOO:
        progress(f"exporting {name}")
        try:
            path = ensure(name, zoo_folder)
        except ExportError as error:
            raise InvalidInput(str(error)) from error
        return Subject(name, path, lambda rows, seed: dict(zoo.sample(name, rows, seed=seed)))
    if name in _PACKAGED:
        kind, shape = _PACKAGED[name]
        return Subject(name, find(kind), partial(_noise, {"x": (shape, np.dtype(np.float32))}))
    if name == LARGE:
        return _large()
    path = Path(name)
    if path.suffix == ".onnx" and path.exists():
        return Subject(path.stem, path, partial(_noise, _inputs_of(path)))
    raise InvalidInput(f"model {name!r} is neither a file that exists nor one of {', '.join(NAMES)}")


def _large() -> Subject:
    kind, (channels, *_) = _PACKAGED["ppocr-det"]
    small, large = ({"x": ((channels, side, side), np.dtype(np.float32))} for side in (CUT_SIDE, LARGE_SIDE))
    whole = _noise(small, 2, 0)
    cutting = {
        "example_inputs": [{name: array[k] for name, array in whole.items()} for k in range(2)],
        "preempt_within": LARGE_NODE_S * (CUT_SIDE / LARGE_SIDE) ** 2,
    }
    return Subject(LARGE, find(kind), partial(_noise, large), cutting)


def _noise(inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], rows: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal((rows, *shape)).astype(dtype)
        if dtype.kind == "f"
        else rng.integers(0, 2, (rows, *shape)).astype(dtype)
        for name, (shape, dtype) in inputs.items()
    }


def _inputs_of(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)[1:]
        if not kind.shape.dim or not all(shape):
            raise InvalidInput(
                f"{path}: input {value.name!r} has varying dimensions besides the batch; the benchmark cannot tell "
                "which to use: export the model with fixed ones"
            )
        found[value.name] = (shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    return found
