"""Proof by trial that padding changes no answer.

Owns: `prove`: rows of several lengths, each alone at its own length and padded to every length that holds it.
Must not know: how padded rows are served (`padded`), the scheduler.

Declared rules are not trusted, as declared shapes are not: a mask that the model ignores, a mean over all positions, or
a fill that means something would give callers wrong answers that look right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.admission import row_dims
from lazybatch.executors.padding.pad import Pad
from lazybatch.executors.rows import handed_out, with_axis
from lazybatch.partition.pieces import Kind, Partition

Values = dict[str, NDArray[Any]]


class Paddable(Protocol):
    """What padding needs of a model: any that was made of a partition."""

    @property
    def partition(self) -> Partition:
        """What it was cut into."""

    def sample_row(self, seed: int) -> dict[str, Any]:
        """One made-up row as callers give it."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """A whole batch, batch axis included."""


class Proof(NamedTuple):
    """trim: outputs with a length, and its axis. deviation: the largest seen, over the largest magnitude in the answer.

    compared: pairs of runs.
    """

    trim: Mapping[str, int]
    deviation: float
    compared: int


def check_rule(partition: Partition, pad: Pad) -> None:
    """Raise `ModelError` where a rule cannot be meant for this model."""
    model = partition.model
    if partition.reason is not None:
        raise ModelError(f"model {model!r}: rows cannot share a batch, so padding is of no use: {partition.reason}")
    for name, fill in pad.fills.items():
        if name not in partition.inputs:
            known = ", ".join(map(repr, partition.inputs))
            raise ModelError(f"model {model!r}: pad names the input {name!r}; it has {known}")
        boundary = partition.boundaries[name]
        dims = row_dims(boundary)
        if boundary.kind is not Kind.ROWS or boundary.axis is None or not boundary.unit:
            raise ModelError(f"model {model!r}: input {name!r} is not one row's own, so it cannot be padded by row")
        if dims is not None and (pad.axis >= len(dims) or dims[pad.axis] is not None):
            raise ModelError(
                f"model {model!r}: input {name!r} has shape {_shown(dims)} per row; padding needs axis {pad.axis} "
                "to be free"
            )
        if name == pad.mask and dims is not None and len(dims) != 1:
            raise ModelError(f"model {model!r}: mask {name!r} must have the length only, its rows are {_shown(dims)}")
        if boundary.dtype == "object" or np.array(fill).astype(boundary.dtype) != fill:
            raise ModelError(f"model {model!r}: input {name!r} of type {boundary.dtype} cannot be filled with {fill!r}")
    for name in pad.trim or {}:
        if name not in partition.outputs:
            known = ", ".join(map(repr, partition.outputs))
            raise ModelError(f"model {model!r}: trim names the output {name!r}; it has {known}")


def stretched(partition: Partition, pad: Pad, row: Mapping[str, Any], length: int) -> Values:
    """A made-up row at a length of our choice: what it has of one, repeated.

    The mask says that all is real. Other inputs of zeros and ones may be masks too: no row is masked as a whole.
    """
    made = {name: np.asarray(value) for name, value in row.items()}
    for name in pad.fills:
        value = made[name]
        if name == pad.mask:
            made[name] = np.ones(length, dtype=value.dtype)
            continue
        places = np.arange(length) % max(1, value.shape[pad.axis])
        made[name] = np.take(value, places, axis=pad.axis)
        if value.dtype.kind in "iub" and value.size and value.min() >= 0 and value.max() <= 1:
            made[name][(slice(None),) * pad.axis + (0,)] = 1
    return made


def prove(model: Paddable, pad: Pad) -> Proof:
    """Try the rule. Raises `ModelError` saying which output of which row padding changes, and by how much."""
    partition = model.partition
    check_rule(partition, pad)
    trim = dict(pad.trim or {})
    deviation, compared = 0.0, 0
    refused: Exception | None = None
    for seed, length in enumerate(_tried(pad.to)):
        row = stretched(partition, pad, model.sample_row(seed), length)
        try:
            alone = _answer(model, row)
        except (ExecutionError, InvalidInput) as error:
            refused = refused or error  # some models take no row as short as this
            continue
        for bucket in pad.to:
            if bucket <= length:
                continue
            try:
                padded = _answer(model, pad.padded(row, bucket))
            except ExecutionError as error:
                raise ModelError(
                    f"model {partition.model!r}: a row of length {length}, padded to {bucket}, cannot be run: {error}"
                ) from error
            deviation = max(deviation, _compare(partition, pad, trim, alone, padded, length, bucket))
            compared += 1
    if not compared and len(_tried(pad.to)) > len(pad.to):
        raise ModelError(f"model {partition.model!r}: no row of a length below {pad.to[-1]} could be run: {refused}")
    return Proof(trim, deviation, compared)


def _tried(lengths: Sequence[int]) -> list[int]:
    """Lengths to try: the shortest, a middle and the longest that each padded length is for."""
    tried, least = set(), 1
    for most in lengths:
        tried |= {least, (least + most) // 2, most}
        least = most + 1
    return sorted(tried)


def _answer(model: Paddable, row: Mapping[str, NDArray[Any]]) -> Values:
    """One row's answers, without batch axis. Raises `ExecutionError`."""
    boundaries = model.partition.boundaries
    answers = model.run({name: with_axis(boundaries[name], value) for name, value in row.items()})
    return {
        name: np.asarray(handed_out(boundaries[name], np.asarray(value), 1, 1, joinable=True)[0])
        for name, value in answers.items()
    }


