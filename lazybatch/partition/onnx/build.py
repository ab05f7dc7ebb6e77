"""From a model file to a partition: the order of the steps, and nothing else.

Owns: `partition_onnx`.
Must not know: how each step works.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort_session import open_session, runtime
from lazybatch.partition.manifest import save_manifest
from lazybatch.partition.onnx.cost import Costs, measure
from lazybatch.partition.onnx.cuts import Cut, Residual, choose
from lazybatch.partition.onnx.extract import Shape, clear, extract
from lazybatch.partition.onnx.inputs import Array, Feeds, Recipe, join, make_rows, named_dims
from lazybatch.partition.onnx.join import Verdict, boundary_traits, judge, scanned, watching
from lazybatch.partition.onnx.liveness import Liveness
from lazybatch.partition.onnx.optimise import WHOLE_FILE, Opener, Optimised, optimise
from lazybatch.partition.onnx.probe import Trait, runner, same
from lazybatch.partition.onnx.source import Source, external_files, numpy_name, one_line, read_source
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece

LIVE_MAX = 24
"""More live values than this at one place, and merging there would cost more than the cut is worth."""
WATCH_BYTES_MAX = 128 << 20


def partition_onnx(
    path: Path | str,
    directory: Path | str,
    *,
    preempt_within_s: float | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    example_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    require_joinable: bool = False,
    threads: int | None = None,
    providers: str | Sequence[str] | None = None,
) -> Partition:
    """Cut the model into pieces in the directory (made if missing) and save the manifest there.

    preempt_within_s: the longest time a server may be unpreemptible at one row; None: as many nodes as stay cheap.
    batch_axes: input name -> batch axis, or None where an input has none; None: found by probing.
    example_inputs: one or several requests the model accepts, with or without the batch axis.
    threads, providers: as for `open_session`.
    tolerance: allowed |joined - alone| over the row's magnitude, for models that cannot be exact.
    Raises `ModelError` naming the culprit; with require_joinable also where rows cannot share a batch.
    """
    _check_options(preempt_within_s, tolerance)
    source = read_source(Path(path))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    clear(directory)
    opener = partial(open_session, threads=threads, providers=providers)
    optimised = optimise(source, directory, opener)
    verdict = judge(source, optimised, batch_axes, _examples(example_inputs), tolerance, opener)
    plan = _Plan(optimised, verdict, tolerance, opener)
    if plan.reason is not None and require_joinable:
        raise ModelError(f"{source.path}: rows cannot share a batch: {plan.reason}")
    costs = plan.costs()
    positions = []
    if costs is not None:
        cuts = plan.cuts()
        positions = choose(
            costs.per_node,
            cuts,
            dispatch_s=costs.dispatch_s,
            preempt_within_s=preempt_within_s,
            residuals=plan.residuals(),
        )
    pieces = extract(optimised.proto, positions, plan.shapes, costs.per_node if costs else (), directory)
    try:
        difference = plan.chain_differs(pieces)
    except Exception as error:
        difference = f"the nodes do not run one by one ({one_line(error)}); kept as one node"
    if difference is not None:
        pieces = extract(optimised.proto, [], plan.shapes, costs.per_node if costs else (), directory)
    digest = _digest(source)
    fingerprint = _fingerprint(digest, positions)
    evidence = plan.evidence
    partition = Partition(
        model=source.name,
        fingerprint=fingerprint,
        directory=directory,
        pieces=tuple(pieces),
        boundaries=plan.boundaries(pieces),
        inputs=tuple(port.name for port in optimised.inputs),
        outputs=tuple(port.name for port in optimised.outputs),
        joinable=plan.reason is None,
        reason=plan.reason,
        max_abs_diff=evidence.max_abs_diff if evidence else None,
        provenance=_provenance(digest, optimised, verdict, costs, pieces, preempt_within_s, tolerance, difference),
    )
    save_manifest(partition)
    return partition


def _check_options(preempt_within_s: float | None, tolerance: float | None) -> None:
    if preempt_within_s is not None and not preempt_within_s > 0:
        raise InvalidInput(f"preempt_within is {preempt_within_s}, expected seconds above 0")
    if tolerance is not None and not tolerance >= 0:
        raise InvalidInput(f"tolerance is {tolerance}, expected a number of at least 0")


def _examples(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> dict[str, list[Array]] | None:
    if given is None:
        return None
    requests = [given] if isinstance(given, Mapping) else list(given)
    if not requests:
        raise InvalidInput("example_inputs is empty, expected at least one request")
    return {name: [np.asarray(request[name]) for request in requests] for name in requests[0]}


class _Plan:
    """What is known of the optimised graph's inner values, and what follows from it for cuts and boundaries."""

    def __init__(self, optimised: Optimised, verdict: Verdict, tolerance: float | None, opener: Opener) -> None:
        self.optimised, self.verdict = optimised, verdict
        self.reason, self.evidence = verdict.reason, verdict.evidence
        self.opener = opener
        self.live = Liveness(optimised.proto.graph).live_sets()
        self.places = [k for k, names in enumerate(self.live) if len(names) <= LIVE_MAX]
        self.sizes: dict[str, int] = {}
        self.traits: Mapping[str, Trait] = {}
        self.shapes: dict[str, Shape] = {
            port.name: Shape(port.dtype, None if port.dims is None else len(port.dims))
            for port in (*optimised.inputs, *optimised.outputs)
        }
        for port in optimised.inputs:
            if port.dims is not None:
                fixed = tuple(dim if isinstance(dim, int) else None for dim in port.dims)
                self.shapes[port.name] = Shape(port.dtype, len(fixed), fixed=fixed)
        self._look(tolerance)

    def _look(self, tolerance: float | None) -> None:
        """Learn types, shapes and traits of all values live at a possible cut."""
        given = {port.name for port in self.optimised.inputs}
        names = dict.fromkeys(name for k in self.places for name in self.live[k] if name not in given)
        if self.reason is None:
            names.update((name, None) for name, _ in scanned(self.optimised.proto.graph) if name not in given)
        session = self._session(list(names))
        types = {output.name: numpy_name(output.type) for output in session.get_outputs()}
        self.untyped = {name for name, dtype in types.items() if dtype is None}
        for name, dtype in types.items():
            if dtype is not None:
                self.shapes.setdefault(name, Shape(dtype, None))
        if self.untyped:
            session = self._session([name for name in names if name not in self.untyped])
        if not self.verdict.recipes:
            return
        feeds = self._feeds(self.verdict.recipes[0], 1)
        first: Mapping[str, Array] = runner(session)(feeds)
        self.sizes = {name: value.nbytes for name, value in {**feeds, **first}.items()}
        if sum(self.sizes.values()) > WATCH_BYTES_MAX:
            session, first = self._thin(first)
        self._record(session, first)
        if self.reason is None:
            self.evidence, self.traits, self.reason = boundary_traits(self.verdict, self.optimised, session, tolerance)

    def _session(self, names: list[str]) -> Any:
        return watching(self.optimised.proto, names, self.optimised.path.parent, self.opener)

    def _thin(self, first: Mapping[str, Array]) -> tuple[Any, Mapping[str, Array]]:
        """Watch fewer places where values are large: those with the least bytes alive, until they fit."""
        weigh = {k: sum(self.sizes.get(name, 0) for name in self.live[k]) for k in self.places}
        kept: list[int] = []
        names: set[str] = set()
        for k in sorted(self.places, key=lambda k: weigh[k]):
            more = names | {name for name in self.live[k] if name in first}
            if kept and sum(self.sizes.get(name, 0) for name in more) > WATCH_BYTES_MAX:
                continue
            kept.append(k)
            names = more
        self.places = sorted(kept)
        session = self._session([name for name in first if name in names])
        return session, {name: value for name, value in first.items() if name in names}

    def _record(self, session: Any, first: Mapping[str, Array]) -> None:
        """Ranks, and shapes at two recipes: in-place writing needs equal shapes in every run."""
        seen = [first]
        if len(self.verdict.recipes) > 1:
            seen.append(runner(session)(self._feeds(self.verdict.recipes[1], 1)))
        for name in first:
            shapes = tuple(run[name].shape for run in seen if name in run)
            ranks = {len(shape) for shape in shapes}
            self.shapes[name] = Shape(self.shapes[name].dtype, ranks.pop() if len(ranks) == 1 else None, shapes)
            if self.reason is not None:
                self.shapes[name] = Shape(self.shapes[name].dtype, None, shapes)

    def _feeds(self, recipe: Recipe, rows: int) -> Feeds:
        verdict = self.verdict
        shared, made = make_rows(verdict.ports, verdict.candidate, recipe, rows, 0)
        return join(shared, made, verdict.candidate)

    def costs(self) -> Costs | None:
        """Measured at one row; None where no input is known that the model accepts."""
        if not self.verdict.recipes:
            return None
        feeds = self._feeds(self.verdict.typical or self.verdict.recipes[-1], 1)
        with tempfile.TemporaryDirectory() as scratch:
            return measure(self.optimised.path, self.optimised.proto, feeds, Path(scratch), self.opener)

    def cuts(self) -> list[Cut]:
        """Places where every live value may cross."""
        return [
            Cut(k, sum(self.sizes.get(name, 0) for name in self.live[k]))
            for k in self.places
            if all(self._crosses(name) for name in self.live[k])
        ]

    def residuals(self) -> list[Residual]:
        """Convolutions that add into another value."""
        made = Liveness(self.optimised.proto.graph).made
        found = []
        for position, node in enumerate(self.optimised.proto.graph.node):
            name = node.input[3] if node.op_type in ("Conv", "FusedConv") and len(node.input) > 3 else ""
            if name in made:
                found.append(Residual(made[name], position, self.sizes.get(name, 0)))
        return found

    def _crosses(self, name: str) -> bool:
        if name in self.untyped or name not in self.shapes:
            return False
        if self.reason is not None or name in {port.name for port in self.optimised.inputs}:
            return True
        return name in self.traits and self.traits[name].kind is not Kind.OPAQUE

    def chain_differs(self, pieces: Sequence[Piece]) -> str | None:
        """Run whole and pieces on the same rows: the first output that is not the same bit for bit."""
        if not self.verdict.recipes or len(pieces) == 1:
            return None
        whole = runner(self.opener(self.optimised.path, optimise=False))
        sessions = [self.opener(piece.path, optimise=False) for piece in pieces]
        for recipe in self.verdict.recipes:
            for rows in (1, 2) if self.reason is None else (1,):
                feeds = self._feeds(recipe, rows)
                values = dict(feeds)
                for piece, session in zip(pieces, sessions, strict=True):
                    got = session.run(list(piece.outputs), {name: values[name] for name in piece.inputs})
                    values.update(zip(piece.outputs, got, strict=True))
                for name, want in whole(feeds).items():
                    if not same(values[name], want):
                        return f"node by node, output {name!r} differs from the whole model's; kept as one node"
        return None

    def boundaries(self, pieces: Sequence[Piece]) -> dict[str, Boundary]:
        """Every value that crosses a cut, and the model's inputs and outputs."""
        verdict = self.verdict
        found: dict[str, Boundary] = {}
        for port in self.optimised.inputs:
            axis = verdict.candidate.get(port.name)
            kind = Kind.SHARED if axis is None else Kind.ROWS
            dims = None if port.dims is None else tuple(d if isinstance(d, int) else None for d in port.dims)
            if dims is not None and axis is not None:
                dims = tuple(None if k == axis else d for k, d in enumerate(dims))
            found[port.name] = Boundary(port.name, port.dtype, kind, axis, dims)
        for port in self.optimised.outputs:
            if port.name not in found:
                found[port.name] = self._output(port.name)
        for piece in pieces:
            for name in (*piece.inputs, *piece.outputs):
                if name not in found:
                    found[name] = self._inner(name)
        return found

    def _inner(self, name: str) -> Boundary:
        dtype, trait = self.shapes[name].dtype, self.traits.get(name)
        if self.reason is not None or trait is None:
            return Boundary(name, dtype, Kind.OPAQUE)
        dims = trait.dims
        loose = any(isinstance(d, str) for port in self.verdict.ports for d in port.dims or ())
        if dims is not None and loose and len(self.verdict.recipes) < 2:
            free = {d for r in self.verdict.recipes for d in r.sizes} - set(self._row_symbols())
            dims = None if free else dims
        return Boundary(name, dtype, trait.kind, trait.axis, dims, trait.unit, trait.proportional)

    def _row_symbols(self) -> list[str]:
        found = []
        for port in self.verdict.ports:
            axis = self.verdict.candidate.get(port.name)
            dim = (port.dims or ())[axis] if axis is not None else None
            if isinstance(dim, str):
                found.append(dim)
        return found

    def _output(self, name: str) -> Boundary:
        """A model output: by proof where joinable; else by what grew, or by the declared symbol of the batch axis."""
        if self.reason is None:
            return self._inner(name)
        port = next(port for port in self.optimised.outputs if port.name == name)
        dims = None if port.dims is None else tuple(d if isinstance(d, int) else None for d in port.dims)
        evidence = self.evidence
        axis = evidence.grew.get(name) if evidence else None
        if axis is None:
            rows = self._row_symbols()
            axes = [k for k, dim in enumerate(port.dims or ()) if dim in rows]
            axis = axes[0] if len(axes) == 1 else None
        if axis is None or any(len(shape) <= axis or shape[axis] != 1 for shape in self.shapes[name].seen):
            return Boundary(name, port.dtype, Kind.OPAQUE, None, dims)
        return Boundary(name, port.dtype, Kind.ROWS, axis, dims)


