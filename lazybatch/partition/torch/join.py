"""May rows of different requests share a batch of a torch module? Exports, probes, and what serves it alone if not.

Owns: the order in which batch axes are tried, and the comparison of an exported program with its module.
Must not know: cuts, costs, pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lazybatch.errors import ModelError
from lazybatch.partition.proof.inputs import candidates
from lazybatch.partition.proof.ports import Port, one_line
from lazybatch.partition.proof.probe import Evidence
from lazybatch.partition.proof.rows import Array, Candidate, Recipe
from lazybatch.partition.proof.search import NO_AXIS, NO_INPUT, Finding, Verdict, judge, measured_by, recipes_for
from lazybatch.partition.proof.traits import close, difference
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch.export import Refused, discovered, with_rows
from lazybatch.partition.torch.flat import Flat, flat_of
from lazybatch.partition.torch.source import Source, answer_names, numpy_name, output_tensors
from lazybatch.partition.torch.taint import spread


def judge_torch(
    source: Source, batch_axes: Mapping[str, int | None] | None, tolerance: float | None
) -> tuple[Flat, Verdict]:
    """The program to serve, and the verdict on it. Raises `ModelError` for what cannot be exported or run."""
    answers = _answers(source)
    refused: list[Verdict] = []
    for axes in _options(source, batch_axes):
        try:
            flat = flat_of(source, axes)
        except Refused as error:
            refused.append(Verdict(_ports(source), axes, [], None, None, str(error)))
            continue
        verdict = _judge(source, flat, tolerance)
        if verdict.reason is None:
            verdict = replace(verdict, reason=_unfaithful(source, flat, axes, (1, 2, 3), tolerance))
        if verdict.reason is None:
            return flat, verdict
        refused.append(verdict)
    best = max(refused, key=lambda verdict: verdict.evidence.stage if verdict.evidence else -1, default=None)
    if best is None:
        best = Verdict(_ports(source), {}, [], None, None, NO_AXIS if answers else NO_INPUT)
    return alone(source, best)


def _options(source: Source, batch_axes: Mapping[str, int | None] | None) -> Iterator[Candidate]:
    """Batch axes to try, each only where those before failed: every one is an export of its own, and takes seconds."""
    if batch_axes is not None:
        yield from (axes for axes in candidates(_ports(source), batch_axes) if axes)
        return
    first = first_axes(source)
    if first:
        yield first
    yield from (axes for axes in tied_axes(source) if axes != first)


def identity(source: Source, batch_axes: Mapping[str, int | None] | None) -> str:
    """What tells a module and its weights from any other, as far as its first export shows."""
    axes = next(_options(source, batch_axes), {})
    try:
        return f"{axes} {flat_of(source, axes).digest}"
    except Refused as error:
        return f"{axes} {error} {flat_of(source, {}).digest}"


def first_axes(source: Source) -> Candidate:
    """The first axis of every input that has as many rows there as the first one."""
    shapes = source.shapes
    rows = next((shape[0] for shape in shapes.values() if shape), None)
    return {name: 0 for name, shape in shapes.items() if shape and shape[0] == rows}


def tied_axes(source: Source) -> list[Candidate]:
    """Axes whose sizes torch.export finds to be one free number, where it is the first axis of some input at least.

    An axis that is nobody's first one may be free, and yet no batch: features of an elementwise module are.
    """
    groups: dict[str, Candidate] = {}
    for name, dims in zip(source.names, discovered(source) or (), strict=False):
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                groups.setdefault(dim, {}).setdefault(name, axis)
    batches = sorted((group for group in groups.values() if 0 in group.values()), key=len)
    together = {name: axis for group in batches for name, axis in group.items()}
    found: list[Candidate] = []
    for axes in (together, *reversed(batches)):
        if axes and axes not in found:
            found.append(axes)
    return found


def _ports(source: Source) -> tuple[Port, ...]:
    """The inputs as the examples are."""
    return tuple(
        Port(name, numpy_name(tensor.dtype) or str(tensor.dtype), shape)
        for tensor, (name, shape) in zip(source.tensors, source.shapes.items(), strict=True)
    )


def _judge(source: Source, flat: Flat, tolerance: float | None) -> Verdict:
    outputs = [port.name for port in flat.outputs]

    def examine(ports: Sequence[Port], candidate: Candidate, recipes: Sequence[Recipe]) -> Finding:
        marks = spread(flat, candidate)
        return Finding(marks.refusals, marks.scales, marks.data, marks.picks)

    run, _ = flat.watch(())
    return judge(
        [flat.inputs],
        outputs,
        run,
        examine,
        batch_axes=None,
        examples=source.examples,
        tolerance=tolerance,
        drawn=True,
    )


def _answers(source: Source) -> list[Array]:
    """What the module answers to its examples. Raises `ModelError` where it fails on them."""
    try:
        return _evaluated(source.called(), source.tensors)
    except Exception as error:
        raise ModelError(f"module {source.name!r} fails on its example_inputs: {one_line(error)}") from error


def _unfaithful(
    source: Source, flat: Flat, axes: Candidate, counts: Sequence[int], tolerance: float | None
) -> str | None:
    """Where the exported program does not compute what the module computes on the examples."""
    run, _ = flat.watch(())
    called = source.called()
    for count in counts:
        tensors = with_rows(source, axes, count) if axes else source.tensors
        feeds = {name: to_array(tensor) for name, tensor in zip(source.names, tensors, strict=True)}
        wanted, again = _evaluated(called, tensors), _evaluated(called, tensors)
        got = run(feeds)
        for port, want, twice in zip(flat.outputs, wanted, again, strict=True):
            mine = got[port.name]
            if mine.shape == want.shape and close(mine, want, port.dtype, tolerance):
                continue
            if twice.shape == want.shape and close(twice, want, port.dtype, tolerance):  # else the module is random
                return (
                    f"the exported program does not compute what the module computes (number of rows: {count}): output "
                    f"{port.name!r} differs by {difference(mine, want):.3g}"
                )
    return None


def _evaluated(called: nn.Module, tensors: Sequence[Tensor]) -> list[Array]:
    """What the module answers, on tensors of its own: it may write to its inputs."""
    with torch.inference_mode():
        return [to_array(value) for value in output_tensors(called(*(tensor.clone() for tensor in tensors)))]


def alone(source: Source, refused: Verdict) -> tuple[Flat, Verdict]:
    """The program that serves one request at a time: of one row where the module takes one, else of whole examples."""
    axes = dict(refused.candidate)
    grew = _grew(source, axes) if axes else None
    if grew is None:
        axes, grew = {}, {}
    flat = flat_of(source, axes, 1, free=False)
    run, _ = flat.watch(())
    recipes = recipes_for(flat.inputs, axes, run, source.examples, drawn=False)
    different = _unfaithful(source, flat, axes, (1,), None)
    if different is not None:
        raise ModelError(f"module {source.name!r}: {different}")
    gap = refused.evidence.max_abs_diff if refused.evidence else None
    stage = refused.evidence.stage if refused.evidence else 0
    evidence = Evidence(axes, stage, refused.reason, {}, gap, grew)
    return flat, Verdict(
        flat.inputs, axes, recipes, measured_by(recipes) if recipes else None, evidence, refused.reason
    )


def _grew(source: Source, axes: Candidate) -> dict[str, int] | None:
    """Outputs that have one more index on one axis for every row; None where the module does not take one row."""
    called = source.called()
    shapes = []
    for count in (1, 2, 3):
        try:
            with torch.inference_mode():
                answer = called(*with_rows(source, axes, count))
        except Exception:
            return None if count == 1 else {}
        shapes.append([tuple(value.shape) for value in output_tensors(answer)])
    names = answer_names(answer, source.names)
    grew: dict[str, int] = {}
    for name, one, two, three in zip(names, *shapes, strict=True):
        if len(one) == len(two) == len(three):
            changed = [k for k in range(len(one)) if not one[k] == two[k] == three[k]]
            if len(changed) == 1 and (one[changed[0]], two[changed[0]], three[changed[0]]) == (1, 2, 3):
                grew[name] = changed[0]
    return grew
