"""May rows of different requests share a batch? All evidence for one model, brought together.

Owns: the search over candidate batch axes, and the one sentence that says why not.
Must not know: cuts, costs, pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from lazybatch.partition.onnx.crowd import crowded, strays
from lazybatch.partition.onnx.inputs import candidates, find_recipes, symbolic, typical
from lazybatch.partition.onnx.optimise import Opener, Optimised
from lazybatch.partition.onnx.probe import Evidence, probe, runner
from lazybatch.partition.onnx.rows import Array, Candidate, Recipe, join, make_rows
from lazybatch.partition.onnx.sizes import steering
from lazybatch.partition.onnx.source import Port, Source
from lazybatch.partition.onnx.taint import Marks, inlined, spread
from lazybatch.partition.onnx.traits import Outcome, Trait
from lazybatch.partition.pieces import Kind

NO_INPUT = "no input found that the model accepts; pass example_inputs"
NO_AXIS = "no input has a batch axis: every dimension is fixed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of the batch axis. candidate: the most likely one even where joining is refused."""

    ports: tuple[Port, ...]
    candidate: Candidate
    recipes: Sequence[Recipe]
    typical: Recipe | None
    evidence: Evidence | None
    reason: str | None
    marks: Marks


def judge(
    source: Source,
    optimised: Optimised,
    batch_axes: Mapping[str, int | None] | None,
    examples: Mapping[str, Sequence[Array]] | None,
    tolerance: float | None,
    opener: Opener,
) -> Verdict:
    """Try candidates until one holds on first sight; the one that came furthest names the reason where none does."""
    session = opener(optimised.path, optimise=False)
    run = runner(session)
    outputs = [port.name for port in optimised.outputs]
    original = inlined(source.proto)
    best: Verdict | None = None
    for ports in _ranked_ports(optimised.inputs):
        options = candidates(ports, batch_axes)
        for candidate in options or [{}]:
            recipes = find_recipes(ports, candidate, lambda feeds: list(run(feeds).values()), examples)
            if not recipes:
                continue
            usual = typical(ports, candidate, recipes[-1], lambda feeds: list(run(feeds).values()))
            if not candidate:
                fixed = NO_AXIS if batch_axes is None else "batch_axes names no batched input"
                return Verdict(ports, {}, recipes, usual, None, fixed, Marks())
            evidence = probe(ports, candidate, recipes[:1], run, outputs, tolerance=tolerance, seeds=1)
            marks = spread(original.graph, candidate)
            reason = _reason(source, original, ports, candidate, recipes, evidence, marks, outputs, tolerance, opener)
            if reason is None:
                traits = {name: evidence.traits[name] for name in outputs}
                reason = crowded(ports, candidate, recipes[0], run, traits, tolerance) or strays(
                    original, marks, ports, candidate, recipes[0], run, traits, tolerance
                )
            verdict = Verdict(ports, candidate, recipes, usual, evidence, reason, marks)
            if evidence.stage == 4:
                return verdict
            if best is None or best.evidence is None or evidence.stage > best.evidence.stage:
                best = verdict
        if best is not None:
            return best
    ports = symbolic(optimised.inputs)
    first = candidates(ports, batch_axes)
    return Verdict(ports, first[0] if first else {}, [], None, None, NO_INPUT if first else NO_AXIS, Marks())


def _ranked_ports(inputs: Sequence[Port]) -> list[tuple[Port, ...]]:
    """The inputs with every dimension named; where a rank is unknown, common ranks in turn."""
    if all(port.dims is not None for port in inputs):
        return [symbolic(inputs)]
    return [symbolic(inputs, rank) for rank in (2, 1, 4, 3, 0)]


def _reason(
    source: Source,
    original: onnx.ModelProto,
    ports: Sequence[Port],
    candidate: Candidate,
    recipes: Sequence[Recipe],
    evidence: Evidence,
    marks: Marks,
    outputs: Sequence[str],
    tolerance: float | None,
    opener: Opener,
) -> str | None:
    """Why joining is refused; the structural cause where there is one, because it explains the symptom."""
    if marks.refusals:
        return marks.refusals[0]
    if marks.scales and tolerance is None:
        return f"{marks.scales[0]}; pass tolerance to allow it"
    if evidence.reason is not None:
        return evidence.reason
    for name in outputs:
        if evidence.traits[name].kind is Kind.SHARED and name in marks.data:
            return f"output {name!r} has no axis for the rows, yet may depend on their values"
    if marks.uses:
        return _steers(source, original, ports, candidate, recipes, marks, opener)
    return None