def _example(verdict: Verdict) -> dict[str, object]:
    """Input name -> a shape at one row and the bounds of its integers that the model was seen to accept."""
    recipe = verdict.typical
    if recipe is None:
        return {}
    return {
        port.name: {
            "shape": [recipe.sizes[dim] if isinstance(dim, str) else dim for dim in named_dims(port)],
            "range": list(recipe.ranges[port.name]) if port.name in recipe.ranges else None,
        }
        for port in verdict.ports
    }


def digest_of(path: Path | str) -> str:
    """sha256 of a model file and its external data. Raises `ModelError` where it cannot be read."""
    return _digest(read_source(Path(path)))


def _digest(source: Source) -> str:
    digest = hashlib.sha256()
    for file in (source.path, *external_files(source)):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _fingerprint(digest: str, positions: Sequence[int]) -> str:
    text = f"{digest} {runtime().__version__} {list(positions)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _provenance(
    digest: str,
    optimised: Optimised,
    verdict: Verdict,
    costs: Costs | None,
    pieces: Sequence[Piece],
    preempt_within_s: float | None,
    tolerance: float | None,
    difference: str | None,
) -> dict[str, object]:
    """How the partition came about, for whoever reads the manifest."""
    notes = [note for note in (optimised.note, difference) if note]
    longest = max((piece.cost_share for piece in pieces), default=0.0) * (costs.whole_s if costs else 0.0)
    if preempt_within_s is not None and longest > preempt_within_s:
        notes.append(
            f"preempt_within is {preempt_within_s:g} s, but the longest node takes {longest:.3g} s: "
            "one operator, or no provable cut in it"
        )
    return {
        "model_sha256": digest,
        "runtime": f"onnxruntime {runtime().__version__}",
        "whole": WHOLE_FILE,
        "batch_axes": dict(verdict.candidate),
        "probed_sizes": [dict(recipe.sizes) for recipe in verdict.recipes],
        "probed_ranges": [{k: list(v) for k, v in recipe.ranges.items()} for recipe in verdict.recipes],
        "example": _example(verdict),
        "whole_s": costs.whole_s if costs else None,
        "dispatch_s": costs.dispatch_s if costs else None,
        "longest_node_s": longest if costs else None,
        "preempt_within_s": preempt_within_s,
        "tolerance": tolerance,
        "notes": notes,
    }
