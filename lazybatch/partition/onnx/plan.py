"""What is known of the optimised graph's inner values, and what follows from it for cuts and boundaries.

Owns: `Plan`.
Must not know: how values were proved, how cuts are chosen among the allowed, the manifest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybatch.partition.onnx.cost import Costs, measure
from lazybatch.partition.onnx.cuts import Cut, Residual
from lazybatch.partition.onnx.extract import Shape
from lazybatch.partition.onnx.join import Verdict, boundary_traits, walks, watching
from lazybatch.partition.onnx.liveness import Liveness
from lazybatch.partition.onnx.optimise import Opener, Optimised
from lazybatch.partition.onnx.probe import runner
from lazybatch.partition.onnx.rows import Array, Feeds, Recipe, join, make_rows
from lazybatch.partition.onnx.source import numpy_name
from lazybatch.partition.onnx.traits import Trait, same
from lazybatch.partition.pieces import Boundary, Kind, Piece

LIVE_MAX = 24
"""More live values than this at one place, and merging there would cost more than the cut is worth."""
WATCH_BYTES_MAX = 128 << 20


class Plan:
    """Looks at the optimised graph once, when made; see the module's text."""

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
            names.update((name, None) for _, name, _ in walks(self.optimised.proto.graph) if name not in given)
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
        """Watch fewer places where values are large, spread over the graph: one long stretch without a cut is one node.

        Ever shorter stretches are offered their place with the least bytes alive, until no more fit.
        """
        weigh = {k: sum(self.sizes.get(name, 0) for name in self.live[k]) for k in self.places}
        kept: set[int] = set()
        names: set[str] = set()
        stretches = 1
        while stretches < 2 * len(self.live):
            width = max(1, len(self.live) // stretches)
            covered = {k // width for k in kept}
            lightest: dict[int, int] = {}
            for k in sorted(self.places, key=weigh.__getitem__):
                lightest.setdefault(k // width, k)
            for stretch, k in lightest.items():  # in order of weight
                more = names | {name for name in self.live[k] if name in first}
                if stretch in covered or (kept and sum(self.sizes.get(name, 0) for name in more) > WATCH_BYTES_MAX):
                    continue
                kept.add(k)
                names = more
            stretches *= 2
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
