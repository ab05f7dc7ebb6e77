"""What is known of a graph's inner values, and what follows from it for cuts and boundaries.

Owns: `Plan`, and `Traced`, what a framework's graph must offer for it.
Must not know: any framework, how values were proved, how cuts are chosen among the allowed, the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lazybatch.partition.cuts import Cut
from lazybatch.partition.liveness import Liveness
from lazybatch.partition.pieces import Boundary, Kind, Piece
from lazybatch.partition.proof.inner import Turn, Walk, boundary_traits
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.probe import Runner
from lazybatch.partition.proof.rows import Array, Candidate, Feeds, Recipe, join, make_rows
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.sightings import Sightings
from lazybatch.partition.proof.traits import Trait, same

LIVE_MAX = 24
"""More live values than this at one place, and merging there would cost more than the cut is worth."""
WATCH_BYTES_MAX = 128 << 20
"""What is watched of larger values, at one row: they are of use for cuts, and every probe makes copies of them."""
SMALL_BYTES = 64 << 10
"""At one row; values no larger are always watched, wherever they lie: numbers that tie rows together are small."""

Chain = Callable[[Feeds], Mapping[str, Array]]
"""Runs all pieces one after another; returns at least the model's outputs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Type of a boundary value, and its exact shapes in the runs that were seen.

    fixed: sizes that the model itself declares of an input, which hold for every request; None per open dimension.
    """

    dtype: str
    rank: int | None
    seen: tuple[tuple[int, ...], ...] = ()
    fixed: tuple[int | None, ...] | None = None


class Traced(Protocol):
    """A sorted graph of one framework that can be watched while it runs."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    liveness: Liveness

    def watch(self, names: Sequence[str]) -> tuple[Runner, Mapping[str, str | None]]:
        """A run that returns these values and the outputs, and NumPy's name of the type of each; None where a value
        is no array and can neither be watched nor cross a cut."""

    def turns(self, names: Sequence[str], candidate: Candidate) -> Iterable[Turn]:
        """Runs of the same values in which branches that callers choose are taken the other way."""

    def data(self, candidate: Candidate) -> set[str]:
        """Names that depend on values of batched inputs."""

    def walks(self) -> Sequence[Walk]:
        """Operators that carry a state along an axis."""


