"""What inner values prove: which may cross a cut, and which tie rows together though no output shows it.

Owns: `boundary_traits`.
Must not know: any framework, cuts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lazybatch.errors import ExecutionError
from lazybatch.partition.liveness import Step
from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.crowd import crowded
from lazybatch.partition.proof.inputs import accepts, find_recipes, resized
from lazybatch.partition.proof.probe import Evidence, Runner, probe
from lazybatch.partition.proof.rows import Feeds, Recipe, join, make_rows
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.traits import Outcome, Trait, agree

SIZES_TRIED = (7, 64, 256, 640)
"""Besides 1 and twice the size: by them, choices that sizes decide are tried to fall out the other way."""
SIZE_SECONDS = 30.0


class Walk(NamedTuple):
    """An operator that carries a state along an axis of a value: what it carries may be nothing for all ordinary
    values, so that no run of rows shows it."""

    operator: str
    over: str
    axis: int


def _never(runs: Sequence[Outcome]) -> bool:
    return False


class Turn(NamedTuple):
    """The same values where choices of callers, or by sizes, fall out another way.

    choice: what chooses by which value, as the beginning of a sentence. run: None where it cannot be run at all, and
    the sentence says why. other: what the way is called. taken: whether runs of the original that made these values
    went this way, too. back: whether, by these values, the run may take the original's way after all; None where values
    do not tell. causes: for a choice by sizes, the values that it compares. needed: False for a way that need not be
    possible.
    """

    choice: str
    run: Runner | None
    other: str = "the other one"
    taken: Callable[[Sequence[Outcome]], bool] = _never
    back: Callable[[Sequence[Outcome], Outcome], bool] | None = None
    causes: Collection[str] | None = None
    needed: bool = True


def boundary_traits(
    verdict: Verdict,
    run: Runner,
    turns: Iterable[Turn],
    outputs: Sequence[str],
    steps: Iterable[Step],
    walks: Iterable[Walk],
    data: Collection[str],
    tolerance: float | None,
) -> tuple[Evidence, Mapping[str, Trait], str | None]:
    """The full evidence, traits of all watched values, and a refusal where these show one.

    run: returns all watched values, what is walked over among them. turns: return the same ones; each is run unless the
    inputs take both ways anyhow. data: names that depend on values of batched inputs.
    """
    evidence = probe(verdict.ports, verdict.candidate, verdict.recipes, run, outputs, tolerance=tolerance)
    if evidence.stage < 4:
        return evidence, evidence.traits, evidence.reason
    traits = dict(evidence.traits)
    known: list[Outcome] = []
    for turn in turns:
        known = known or _known(verdict, run)
        refused = _turned(verdict, run, turn, known, outputs, data, traits, tolerance)
        if refused is not None:
            return evidence, traits, refused
    for name, trait in traits.items():
        if trait.kind in (Kind.SHARED, Kind.SIZE) and name in data:
            why = "it has no axis for the rows, yet may depend on their values"
            mixes = trait.dims is None or 0 not in trait.dims
            traits[name] = replace(trait, kind=Kind.OPAQUE, why=why, mixes=mixes)
    if tolerance is None:
        for step in steps:
            for name in step.makes:
                if name in data and name in traits and traits[name].mixes:
                    why = f"operator {step.operator} (makes {name!r}) ties rows together: {traits[name].why}"
                    return evidence, traits, why
    return evidence, traits, _walked(verdict, traits, walks)


def _turned(
    verdict: Verdict,
    run: Runner,
    turn: Turn,
    known: Sequence[Outcome],
    outputs: Sequence[str],
    data: Collection[str],
    traits: dict[str, Trait],
    tolerance: float | None,
) -> str | None:
    """Probe a way not taken: a refusal where it shows one. traits: become what holds either way."""
    ports, candidate = verdict.ports, verdict.candidate
    if turn.run is None:
        return turn.choice
    if turn.taken(known):
        return None
    found = None if turn.causes is None else _resized(verdict, run, turn, known)
    if found is not None and not found.varies:
        return None
    way = turn.run if found is None or not found.recipes else run
    recipes = found.recipes if found is not None and found.recipes else _recipes(verdict, turn, turn.run, known)
    if not recipes:
        asks = f"{turn.choice}, and no input is known for {turn.other}; pass example_inputs that take either"
        return asks if turn.needed else None
    other = probe(ports, candidate, recipes, way, outputs, tolerance=tolerance)
    if other.reason is not None:
        return f"{turn.choice}, and in {turn.other} {other.reason}"
    shown = {name: other.traits[name] for name in outputs}
    for recipe in recipes:
        crowd = crowded(ports, candidate, recipe, way, shown, tolerance)
        if crowd is not None:
            return f"{turn.choice}, and in {turn.other} {crowd}"
    traits.update({name: agree(traits[name], trait) for name, trait in other.traits.items()})
    unsure = next((why for name in outputs if (why := _unproven(name, traits[name], data)) is not None), None)
    return None if unsure is None else f"{turn.choice}, and {unsure}"


def _unproven(name: str, trait: Trait, data: Collection[str]) -> str | None:
    """Why an output is neither a row's own nor everybody's; None where it is."""
    if trait.kind is Kind.ROWS or (trait.kind is Kind.SHARED and name not in data):
        return None
    return f"output {name!r}: {trait.why or 'it is not proved to be a part of each row'}"


def _known(verdict: Verdict, run: Runner) -> list[Outcome]:
    """Single numbers and truths among all values, for every recipe as in the runs that prove something."""
    found = []
    for k, recipe in enumerate(verdict.recipes):
        shared, rows = make_rows(verdict.ports, verdict.candidate, recipe, 3, 2 * k)
        feeds = join(shared, rows[:1], verdict.candidate)
        found.append({name: value for name, value in {**feeds, **run(feeds)}.items() if value.size == 1})
    return found


def _recipes(verdict: Verdict, turn: Turn, run: Runner, known: Sequence[Outcome]) -> list[Recipe]:
    """Inputs with which the way is possible, and is not the original's after all."""
    ports, candidate, back = verdict.ports, verdict.candidate, turn.back
    recipes = [recipe for recipe in verdict.recipes if accepts(ports, candidate, recipe, run)]
    if recipes or back is None or not turn.needed:
        return recipes

    def forth(feeds: Feeds) -> Outcome:
        values = run(feeds)
        if back(known, {**feeds, **values}):
            raise ExecutionError("this is the way that the original goes")
        return values

    return [_pinned(verdict, recipe) for recipe in find_recipes(ports, candidate, forth)]