def _compare(
    partition: Partition, pad: Pad, trim: dict[str, int], alone: Values, padded: Values, length: int, bucket: int
) -> float:
    """The largest relative deviation of one padded row; notes which outputs have the length."""
    worst = 0.0
    for name, want in alone.items():
        got = padded[name]
        said = f"model {partition.model!r}: output {name!r} of a row of length {length}, padded to {bucket},"
        if want.shape != got.shape:
            axis = _grown(want.shape, got.shape, length, bucket)
            if axis is None or trim.get(name, axis) != axis or (pad.trim is not None and name not in pad.trim):
                declared = "" if axis is None else f"; its length lies on axis {axis}: trim={{{name!r}: {axis}}}"
                raise ModelError(f"{said} has the shape {list(got.shape)} instead of {list(want.shape)}{declared}")
            trim[name] = axis
            got = np.take(got, np.arange(length), axis=axis)
        elif name in trim:
            raise ModelError(f"{said} has the shape {list(got.shape)} like the row itself; there is nothing to trim")
        off = _deviation(want, got)
        if not off <= pad.tolerance:
            hint = "" if pad.mask is not None else "; where the model takes a mask, it must be among the padded inputs"
            raise ModelError(f"{said} differs by {off:.2g} of its magnitude (allowed: {pad.tolerance:g}){hint}")
        worst = max(worst, off)
    return worst


def _grown(alone: tuple[int, ...], padded: tuple[int, ...], length: int, bucket: int) -> int | None:
    """The one axis that grew from the length to the padded length; None where it is not so."""
    if len(alone) != len(padded):
        return None
    other = [axis for axis, (a, b) in enumerate(zip(alone, padded, strict=True)) if a != b]
    if len(other) != 1 or alone[other[0]] != length or padded[other[0]] != bucket:
        return None
    return other[0]


def _deviation(want: NDArray[Any], got: NDArray[Any]) -> float:
    """The largest deviation over the largest magnitude; of what is no float: 0 where equal, else infinite."""
    if want.dtype.kind not in "fc":
        return 0.0 if np.array_equal(want, got) else float("inf")
    if want.size == 0 or np.array_equal(want, got, equal_nan=True):
        return 0.0
    magnitude = float(np.abs(want).max())
    return float(np.abs(want - got).max()) / max(magnitude, float(np.finfo(want.dtype).tiny))


def _shown(dims: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if dim is None else str(dim) for dim in dims) + "]"
