"""What inner values prove: which may cross a cut, and which tie rows together though no output shows it.

Owns: `boundary_traits`.
Must not know: any framework, cuts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lazybatch.partition.liveness import Step
from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.inputs import accepts, find_recipes
from lazybatch.partition.proof.probe import Evidence, Runner, probe
from lazybatch.partition.proof.rows import join, make_rows
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.traits import Trait, agree


class Walk(NamedTuple):
    """An operator that carries a state along an axis of a value: what it carries may be nothing for all ordinary
    values, so that no run of rows shows it."""

    operator: str
    over: str
    axis: int


class Turn(NamedTuple):
    """The same values where branches that callers choose are taken the other way.

    choice: what takes a branch by which value, as the beginning of a sentence. flags: the values that it goes by, where
    they are among those watched.
    """

    choice: str
    flags: Collection[str]
    run: Runner


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
    for turn in turns:
        refused = _turned(verdict, run, turn, outputs, data, traits, tolerance)
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
    outputs: Sequence[str],
    data: Collection[str],
    traits: dict[str, Trait],
    tolerance: float | None,
) -> str | None:
    """Probe the branches not taken: a refusal where they show one. traits: become what holds either way."""
    ports, candidate = verdict.ports, verdict.candidate
    if turn.flags and all(len(_values(verdict, run, flag)) > 1 for flag in turn.flags):
        return None
    recipes = [recipe for recipe in verdict.recipes if accepts(ports, candidate, recipe, turn.run)]
    recipes = recipes or find_recipes(ports, candidate, turn.run)
    if not recipes:
        return f"{turn.choice}, and no input is known for the other one; pass example_inputs that take either"
    other = probe(ports, candidate, recipes, turn.run, outputs, tolerance=tolerance)
    if other.reason is not None:
        return f"{turn.choice}, and in the other one {other.reason}"
    traits.update({name: agree(traits[name], trait) for name, trait in other.traits.items()})
    unsure = next((why for name in outputs if (why := _unproven(name, traits[name], data)) is not None), None)
    return None if unsure is None else f"{turn.choice}, and {unsure}"


def _unproven(name: str, trait: Trait, data: Collection[str]) -> str | None:
    """Why an output is neither a row's own nor everybody's; None where it is."""
    if trait.kind is Kind.ROWS or (trait.kind is Kind.SHARED and name not in data):
        return None
    return f"output {name!r}: {trait.why or 'it is not proved to be a part of each row'}"


def _values(verdict: Verdict, run: Runner, flag: str) -> set[bytes]:
    """The values that a flag takes in the runs in which rows are poisoned as well."""
    found = set()
    for k, recipe in enumerate(verdict.recipes):
        shared, rows = make_rows(verdict.ports, verdict.candidate, recipe, 1, 2 * k)
        feeds = join(shared, rows, verdict.candidate)
        found.add({**feeds, **run(feeds)}[flag].tobytes())
    return found


def _walked(verdict: Verdict, traits: Mapping[str, Trait], walks: Iterable[Walk]) -> str | None:
    """The first operator that carries a state from row to row."""
    ranks = {port.name: len(port.dims or ()) for port in verdict.ports}
    for operator, name, axis in walks:
        rank = ranks.get(name, len(traits[name].dims or ()) if name in traits else 0)
        rows = verdict.candidate.get(name, traits[name].axis if name in traits else None)
        if rows == (axis + rank if axis < 0 else axis):
            return f"operator {operator} walks over the rows of the batch ({name!r}), carrying a state between them"
    return None
