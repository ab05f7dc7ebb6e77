"""What runs prove of a single value: rows, shared, a size, or nothing.

Owns: `Trait`, `Trial`, and the comparison of rows alone with rows joined.
Must not know: which values are outputs, how runs are made, cuts.

GEMM kernels differ with the batch size, so joined rows are compared with single ones within a tight tolerance of the
row's own magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.rows import Array

TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
"""Largest |joined - alone| over the row's own magnitude that kernels of one precision may differ by."""

ROUGHLY = 1e-2
"""Inner values may cancel and lose digits; a row that is another row's, or a mean over rows, is further off."""

Outcome = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Trait:
    """What the probes proved of one value.

    dims: sizes, None per dimension that was seen to vary. why: what keeps it from being any proven kind.
    mixes: whether it cannot be laid out as one part per row at all: then, if it was made from rows, it ties them
    together, even where a model's outputs show nothing of it (a threshold that no probe reached).
    """

    kind: Kind
    dtype: str
    axis: int | None = None
    unit: bool = True
    proportional: tuple[bool, ...] | None = None
    dims: tuple[int | None, ...] | None = None
    why: str | None = None
    mixes: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs of one recipe and seed: each row alone, all joined, all in another order."""

    alone: list[Outcome]
    pair: Outcome
    joined: Outcome
    turned: Outcome


ORDER = (2, 0, 1)


def classify(name: str, trial: Trial, tolerance: float | None) -> Trait:
    """What a value is to the rows, as one trial shows it."""
    first = trial.joined[name]
    dtype = str(first.dtype) if first.dtype.kind not in "OSU" else "object"
    shapes = [run[name].shape for run in (*trial.alone, trial.pair, trial.joined)]
    if len({len(shape) for shape in shapes}) > 1:
        return Trait(Kind.OPAQUE, dtype, why="its number of dimensions depends on the number of rows", mixes=True)
    dims = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    axis = axis_of(name, trial)
    if axis == -2:
        why = "at more rows its shape changes, but not by one axis growing with the rows"
        return Trait(Kind.OPAQUE, dtype, dims=dims, why=why, mixes=True)
    if axis == -1:
        return _unbatched(name, trial, dtype, dims)
    why_not = _rows_differ(name, trial, axis, dtype, tolerance)
    if why_not is not None:
        return Trait(Kind.OPAQUE, dtype, dims=dims, why=why_not, mixes=not _interleaved(name, trial, axis, dtype))
    return Trait(Kind.ROWS, dtype, axis=axis, unit=trial.alone[0][name].shape[axis] == 1, dims=dims)


def agree(a: Trait, b: Trait) -> Trait:
    """What two trials prove together."""
    if a.kind is Kind.OPAQUE or b.kind is Kind.OPAQUE:
        return max((t for t in (a, b) if t.kind is Kind.OPAQUE), key=lambda t: t.mixes)
    dims = None
    if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
        dims = tuple(x if x == y else None for x, y in zip(a.dims, b.dims, strict=True))
    same_proof = (a.kind, a.axis, a.proportional, a.dtype) == (b.kind, b.axis, b.proportional, b.dtype)
    if dims is None or not same_proof:
        why = "it follows the rows in one way for some inputs only"
        empty = 0 in (*(a.dims or ()), *(b.dims or ()))  # nothing lies in any way at all
        apart = a.kind is Kind.ROWS and b.kind is Kind.ROWS  # if not on one axis
        return Trait(Kind.OPAQUE, a.dtype, dims=dims, why=why, mixes=not (empty or apart))
    return replace(a, dims=dims, unit=a.unit and b.unit)


def axis_of(name: str, trial: Trial) -> int:
    """The one axis that is n times longer at n rows; -1 where no shape changes, -2 where they change otherwise."""
    one, two, three = trial.alone[0][name].shape, trial.pair[name].shape, trial.joined[name].shape
    if any(run[name].shape != one for run in trial.alone):
        return -2
    changed = [k for k in range(len(one)) if not one[k] == two[k] == three[k]]
    if not changed:
        return -1
    if len(changed) > 1:
        return -2
    axis = changed[0]
    return axis if two[axis] == 2 * one[axis] and three[axis] == 3 * one[axis] else -2


def _unbatched(name: str, trial: Trial, dtype: str, dims: tuple[int | None, ...]) -> Trait:
    """SHARED or SIZE: equal in every run, or an integer multiple of the rows element by element."""
    one, two, three = trial.alone[0][name], trial.pair[name], trial.joined[name]
    if not all(same(run[name], one) for run in trial.alone) or not same(trial.turned[name], three):
        why = "it has no axis for the rows, yet depends on their values"
        return Trait(Kind.OPAQUE, dtype, dims=dims, why=why, mixes=0 not in one.shape)
    if same(one, two) and same(one, three):
        return Trait(Kind.SHARED, dtype, dims=dims)
    if one.dtype.kind in "iu":
        fixed = (one == two) & (one == three)
        multiple = (two == 2 * one) & (three == 3 * one) & (one != 0)
        if np.all(fixed | multiple):
            mask = tuple(bool(m) for m in multiple.reshape(-1))
            return Trait(Kind.SIZE, dtype, proportional=mask, dims=dims)
    return Trait(Kind.OPAQUE, dtype, dims=dims, why="its value depends on the number of rows")


def _rows_differ(name: str, trial: Trial, axis: int, dtype: str, tolerance: float | None) -> str | None:
    """Why the joined runs are not the single ones appended in order; None where they are."""
    wanted = [run[name] for run in trial.alone]
    for got, order in ((trial.pair, (0, 1)), (trial.joined, (0, 1, 2)), (trial.turned, ORDER)):
        for row, part in zip(order, np.split(got[name], len(order), axis=axis), strict=True):
            if not close(part, wanted[row], dtype, tolerance):
                worst = difference(part, wanted[row])
                return f"a row changes by up to {worst:.3g} when other rows share its batch"
    return None


def _interleaved(name: str, trial: Trial, axis: int, dtype: str) -> bool:
    """Whether each row still has its own part, though not in one stretch (heads or time before rows), or roughly so.

    Whole numbers are let pass: among them are positions of rows in the batch, which no row can be given alone.
    """
    if trial.joined[name].dtype.kind in "iu":
        return True
    share, rows = trial.alone[0][name].shape[axis], len(trial.alone)
    for outer in (size for size in range(1, share + 1) if share % size == 0):
        got = trial.joined[name]
        apart = got.reshape(*got.shape[:axis], outer, rows, share // outer, *got.shape[axis + 1 :])
        parts = [np.take(apart, row, axis=axis + 1).reshape(trial.alone[0][name].shape) for row in range(rows)]
        if all(close(part, run[name], dtype, ROUGHLY) for part, run in zip(parts, trial.alone, strict=True)):
            return True
    return False


def close(got: Array, want: Array, dtype: str, tolerance: float | None) -> bool:
    """Equal to within the row's own magnitude; exactly for anything but floats, and where either is not finite."""
    if got.dtype.kind != "f":
        return same(got, want)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)) or not same(got[~finite], want[~finite]):
        return False
    if not finite.any():
        return True
    allowed = tolerance if tolerance is not None else TOLERANCE[dtype]
    scale = float(np.abs(want[finite]).max())
    gap = np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64))
    return bool(gap.max() <= allowed * scale)


def same(a: Array, b: Array) -> bool:
    """Bit for bit but for the payload of NaNs."""
    if a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def difference(a: Array, b: Array) -> float:
    """The largest finite gap; NaN where the values cannot be subtracted."""
    if a.dtype.kind not in "fiub" or a.shape != b.shape:
        return float("nan")
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    finite = gap[np.isfinite(gap)]
    return float(finite.max()) if finite.size else 0.0