class Plan:
    """Looks at the optimised graph once, when made; see the module's text."""

    def __init__(self, graph: Traced, verdict: Verdict, tolerance: float | None) -> None:
        self.graph, self.verdict = graph, verdict
        self.reason, self.evidence = verdict.reason, verdict.evidence
        self.live = graph.liveness.live_sets()
        self.places = [k for k, names in enumerate(self.live) if len(names) <= LIVE_MAX]
        self.sizes: dict[str, int] = {}
        self.traits: Mapping[str, Trait] = {}
        self.varied = False
        self.shapes: dict[str, Shape] = {
            port.name: Shape(port.dtype, None if port.dims is None else len(port.dims))
            for port in (*graph.inputs, *graph.outputs)
        }
        for port in graph.inputs:
            if port.dims is not None:
                fixed = tuple(dim if isinstance(dim, int) else None for dim in port.dims)
                self.shapes[port.name] = Shape(port.dtype, len(fixed), fixed=fixed)
        self._look(tolerance)

    def _look(self, tolerance: float | None) -> None:
        """Learn types, shapes and traits of all small values, and of the larger ones that are live at possible cuts."""
        given = {port.name for port in self.graph.inputs}
        names = dict.fromkeys(name for live in self.live for name in live if name not in given)
        walks = self.graph.walks() if self.reason is None else ()
        names.update((walk.over, None) for walk in walks if walk.over not in given)
        run, types = self.graph.watch(list(names))
        self.untyped = {name for name, dtype in types.items() if dtype is None}
        for name, dtype in types.items():
            if dtype is not None:
                self.shapes.setdefault(name, Shape(dtype, None))
        if self.untyped:
            run, _ = self.graph.watch([name for name in names if name not in self.untyped])
        if not self.verdict.recipes:
            return
        feeds = self.feeds(self.verdict.recipes[0], 1)
        first = run(feeds)
        self.sizes = {name: value.nbytes for name, value in {**feeds, **first}.items()}
        kept = self._affordable({name: self.sizes[name] for name in first})
        kept.update(walk.over for walk in walks)
        kept.update(port.name for port in self.graph.outputs)
        seen = Sightings((name for name in first if name in kept), self.verdict)
        if len(seen.names) < len(first):
            run, _ = self.graph.watch(seen.names)
        seen.note(first)
        del feeds, first  # large, and of no further use
        self._prove(seen.noting(run), seen, walks, tolerance)
        self._record(seen)

    def _prove(self, run: Runner, seen: Sightings, walks: Sequence[Walk], tolerance: float | None) -> None:
        """Learn traits, and shapes at all sizes that the model is seen to take and wherever callers' choices lead."""
        recipes = self.verdict.recipes
        for other in recipes[1:]:
            if other.sizes != recipes[0].sizes:
                run(self.feeds(other, 1))
        if self.reason is not None:
            return
        seen.resize(run)
        outputs = [port.name for port in self.graph.outputs]
        data = self.graph.data(self.verdict.candidate)
        self.evidence, self.traits, self.reason = boundary_traits(
            self.verdict, run, self._turns(seen), outputs, self.graph.liveness.steps, walks, data, tolerance
        )

    def _turns(self, seen: Sightings) -> Iterator[Turn]:
        """The graph's turns, noted; those that are run at all are run at other sizes, too."""
        for turn in self.graph.turns(seen.names, self.verdict.candidate):
            runs, run = seen.runs, turn.run and seen.noting(turn.run)
            yield turn._replace(run=run)
            if run is not None and seen.runs > runs:
                seen.resize(run)

    def _record(self, seen: Sightings) -> None:
        """Ranks and shapes: in-place writing needs equal shapes in every run."""
        self.varied = seen.varied
        for name, shapes in seen.shapes().items():
            ranks = {len(shape) for shape in shapes}
            rank = ranks.pop() if self.reason is None and len(ranks) == 1 else None
            self.shapes[name] = Shape(self.shapes[name].dtype, rank, shapes)

    def _affordable(self, sizes: Mapping[str, int]) -> set[str]:
        """What is watched of these values: all that is small, and all else if it is not too much."""
        large = {name: size for name, size in sizes.items() if size > SMALL_BYTES}
        small = set(sizes).difference(large)
        if sum(large.values()) <= WATCH_BYTES_MAX:
            return set(sizes)
        crossing = {name for k in self.places for name in self.live[k]}
        if sum(size for name, size in large.items() if name in crossing) > WATCH_BYTES_MAX:
            crossing = self._thinned(large)
        return small | crossing

    def _thinned(self, large: Mapping[str, int]) -> set[str]:
        """Keep fewer places where values are large, spread over the graph: one long stretch without a cut is one node.

        Ever shorter stretches are offered their place with the least bytes alive, until no more fit.
        """
        weigh = {k: sum(large.get(name, 0) for name in self.live[k]) for k in self.places}
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
                more = names.union(self.live[k])
                if stretch in covered or (kept and sum(large.get(name, 0) for name in more) > WATCH_BYTES_MAX):
                    continue
                kept.add(k)
                names = more
            stretches *= 2
        self.places = sorted(kept)
        return names

    def feeds(self, recipe: Recipe, rows: int) -> Feeds:
        """Inputs of so many rows, batch axes included."""
        verdict = self.verdict
        shared, made = make_rows(verdict.ports, verdict.candidate, recipe, rows, 0)
        return join(shared, made, verdict.candidate)

    def cuts(self) -> list[Cut]:
        """Places where every live value may cross."""
        return [
            Cut(k, sum(self.sizes.get(name, 0) for name in self.live[k]))
            for k in self.places
            if all(self._crosses(name) for name in self.live[k])
        ]

    def _crosses(self, name: str) -> bool:
        if name in self.untyped or name not in self.shapes:
            return False
        if self.reason is not None or name in {port.name for port in self.graph.inputs}:
            return True
        return name in self.traits and self.traits[name].kind is not Kind.OPAQUE

    def chain_differs(self, whole: Runner, chain: Chain) -> str | None:
        """Run whole and pieces on the same rows: the first output that is not the same bit for bit."""
        for recipe in self.verdict.recipes:
            for rows in (1, 2) if self.reason is None else (1,):
                feeds = self.feeds(recipe, rows)
                values = chain(feeds)
                for name, want in whole(feeds).items():
                    if not same(values[name], want):
                        return f"node by node, output {name!r} differs from the whole model's; kept as one node"
        return None

    def boundaries(self, pieces: Sequence[Piece]) -> dict[str, Boundary]:
        """Every value that crosses a cut, and the model's inputs and outputs."""
        verdict = self.verdict
        found: dict[str, Boundary] = {}
        for port in self.graph.inputs:
            axis = verdict.candidate.get(port.name)
            kind = Kind.SHARED if axis is None else Kind.ROWS
            dims = None if port.dims is None else tuple(d if isinstance(d, int) else None for d in port.dims)
            if dims is not None and axis is not None:
                dims = tuple(None if k == axis else d for k, d in enumerate(dims))
            found[port.name] = Boundary(port.name, port.dtype, kind, axis, dims)
        for port in self.graph.outputs:
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
        dims, unit, seen = trait.dims, trait.unit, self.shapes[name].seen
        loose = any(set(recipe.sizes).difference(self._row_symbols()) for recipe in self.verdict.recipes)
        if dims is not None:
            same_rank = (self.varied or not loose) and all(len(shape) == len(dims) for shape in seen)
            dims = tuple(_constant(dim, k, seen) for k, dim in enumerate(dims)) if same_rank else None
        if trait.axis is not None and loose:
            returned = any(port.name == name for port in self.graph.outputs)
            unit = unit and (self.varied or returned)
            unit = unit and all(shape[trait.axis : trait.axis + 1] == (1,) for shape in seen)
        return Boundary(name, dtype, trait.kind, trait.axis, dims, unit, trait.proportional)

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
        port = next(port for port in self.graph.outputs if port.name == name)
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


def _constant(dim: int | None, axis: int, seen: Sequence[tuple[int, ...]]) -> int | None:
    """A size that holds in all runs; None where it does not."""
    return dim if all(shape[axis] == seen[0][axis] for shape in seen) else None
