"""From builder to file: exports a zoo model as ONNX with a dynamic batch and checks it against torch.

Owns: the call of torch's exporter and the comparison.
Must not know: the networks themselves.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.build import build
from graphs.zoo import LENGTH_DEFAULT, ZOO, file_name, sample

OPSET = 18
TOLERANCE = 1e-4
"""Largest |ONNX Runtime - torch| over the largest |torch|: two float32 libraries that sum in different orders."""


class ExportError(RuntimeError):
    """The model cannot be exported here, or what was exported does not compute what torch computes."""


def export(name: str, directory: Path, *, length: int | None = LENGTH_DEFAULT, seed: int = 0) -> Path:
    """Write ``name`` into ``directory`` and return the file; a file already there is replaced in one step.

    length: tokens per row, where rows have such; None leaves it dynamic too. The same seed gives the same weights.
    """
    try:
        import torch
    except ModuleNotFoundError as missing:
        raise ExportError("building the zoo needs torch: pip install 'lazybatch[torch]'") from missing
    entry = ZOO[name]
    model = build(name, seed)
    example = tuple(torch.from_numpy(array) for array in sample(name, 2, length=length or LENGTH_DEFAULT).values())
    axes: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=1 << 16)}
    if entry.tokens and length is None:
        axes[1] = torch.export.Dim("length", min=2, max=512)
    path = directory / file_name(name, length)
    write(model, path, dict(zip(entry.inputs, example, strict=True)), entry.outputs, axes)
    return path


def write(
    model: Any,
    path: Path,
    example: Mapping[str, Any],
    outputs: Sequence[str],
    axes: Mapping[int, Any] | None = None,
    translations: Mapping[Any, Callable[..., Any]] | None = None,
) -> None:
    """Write a torch module as one ONNX file; a file already there is replaced in one step.

    example: its arguments in order, tensors by the names the inputs are to have. axes: what may vary, by dimension;
    None: the batch. translations: ONNX forms of operators that torch does not know.
    """
    import torch

    varying = {0: torch.export.Dim("batch", min=1, max=1 << 16)} if axes is None else axes
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                tuple(example.values()),
                input_names=list(example),
                output_names=list(outputs),
                opset_version=OPSET,
                dynamic_shapes=_shapes(model, len(example), varying),
                custom_translation_table=dict(translations or {}),
                dynamo=True,
                external_data=False,
            )
            assert program is not None, "the exporter returns a program unless it is given a file"
            program.save(str(partial), external_data=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _shapes(model: Any, count: int, axes: Mapping[int, Any]) -> tuple[Any, ...]:
    """The same axes for every argument, as ``forward`` takes them: starred ones together."""
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    plain = sum(kind is not inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    shapes: tuple[Any, ...] = tuple(axes for _ in range(min(plain, count)))
    return shapes if plain == len(kinds) else (*shapes, tuple(axes for _ in range(count - plain)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's exporter, whose progress report and warnings about itself say nothing of the model."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def ensure(name: str, directory: Path, *, length: int | None = LENGTH_DEFAULT, seed: int = 0) -> Path:
    """The exported file, made now if it is not there yet."""
    path = directory / file_name(name, length)
    return path if path.exists() else export(name, directory, length=length, seed=seed)


def compare(name: str, path: Path, *, rows: int = 3, length: int = LENGTH_DEFAULT, seed: int = 0) -> float:
    """Largest difference between ONNX Runtime on the file and torch on the same inputs, relative to the largest value.

    Raises `ExportError` above `TOLERANCE`, or when torch's own answer is not finite.
    """
    import torch

    from lazybatch.executors.ort.session import open_session

    inputs = sample(name, rows, length=length, seed=seed + 1)
    model = build(name, seed)
    with torch.no_grad():
        answer = model(*(torch.from_numpy(array) for array in inputs.values()))
    wanted = [tensor.numpy() for tensor in (answer if isinstance(answer, tuple) else (answer,))]
    session = open_session(path, optimise=True)
    got = session.run(list(ZOO[name].outputs), inputs)
    difference = max(relative(ours, theirs) for ours, theirs in zip(got, wanted, strict=True))
    if not difference <= TOLERANCE:
        raise ExportError(f"{path}: differs from torch by {difference:.2e} of the largest value, allowed {TOLERANCE}")
    return difference


def relative(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Largest difference over the largest of ``theirs``; NaN where those are not finite."""
    if not np.isfinite(theirs).all():
        return float("nan")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def describe(path: Path) -> Mapping[str, object]:
    """Size and shapes of an exported file."""
    import onnx

    model = onnx.load(str(path))

    def shape(value: Any) -> list[object]:
        return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]

    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "operators": len(model.graph.node),
        "opset": next(entry.version for entry in model.opset_import if entry.domain == ""),
        "inputs": {value.name: shape(value) for value in model.graph.input},
        "outputs": {value.name: shape(value) for value in model.graph.output},
    }
