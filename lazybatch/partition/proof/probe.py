"""Proof by running: rows alone against rows joined, and rows joined against rows with a poisoned mate.

Owns: `Evidence`, the runs it rests on, and the verdict on every watched value of one candidate batch axis.
Must not know: operators, cuts, files, how a run is made.

Rows joined are compared with rows alone in `traits`; runs at one batch size, poisoned or not, must agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.ports import Port, one_line
from lazybatch.partition.proof.rows import Array, Candidate, Feeds, Recipe, join, make_rows, poisons
from lazybatch.partition.proof.traits import (
    ORDER,
    Outcome,
    Trait,
    Trial,
    agree,
    axis_of,
    classify,
    close,
    difference,
    same,
)

Runner = Callable[[Feeds], Outcome]
"""Runs a model (or a watched graph) on one set of inputs; what it raises says in one line what went wrong."""


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


def _widest(gap: float | None, traits: Mapping[str, Trait], outputs: Sequence[str], trial: Trial) -> float | None:
    """The largest |joined - alone| of the outputs whose rows could be told apart by shape."""
    found = [] if gap is None else [gap]
    for name in outputs:
        axis = traits[name].axis if traits[name].kind is Kind.ROWS else _grown((name,), trial).get(name)
        if axis is not None:
            parts = np.split(trial.joined[name], 3, axis=axis)
            found.extend(difference(part, run[name]) for part, run in zip(parts, trial.alone, strict=True))
    found = [value for value in found if not np.isnan(value)]
    return max(found) if found else None


def _grown(outputs: Sequence[str], trial: Trial) -> dict[str, int]:
    """Outputs whose only change at more rows is one axis as long as there are rows."""
    grew: dict[str, int] = {}
    for name in outputs:
        if len({run[name].ndim for run in (*trial.alone, trial.pair, trial.joined)}) > 1:
            continue
        axis = axis_of(name, trial)
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
