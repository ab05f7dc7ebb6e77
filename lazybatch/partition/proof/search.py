"""Which axes are the batch, and may rows share one? The search over candidates, the same for every framework.

Owns: `Verdict`, `Finding` and `judge`.
Must not know: any framework's operators (`Examine` looks at those), cuts, costs, pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lazybatch.partition.pieces import Kind
from lazybatch.partition.proof.crowd import crowded, strays
from lazybatch.partition.proof.examples import left_out
from lazybatch.partition.proof.inputs import candidates, find_recipes, typical
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.probe import Evidence, Runner, probe
from lazybatch.partition.proof.rows import Array, Candidate, Recipe

NO_INPUT = "no input found that the model accepts; pass example_inputs"
NO_AXIS = "no input has a batch axis: every dimension is fixed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of the batch axis. candidate: the most likely one even where joining is refused. note: what the
    proof leaves out."""

    ports: tuple[Port, ...]
    candidate: Candidate
    recipes: Sequence[Recipe]
    typical: Recipe | None
    evidence: Evidence | None
    reason: str | None
    note: str | None = None


def _no_more() -> None:
    return None


class Finding(NamedTuple):
    """What the operators say, before any run has its say.

    refusals: why joining is refused, the surest first. scales: the same of what a tolerance allows. data: names that
    may depend on values of batched inputs. picks: whether rows' values are picked by rows' values, so that a wild index
    could reach another row. further: looks for a refusal in what is dear to look at, where nothing else speaks against
    joining.
    """

    refusals: Sequence[str] = ()
    scales: Sequence[str] = ()
    data: Collection[str] = ()
    picks: bool = False
    further: Callable[[], str | None] = _no_more


Examine = Callable[[Sequence[Port], Candidate, Sequence[Recipe]], Finding]
"""Looks at a model's operators for one candidate."""


def judge(
    options: Sequence[tuple[Port, ...]],
    outputs: Sequence[str],
    run: Runner,
    examine: Examine,
    *,
    batch_axes: Mapping[str, int | None] | None,
    examples: Mapping[str, Sequence[Array]] | None,
    tolerance: float | None,
    drawn: bool = False,
) -> Verdict:
    """Try candidates until one holds on first sight; the one that came furthest names the reason where none does.

    options: the inputs with every dimension named; several where their ranks are not known. drawn: probe with freely
    drawn rows, too, where there are examples and the model accepts such rows.
    """
    best: Verdict | None = None
    for ports in options:
        for candidate in candidates(ports, batch_axes) or [{}]:
            recipes = recipes_for(ports, candidate, run, examples, drawn=drawn)
            if not recipes:
                continue
            usual = typical(ports, candidate, measured_by(recipes), run)
            if not candidate:
                fixed = NO_AXIS if batch_axes is None else "batch_axes names no batched input"
                return Verdict(ports, {}, recipes, usual, None, fixed)
            evidence = probe(ports, candidate, recipes[:1], run, outputs, tolerance=tolerance, seeds=1)
            finding = examine(ports, candidate, recipes)
            reason = _reason(finding, evidence, outputs, tolerance)
            if reason is None:
                traits = {name: evidence.traits[name] for name in outputs}
                shared = [recipe for recipe in recipes[1:] if recipe.examples]
                crowds = (crowded(ports, candidate, r, run, traits, tolerance) for r in (recipes[0], *shared))
                reason = next((found for found in crowds if found is not None), None)
                if reason is None and finding.picks:
                    reason = strays(ports, candidate, recipes[0], run, traits, tolerance)
            verdict = Verdict(ports, candidate, recipes, usual, evidence, reason, left_out(ports, candidate, examples))
            if evidence.stage == 4:
                return verdict
            if best is None or best.evidence is None or evidence.stage > best.evidence.stage:
                best = verdict
        if best is not None:
            return best
    first = candidates(options[0], batch_axes)
    return Verdict(options[0], first[0] if first else {}, [], None, None, NO_INPUT if first else NO_AXIS)


def _reason(finding: Finding, evidence: Evidence, outputs: Sequence[str], tolerance: float | None) -> str | None:
    """Why joining is refused; the structural cause where there is one, because it explains the symptom."""
    if finding.refusals:
        return finding.refusals[0]
    if finding.scales and tolerance is None:
        return f"{finding.scales[0]}; pass tolerance to allow it"
    if evidence.reason is not None:
        return evidence.reason
    for name in outputs:
        if evidence.traits[name].kind is Kind.SHARED and name in finding.data:
            return f"output {name!r} has no axis for the rows, yet may depend on their values"
    return finding.further()


def recipes_for(
    ports: Sequence[Port],
    candidate: Candidate,
    run: Runner,
    examples: Mapping[str, Sequence[Array]] | None,
    *,
    drawn: bool,
) -> list[Recipe]:
    """Recipes the model accepts, those after the examples last; see `judge` for ``drawn``."""
    found = find_recipes(ports, candidate, run, examples)
    if drawn and examples and found:
        return [*find_recipes(ports, candidate, run, want=1), *found]
    return found


def measured_by(recipes: Sequence[Recipe]) -> Recipe:
    """The recipe that costs go by: the first example's, else the last."""
    return next((recipe for recipe in recipes if recipe.examples), recipes[-1])
