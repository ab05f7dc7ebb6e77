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
from lazybatch.partition.proof.probe import Evidence, Runner, probe
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.traits import Trait


class Walk(NamedTuple):
    """An operator that carries a state along an axis of a value: what it carries may be nothing for all ordinary
    values, so that no run of rows shows it."""

    operator: str
    over: str
    axis: int


def boundary_traits(
    verdict: Verdict,
    run: Runner,
    outputs: Sequence[str],
    steps: Iterable[Step],
    walks: Iterable[Walk],
    data: Collection[str],
    tolerance: float | None,
) -> tuple[Evidence, Mapping[str, Trait], str | None]:
    """The full evidence, traits of all watched values, and a refusal where these show one.

    run: returns all watched values, what is walked over among them. data: names that depend on values of batched
    inputs.
    """
    evidence = probe(verdict.ports, verdict.candidate, verdict.recipes, run, outputs, tolerance=tolerance)
    if evidence.stage < 4:
        return evidence, evidence.traits, evidence.reason
    traits = dict(evidence.traits)
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


def _walked(verdict: Verdict, traits: Mapping[str, Trait], walks: Iterable[Walk]) -> str | None:
    """The first operator that carries a state from row to row."""
    ranks = {port.name: len(port.dims or ()) for port in verdict.ports}
    for operator, name, axis in walks:
        rank = ranks.get(name, len(traits[name].dims or ()) if name in traits else 0)
        rows = verdict.candidate.get(name, traits[name].axis if name in traits else None)
        if rows == (axis + rank if axis < 0 else axis):
            return f"operator {operator} walks over the rows of the batch ({name!r}), carrying a state between them"
    return None
