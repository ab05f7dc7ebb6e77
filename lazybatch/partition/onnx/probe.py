"""Proof by running: rows alone against rows joined, and rows joined against rows with a poisoned mate.

Owns: `Evidence`, the verdict on every watched value, and the order in which batch axes are tried.
Must not know: operators, cuts, files.

GEMM kernels differ with the batch size, so joined rows are compared with single ones within a tight tolerance of the
row's own magnitude; runs at one batch size must agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lazybatch.partition.onnx.inputs import Array, Candidate, Feeds, Recipe, join, make_rows, poisons
from lazybatch.partition.onnx.source import Port, one_line
from lazybatch.partition.pieces import Kind

TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
"""Largest |joined - alone| over the row's own magnitude that kernels of one precision may differ by."""

ROUGHLY = 1e-2
"""Inner values may cancel and lose digits; a row that is another row's, or a mean over rows, is further off."""

Outcome = dict[str, Array]
Runner = Callable[[Feeds], Outcome]


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
class Evidence:
    """The verdict for one candidate batch axis.

    stage: how far it got (0: no joined run; 1: rows of a model output not found; 2: values differ; 3: rows influence
    each other; 4: all held). reason: None at stage 4. grew: outputs whose only change at more rows was one longer axis.
    """

    candidate: Candidate
    stage: int
    reason: str | None
    traits: Mapping[str, Trait]
    max_abs_diff: float | None
    grew: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs of one recipe and seed: each row alone, all joined, all in another order."""

    alone: list[Outcome]
    pair: Outcome
    joined: Outcome
    turned: Outcome


ORDER = (2, 0, 1)


def probe(
    ports: Sequence[Port],
    candidate: Candidate,
    recipes: Sequence[Recipe],
    run: Runner,
    outputs: Sequence[str],
    *,
    tolerance: float | None = None,
    seeds: int = 2,
) -> Evidence:
    """Try one candidate on all recipes, so many seeds each.

    ``run`` returns every watched value by name, model outputs among them.
    """
    traits: dict[str, Trait] = {}
    gap: float | None = None
    grew: dict[str, int] | None = None
    for k, recipe in enumerate(recipes):
        for seed in range(2 * k, 2 * k + seeds):
            trial = _try(ports, candidate, recipe, seed, run, even=tolerance is not None)
            if isinstance(trial, str):
                return Evidence(candidate, 0, trial, traits, gap, {})
            seen = {name: classify(name, trial, tolerance) for name in trial.joined}
            traits = {name: agree(traits[name], seen[name]) if traits else seen[name] for name in seen}
            gap = _widest(gap, traits, outputs, trial)
            grown = _grown(outputs, trial)
            grew = grown if grew is None else {n: a for n, a in grew.items() if grown.get(n) == a}
            refused = _verdict(candidate, traits, outputs, gap, grew)
            if refused is not None:
                return refused
    spoiled = _poisoned(ports, candidate, recipes, run, traits, tolerance)
    for name, why in spoiled.items():
        traits[name] = Trait(Kind.OPAQUE, traits[name].dtype, dims=traits[name].dims, why=why, mixes=True)
    broken = next((f"output {name!r}: {spoiled[name]}" for name in outputs if name in spoiled), None)
    return Evidence(candidate, 4 if broken is None else 3, broken, traits, gap, grew or {})


def _try(
    ports: Sequence[Port], candidate: Candidate, recipe: Recipe, seed: int, run: Runner, *, even: bool
) -> Trial | str:
    """Run three rows alone and together; a sentence where a run fails."""
    shared, rows = make_rows(ports, candidate, recipe, 3, seed, even=even)
    try:
        alone = [run(join(shared, [row], candidate)) for row in rows]
    except Exception as error:
        return f"a row alone fails: {one_line(error)}"
    try:
        return Trial(
            alone,
            run(join(shared, rows[:2], candidate)),
            run(join(shared, rows, candidate)),
            run(join(shared, [rows[i] for i in ORDER], candidate)),
        )
    except Exception as error:
        return f"rows together fail where each alone works: {one_line(error)}"


def _verdict(
    candidate: Candidate,
    traits: Mapping[str, Trait],
    outputs: Sequence[str],
    gap: float | None,
    grew: Mapping[str, int],
) -> Evidence | None:
    """The refusal of the first output that is no row's own; None where all hold."""
    for name in outputs:
        trait = traits[name]
        if trait.kind in (Kind.OPAQUE, Kind.SIZE):
            why = trait.why or "it is computed from the number of rows"
            return Evidence(candidate, 2 if name in grew else 1, f"output {name!r}: {why}", traits, gap, grew)
    if not any(traits[name].kind is Kind.ROWS for name in outputs):
        return Evidence(candidate, 1, "no output has a row per request", traits, gap, grew)
    return None


