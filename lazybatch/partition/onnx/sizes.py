"""Does the model steer by the number of rows? Looked at by running, element by element.

Owns: the judgement of nodes whose size-marked operands might vary with the rows in steps (a threshold, a remainder).
Must not know: rows' values, cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lazybatch.partition.onnx.taint import SizeUse
from lazybatch.partition.proof.rows import Array
from lazybatch.partition.proof.traits import Outcome

ORDERINGS = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"})
EXTREMES = frozenset({"Max", "Clip"})
ROUNDINGS = frozenset({"Floor", "Ceil", "Round", "Cast"})
UNBOUNDED = 2**31 - 1


def steering(uses: Sequence[SizeUse], runs: Sequence[Outcome], observed: frozenset[str]) -> str | None:
    """The first node that steers by the number of rows, as a sentence; None where there is none.

    runs: values of the operands at 1, 2 and 3 rows. observed: names whose mark is size and not data.
    """
    for use in uses:
        varying = {name: _varies([run[name] for run in runs]) for name in use.operands if name in observed}
        if not any(mask is None or mask.any() for mask in varying.values()):
            continue
        if not _harmless(use, runs, varying):
            return f"operator {use.operator} (makes {use.made!r}) steers by the number of rows in the batch"
    return None


def _varies(values: Sequence[Array]) -> Array | None:
    """Which elements change with the number of rows; None where the shape does, and not by equal slices."""
    if all(value.shape == values[0].shape for value in values):
        return np.asarray(np.logical_or.reduce([value != values[0] for value in values[1:]]))
    if any(value.ndim != values[0].ndim for value in values):
        return None
    for axis in range(values[0].ndim):
        sizes = [value.shape[axis] for value in values]
        if sizes == [sizes[0], 2 * sizes[0], 3 * sizes[0]] and sizes[0]:
            parts = [part for value, n in zip(values, (1, 2, 3), strict=True) for part in np.split(value, n, axis=axis)]
            if all(np.array_equal(part, values[0]) for part in parts):
                return np.zeros(values[-1].shape, dtype=bool)
    return None


def _harmless(use: SizeUse, runs: Sequence[Outcome], varying: dict[str, Array | None]) -> bool:
    if any(mask is None for mask in varying.values()):
        return False
    if use.operator in ROUNDINGS:
        return all(_integral(run[name]) for run in runs for name in varying)
    if any(name not in varying and name not in run for run in runs for name in use.operands):
        return False
    if use.operator == "Div":
        return all(_divides(run[use.operands[0]], run[use.operands[1]]) for run in runs)
    if use.operator in ORDERINGS | EXTREMES and len(use.operands) >= 2:
        return _below_one(use, runs, varying)
    return False


def _integral(value: Array) -> bool:
    return value.dtype.kind != "f" or bool(np.all(value == np.round(value)))


def _divides(a: Array, b: Array) -> bool:
    if a.dtype.kind == "f":
        return True
    return bool(np.all(b != 0) and np.all(a % np.where(b == 0, 1, b) == 0))


def _below_one(use: SizeUse, runs: Sequence[Outcome], varying: dict[str, Array | None]) -> bool:
    """A number of rows is at least 1: comparing it with what is not above 0 (or 1, for a maximum) decides nothing."""
    limit = 1 if use.operator in EXTREMES else 0
    a, b = use.operands[0], use.operands[1]
    if all(np.array_equal(run[a], run[b]) for run in runs):
        return True
    if use.operator == "Clip" and len(use.operands) > 2 and any(run[use.operands[2]].min() < UNBOUNDED for run in runs):
        return False
    last = runs[-1]
    no = np.zeros((), dtype=bool)
    moves_a, moves_b = varying.get(a), varying.get(b)
    mask_a, mask_b = np.broadcast_arrays(no if moves_a is None else moves_a, no if moves_b is None else moves_b)
    value_a, value_b = np.broadcast_arrays(last[a], last[b])
    if mask_a.shape != value_a.shape:
        mask_a, mask_b = np.broadcast_to(mask_a, value_a.shape), np.broadcast_to(mask_b, value_a.shape)
    if (mask_a & mask_b).any():
        return False
    if not (_counts_rows(runs, a, moves_a) and _counts_rows(runs, b, moves_b)):
        return False
    return bool(np.all(value_b[mask_a] <= limit) and np.all(value_a[mask_b] <= limit))


def _counts_rows(runs: Sequence[Outcome], name: str, moves: Array | None) -> bool:
    """Whether what varies is at least 1 and rises with the rows; "rows - 8" is below 1 only as long as they are few."""
    if moves is None or not moves.any():
        return True
    values = [run[name][moves] for run in runs]
    return bool(np.all(values[0] >= 1) and all(np.all(b > a) for a, b in pairwise(values)))
