"""Rows to measure a model with, made up from what its partition knows.

Owns: `sample_row` and `row_bytes`: shapes and value ranges the model was seen to accept when it was partitioned.
Must not know: sessions, buffers, what the rows are measured for.

The partition's provenance carries ``example``: input name -> {"shape": shape at one row, batch axis included,
"range": inclusive bounds of integers or None}. Without it, shapes the model declares in full are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput
from lazybatch.partition.pieces import Boundary, Kind, Partition

_WORDS = ("a", "B c", "longer text", "42")


def sample_row(partition: Partition, seed: int) -> dict[str, Any]:
    """One row as callers give it. Rows of different seeds differ, have one shape, and may share a sub-batch.

    Raises `InvalidInput` naming an input whose shape is not known.
    """
    examples = _examples(partition)
    row: dict[str, Any] = {}
    for number, name in enumerate(partition.inputs):
        boundary = partition.boundaries[name]
        example = examples.get(name, {})
        shape = _shape(partition.model, boundary, example.get("shape"))
        # Inputs that rows of one sub-batch must share are the same for every seed.
        own = seed if boundary.kind is Kind.ROWS else 0
        try:
            row[name] = _values(np.random.default_rng((own, number)), boundary.dtype, shape, example.get("range"))
        except TypeError as error:
            raise _no_values(partition, boundary) from error
    return row


def row_bytes(partition: Partition) -> dict[str, int]:
    """Bytes of each input of such a row (of text: of pointers to it), without making it up. Raises `InvalidInput`."""
    examples = _examples(partition)
    sizes: dict[str, int] = {}
    for name in partition.inputs:
        boundary = partition.boundaries[name]
        shape = _shape(partition.model, boundary, examples.get(name, {}).get("shape"))
        try:
            sizes[name] = math.prod(shape) * np.dtype(boundary.dtype).itemsize
        except TypeError as error:
            raise _no_values(partition, boundary) from error
    return sizes


def _examples(partition: Partition) -> Mapping[str, Any]:
    noted = partition.provenance.get("example")
    return noted if isinstance(noted, Mapping) else {}


def _no_values(partition: Partition, boundary: Boundary) -> InvalidInput:
    return InvalidInput(
        f"model {partition.model!r}: no values can be made up for input {boundary.name!r} of type {boundary.dtype}: "
        "give rows to measure with"
    )


def _shape(model: str, boundary: Boundary, known: Any) -> tuple[int, ...]:
    axis = boundary.axis if boundary.kind is Kind.ROWS else None
    if known is None:
        dims = boundary.dims
        if dims is None or any(dim is None and k != axis for k, dim in enumerate(dims)):
            raise InvalidInput(
                f"model {model!r} leaves the shape of input {boundary.name!r} open and was partitioned without an "
                "example: give rows to measure with"
            )
        known = [1 if dim is None else dim for dim in dims]
    return tuple(size for k, size in enumerate(known) if not (boundary.unit and k == axis))


def _values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], bounds: Any) -> NDArray[Any]:
    if dtype == "object":
        return np.asarray(rng.choice(np.array(_WORDS, dtype=object), shape), dtype=object)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    if dtype.startswith(("int", "uint")):
        low, high = bounds if bounds is not None else (0, 1)
        return np.asarray(rng.integers(low, high, shape, endpoint=True), dtype=dtype)
    return np.asarray(rng.standard_normal(shape), dtype=dtype)