def _pinned(verdict: Verdict, recipe: Recipe) -> Recipe:
    """The recipe with those single unbatched values with which it was accepted, whatever the seed."""
    shared, _ = make_rows(verdict.ports, verdict.candidate, recipe, 1, 0)
    return replace(recipe, examples={name: [value] for name, value in shared.items() if value.size == 1})


class _Resized(NamedTuple):
    """recipes: one with a size by which the original goes the other way, if there is one. varies: whether sizes may
    decide at all: what is compared is not the same at all of them."""

    recipes: list[Recipe]
    varies: bool


def _resized(verdict: Verdict, run: Runner, turn: Turn, known: Sequence[Outcome]) -> _Resized:
    """Look for the other way of a choice by sizes among the original's runs at other sizes."""
    ports, candidate, back, causes = verdict.ports, verdict.candidate, turn.back, turn.causes or ()
    compared: list[tuple[bytes, ...]] = []

    def other_way(feeds: Feeds) -> Outcome:
        values = {**feeds, **run(feeds)}
        compared.append(tuple(values[name].tobytes() for name in causes if name in values))
        if back is None or not back(known, values):
            raise ExecutionError("this is the way that the original goes")
        return values

    for recipe in verdict.recipes:
        accepts(ports, candidate, recipe, other_way)
    free, ran = set(), set()
    deadline = time.monotonic() + SIZE_SECONDS
    for symbol, recipe in resized(ports, candidate, verdict.recipes[0], SIZES_TRIED):
        if time.monotonic() > deadline:
            return _Resized([], True)
        free.add(symbol)
        before = len(compared)
        if accepts(ports, candidate, recipe, other_way):
            return _Resized([recipe], True)
        if len(compared) > before:
            ran.add(symbol)
    return _Resized([], len(set(compared)) > 1 or ran != free)


def _walked(verdict: Verdict, traits: Mapping[str, Trait], walks: Iterable[Walk]) -> str | None:
    """The first operator that carries a state from row to row."""
    ranks = {port.name: len(port.dims or ()) for port in verdict.ports}
    for operator, name, axis in walks:
        rank = ranks.get(name, len(traits[name].dims or ()) if name in traits else 0)
        rows = verdict.candidate.get(name, traits[name].axis if name in traits else None)
        if rows == (axis + rank if axis < 0 else axis):
            return f"operator {operator} walks over the rows of the batch ({name!r}), carrying a state between them"
    return None