def _steers(
    source: Source,
    original: onnx.ModelProto,
    ports: Sequence[Port],
    candidate: Candidate,
    recipes: Sequence[Recipe],
    marks: Marks,
    opener: Opener,
) -> str | None:
    """Run the original graph at 1, 2 and 3 rows with the operands of suspicious nodes as outputs."""
    observed = frozenset(name for use in marks.uses for name in use.operands if name in marks.size - marks.data)
    constant = {t.name: t for t in original.graph.initializer}
    loose = {n for use in marks.uses for n in use.operands if n not in marks.size | marks.data and n not in constant}
    given = {port.name for port in ports}
    watched = sorted((observed | loose) - given)
    session = watching(original, watched, source.folder, opener)
    known: Outcome = {}
    for name in {name for use in marks.uses for name in use.operands if name in constant}:
        known[name] = numpy_helper.to_array(constant[name], base_dir=str(source.folder))
    for recipe in recipes:
        shared, rows = make_rows(ports, candidate, recipe, 3, 0)
        runs = []
        for count in (1, 2, 3):
            feeds = join(shared, rows[:count], candidate)
            values = dict(zip(watched, session.run(watched, feeds), strict=True))
            runs.append({**known, **shared, **values})
        found = steering(marks.uses, runs, observed)
        if found is not None:
            return found
    return None


def watching(proto: onnx.ModelProto, names: Sequence[str], folder: Path, opener: Opener) -> Any:
    """A session on the graph that also returns inner values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    present = {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        node.name = ""
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return opener(copy.SerializeToString(), optimise=False, folder=folder)


def boundary_traits(
    verdict: Verdict, optimised: Optimised, session: Any, tolerance: float | None
) -> tuple[Evidence, Mapping[str, Trait], str | None]:
    """The full evidence, traits of all watched values of the optimised graph, and a refusal where these show one."""
    outputs = [port.name for port in optimised.outputs]
    evidence = probe(verdict.ports, verdict.candidate, verdict.recipes, runner(session), outputs, tolerance=tolerance)
    if evidence.stage < 4:
        return evidence, evidence.traits, evidence.reason
    marks = spread(optimised.proto.graph, verdict.candidate)
    traits = dict(evidence.traits)
    for name, trait in traits.items():
        if trait.kind in (Kind.SHARED, Kind.SIZE) and name in marks.data:
            why = "it has no axis for the rows, yet may depend on their values"
            mixes = trait.dims is None or 0 not in trait.dims
            traits[name] = replace(trait, kind=Kind.OPAQUE, why=why, mixes=mixes)
    if tolerance is None:
        for node in optimised.proto.graph.node:
            for name in node.output:
                if name in marks.data and name in traits and traits[name].mixes:
                    return (
                        evidence,
                        traits,
                        f"operator {node.op_type} (makes {name!r}) ties rows together: {traits[name].why}",
                    )
    for operator, name, axis in walks(optimised.proto.graph):
        ranks = {port.name: len(port.dims or ()) for port in verdict.ports}
        rank = ranks.get(name, len(traits[name].dims or ()) if name in traits else 0)
        rows = verdict.candidate.get(name, traits[name].axis if name in traits else None)
        if rows == (axis + rank if axis < 0 else axis):
            return (
                evidence,
                traits,
                f"operator {operator} walks over the rows of the batch ({name!r}), carrying a state between them",
            )
    return evidence, traits, None


def walks(graph: onnx.GraphProto) -> list[tuple[str, str, int]]:
    """Top-level operators that carry a state along an axis: which one, over what, along which axis.

    What is carried may be nothing for all ordinary values, so that no run of rows shows it.
    """
    found: list[tuple[str, str, int]] = []
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Scan":
            count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
            axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0] * count)
            over = list(node.input)[len(node.input) - count :]
            found.extend((node.op_type, name, axis) for name, axis in zip(over, axes, strict=True))
        elif node.op_type == "CumSum" and node.input[1] in constants:
            axis = int(numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])
            found.append((node.op_type, node.input[0], axis))
    return found
