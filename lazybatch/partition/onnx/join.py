"""What the operators of an ONNX graph say of rows that share a batch.

Owns: the inputs with every dimension named, the static refusals, and the look at nodes that could steer by size.
Must not know: the search over candidates, cuts, costs, pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import onnx
from onnx import numpy_helper

from lazybatch.partition.onnx.graph import runner, watching
from lazybatch.partition.onnx.optimise import Opener, Optimised
from lazybatch.partition.onnx.sizes import steering
from lazybatch.partition.onnx.source import Source
from lazybatch.partition.onnx.taint import Marks, inlined, spread
from lazybatch.partition.proof.inputs import symbolic
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Array, Candidate, Recipe, join, make_rows
from lazybatch.partition.proof.search import Finding, Verdict, judge
from lazybatch.partition.proof.traits import Outcome

PICKING = frozenset({"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"})


def judge_onnx(
    source: Source,
    optimised: Optimised,
    batch_axes: Mapping[str, int | None] | None,
    examples: Mapping[str, Sequence[Array]] | None,
    tolerance: float | None,
    opener: Opener,
) -> Verdict:
    """May rows of different requests share a batch? Runs the optimised graph, reads the original one."""
    outputs = [port.name for port in optimised.outputs]
    original = inlined(source.proto)

    def examine(ports: Sequence[Port], candidate: Candidate, recipes: Sequence[Recipe]) -> Finding:
        marks = spread(original.graph, candidate)
        steers = partial(_steers, source, original, ports, candidate, recipes, marks, opener)
        return Finding(marks.refusals, marks.scales, marks.data, _picks(original, marks), steers)

    return judge(
        _ranked_ports(optimised.inputs),
        outputs,
        runner(opener(optimised.path, optimise=False)),
        examine,
        batch_axes=batch_axes,
        examples=examples,
        tolerance=tolerance,
    )


def _ranked_ports(inputs: Sequence[Port]) -> list[tuple[Port, ...]]:
    """The inputs with every dimension named; where a rank is unknown, common ranks in turn."""
    if all(port.dims is not None for port in inputs):
        return [symbolic(inputs)]
    return [symbolic(inputs, rank) for rank in (2, 1, 4, 3, 0)]


def _picks(original: onnx.ModelProto, marks: Marks) -> bool:
    """Whether rows' values are picked by rows' values, in a model of standard operators only: runtimes' own may not
    check an index at all."""
    nodes = original.graph.node
    return all(node.domain in ("", "ai.onnx") for node in nodes) and any(
        node.op_type in PICKING and set(node.input[:2]) <= marks.data for node in nodes
    )


def _steers(
    source: Source,
    original: onnx.ModelProto,
    ports: Sequence[Port],
    candidate: Candidate,
    recipes: Sequence[Recipe],
    marks: Marks,
    opener: Opener,
) -> str | None:
    """Run the original graph at 1, 2 and 3 rows with the operands of suspicious nodes as outputs, if there are any."""
    if not marks.uses:
        return None
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