def classify(name: str, trial: Trial, tolerance: float | None) -> Trait:
    """What a value is to the rows, as one trial shows it."""
    first = trial.joined[name]
    dtype = str(first.dtype) if first.dtype.kind not in "OSU" else "object"
    shapes = [run[name].shape for run in (*trial.alone, trial.pair, trial.joined)]
    if len({len(shape) for shape in shapes}) > 1:
        return Trait(Kind.OPAQUE, dtype, why="its number of dimensions depends on the number of rows", mixes=True)
    dims = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    axis = _axis(name, trial)
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
        return a if a.kind is Kind.OPAQUE else b
    dims = None
    if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
        dims = tuple(x if x == y else None for x, y in zip(a.dims, b.dims, strict=True))
    same_proof = (a.kind, a.axis, a.proportional, a.dtype) == (b.kind, b.axis, b.proportional, b.dtype)
    if dims is None or not same_proof:
        return Trait(
            Kind.OPAQUE, a.dtype, dims=dims, why="it follows the rows in one way for some inputs only", mixes=True
        )
    return replace(a, dims=dims, unit=a.unit and b.unit)


def _axis(name: str, trial: Trial) -> int:
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
                worst = _difference(part, wanted[row])
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


def _difference(a: Array, b: Array) -> float:
    if a.dtype.kind not in "fiub" or a.shape != b.shape:
        return float("nan")
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    finite = gap[np.isfinite(gap)]
    return float(finite.max()) if finite.size else 0.0


def _widest(gap: float | None, traits: Mapping[str, Trait], outputs: Sequence[str], trial: Trial) -> float | None:
    """The largest |joined - alone| of the outputs whose rows could be told apart by shape."""
    found = [] if gap is None else [gap]
    for name in outputs:
        axis = traits[name].axis if traits[name].kind is Kind.ROWS else _grown((name,), trial).get(name)
        if axis is not None:
            parts = np.split(trial.joined[name], 3, axis=axis)
            found.extend(_difference(part, run[name]) for part, run in zip(parts, trial.alone, strict=True))
    found = [value for value in found if not np.isnan(value)]
    return max(found) if found else None


def _grown(outputs: Sequence[str], trial: Trial) -> dict[str, int]:
    """Outputs whose only change at more rows is one axis as long as there are rows."""
    grew: dict[str, int] = {}
    for name in outputs:
        if len({run[name].ndim for run in (*trial.alone, trial.pair, trial.joined)}) > 1:
            continue
        axis = _axis(name, trial)
        if axis >= 0 and trial.alone[0][name].shape[axis] == 1:
            grew[name] = axis
    return grew


def _poisoned(
    ports: Sequence[Port],
    candidate: Candidate,
    recipes: Sequence[Recipe],
    run: Runner,
    traits: Mapping[str, Trait],
    tolerance: float | None,
) -> dict[str, str]:
    """Values in which another row changed when one row was replaced, with the reason."""
    spoiled: dict[str, str] = {}
    for k, recipe in enumerate(recipes):
        shared, rows = make_rows(ports, candidate, recipe, 3, 2 * k, even=True)
        before = run(join(shared, rows, candidate))
        for kind, poison in enumerate(poisons(ports, rows[0], recipe, seed=k)):
            if tolerance is not None and kind < 4 and any(port.dtype.startswith("float") for port in ports):
                continue
            at = kind % 3
            mixed = [poison if i == at else row for i, row in enumerate(rows)]
            try:
                after = run(join(shared, mixed, candidate))
            except Exception:
                continue
            for name, trait in traits.items():
                if name not in spoiled and not _untouched(trait, before[name], after[name], at, tolerance):
                    spoiled[name] = "a row changes when another row of its batch is replaced"
    return spoiled


def _untouched(trait: Trait, before: Array, after: Array, at: int, tolerance: float | None) -> bool:
    if trait.kind is Kind.OPAQUE:
        return True
    if before.shape != after.shape:
        return False
    if trait.kind is not Kind.ROWS or trait.axis is None:
        return same(before, after)
    old, new = np.split(before, 3, axis=trait.axis), np.split(after, 3, axis=trait.axis)
    others = [i for i in range(3) if i != at]
    if tolerance is not None:
        return all(close(new[i], old[i], trait.dtype, tolerance) for i in others)
    return all(same(old[i], new[i]) for i in others)


def runner(session: Any) -> Runner:
    """Run a session and return all its outputs by name."""
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Feeds) -> Outcome:
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run
