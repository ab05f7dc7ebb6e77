"""A small real model with loops, for tests of engine and API: integers that take in every node they pass.

Owns: `Rounds`, whose nodes fold their number and the row's own iteration into the row's value, so that a result tells
exactly which nodes ran how often; its executor, which refuses every call that is out of order; `expected`, one row by
itself in plain Python; `guess_of`, tables and lanes for it.
Must not know: the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.engine import ServedModel
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Row

MODULUS = 1_000_003


@dataclass(frozen=True)
class Given:
    """One row. trips: per loop. known: per loop, whether the scheduler is told. bad: node and iteration that raise."""

    x: int
    trips: tuple[int, ...] = ()
    known: tuple[bool, ...] = ()
    bad: tuple[int, int] | None = None


@dataclass(frozen=True)
class Answer:
    """A row's result. steps: what it collected, per iteration of each loop."""

    value: int
    trips: tuple[int, ...]
    truncated: bool
    steps: tuple[tuple[int, ...], ...]


class Rounds:
    """A model of chains and loops. whole: its policy keeps rows that are done until their batch is.

    spans: first node and node behind the last of every loop. before(node, rows): called before each node runs.
    """

    reason: str | None = None
    joinable = True

    def __init__(
        self,
        nodes: int,
        *spans: tuple[int, int],
        name: str = "rounds",
        trips_max: int | None = None,
        same_iteration: bool = False,
        whole: bool = False,
        before: Callable[[int, int], None] | None = None,
    ) -> None:
        self.name = name
        loops = [Loop(f"loop{n}", *span, same_iteration, trips_max) for n, span in enumerate(spans)]
        self.graph = NodeGraph.chain(name, [f"node{k}" for k in range(nodes)], loops)
        self.fingerprint = f"{name}-{nodes}-{spans}"
        self.whole = whole
        self.before = before
        self.made: list[RoundsExecutor] = []

    def admit(self, inputs: Any) -> Row:
        """A `Given`, or a number and the trips in each loop."""
        if not isinstance(inputs, Given):
            raise InvalidInput(f"input 'x' must be a Given, got {inputs!r}")
        known = inputs.known or (False,) * len(self.graph.loops)
        trips = tuple(count if told else None for count, told in zip(inputs.trips, known, strict=True))
        return Row(inputs, trips=trips)

    def sample_row(self, seed: int) -> Given:
        """A row to measure with."""
        return Given(seed, (1,) * len(self.graph.loops))

    def executor(self, *, max_batch_size: int) -> RoundsExecutor:
        """A fresh executor."""
        self.made.append(RoundsExecutor(self, max_batch_size))
        return self.made[-1]

    def table(self, fixed_ns: int = 1_000_000, per_row_ns: int = 0) -> LatencyTable:
        """Every node takes the same time, plus some per row."""
        names = tuple(node.name for node in self.graph.nodes)
        times = ((fixed_ns + per_row_ns, fixed_ns + 16 * per_row_ns),) * len(names)
        return LatencyTable(self.name, names, (1, 16), times, times, {"fingerprint": self.fingerprint})

    def served(self, **limits: Any) -> ServedModel:
        """The model with its lane."""
        spec = LaneSpec(self.graph, latency=limits.pop("table", None) or self.table(), **limits)
        return ServedModel(spec, self.executor(max_batch_size=spec.max_batch_size))


def expected(model: Rounds, given: Given) -> Answer:
    """The same row by itself."""
    value, trips, truncated, steps = given.x, [], False, []
    for stage in model.graph.stages():
        rounds = 1
        if stage.loop is not None:
            most = model.graph.loops[stage.loop].trips_max or given.trips[stage.loop]
            rounds = min(given.trips[stage.loop], most)
            truncated |= given.trips[stage.loop] > most
            trips.append(rounds)
        made = []
        for iteration in range(rounds):
            for node in range(stage.first, stage.stop):
                value = int(fold(value, node, iteration))
            made.append(value)
        if stage.loop is not None:
            steps.append(tuple(made))
    return Answer(value, tuple(trips), truncated, tuple(steps))


def steps_of(model: Rounds, given: Given) -> list[int]:
    """The values of all its steps, one loop after the other."""
    return [value for steps in expected(model, given).steps for value in steps]


def fold(value: Any, node: int, iteration: Any) -> Any:
    """What a node makes of values."""
    return (value * 31 + node * 17 + iteration * 7 + 1) % MODULUS


def guess_of(*lengths: int) -> LengthGuess:
    """A characterisation of these lengths."""
    return LengthGuess.of(lengths)


@dataclass
class _Line:
    """What is kept of one row besides its value."""

    request: int
    given: Given
    iteration: int = 0
    done: bool = False
    truncated: bool = False
    trips: list[int] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)


@dataclass
class _Batch:
    """stands: the nodes at which it may stand. inside: the loop it is in, None outside."""

    lines: list[_Line]
    values: np.ndarray
    stands: frozenset[int] = frozenset({0})
    inside: int | None = None
    emitted: dict[int, dict[str, Any]] = field(default_factory=dict)


class RoundsExecutor:
    """Runs a `Rounds`. ``broken`` names calls that raise."""

    def __init__(self, model: Rounds, max_batch_size: int) -> None:
        self.model = model
        self.graph = model.graph
        self.max_batch_size = max_batch_size
        self.broken: set[str] = set()
        self.calls: list[tuple[str, int, int]] = []
        self.batches: dict[int, _Batch] = {}
        self.ended = False
        self._loop_at = {
            node: number for number, loop in enumerate(self.graph.loops) for node in range(loop.first, loop.stop)
        }
        self._ends = {loop.stop - 1: number for number, loop in enumerate(self.graph.loops)}

    def _called(self, call: str, sub_batch: int, number: int = 0) -> None:
        self.calls.append((call, sub_batch, number))
        if call in self.broken:
            raise RuntimeError(f"{call} is broken")

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Gather."""
        self._called("open", sub_batch, len(rows))
        assert sub_batch not in self.batches
        assert 1 <= len(rows) <= padded_rows
        lines = [_Line(request, row.values) for request, row in rows.items()]
        self.batches[sub_batch] = _Batch(lines, np.array([line.given.x for line in lines], np.int64))
        assert sum(len(batch.lines) for batch in self.batches.values()) <= self.max_batch_size

    def run(self, sub_batch: int, node: int) -> Collection[int] | None:
        """Fold; at the end of a body find out who is done."""
        self._called("run", sub_batch, node)
        batch = self.batches[sub_batch]
        assert node in batch.stands, f"node {node}, but {batch.stands}"
        self._stand(batch, frozenset({node}))
        if self.model.before is not None:
            self.model.before(node, len(batch.lines))
        for line in batch.lines:
            if line.given.bad == (node, line.iteration) and not line.done:
                raise ValueError(f"row {line.given.x} cannot bear node {node}")
        live = np.array([not line.done for line in batch.lines])
        assert live.any() or self.model.whole, "somebody is not done"
        iterations = np.array([line.iteration for line in batch.lines])
        if batch.inside is not None and self.graph.loops[batch.inside].same_iteration:
            assert len(set(iterations[live].tolist())) <= 1, "only equal iterations mix"
        batch.values = np.where(live, fold(batch.values, node, iterations), batch.values)
        batch.stands = frozenset({node + 1})
        number = self._ends.get(node)
        return None if number is None else self._ended(batch, number)

    def _ended(self, batch: _Batch, number: int) -> list[int]:
        loop = self.graph.loops[number]
        batch.stands = frozenset({loop.first, loop.stop})
        batch.emitted = {}
        found = []
        for line, value in zip(batch.lines, batch.values.tolist(), strict=True):
            if line.done:
                continue
            line.iteration += 1
            line.steps[-1].append(value)
            batch.emitted[line.request] = {"value": np.int64(value), "iteration": line.iteration - 1}
            trips = line.given.trips[number]
            if line.iteration == trips or line.iteration == loop.trips_max:
                line.done = True
                line.truncated |= trips > line.iteration
                line.trips.append(line.iteration)
                if line.iteration == trips and not (line.given.known and line.given.known[number]):
                    found.append(line.request)
        return found

    def _stand(self, batch: _Batch, stands: frozenset[int]) -> None:
        """It becomes known where the batch stands."""
        assert stands
        assert stands <= batch.stands
        undecided = len(batch.stands) > 1
        batch.stands = stands
        if len(stands) > 1:
            return
        (node,) = stands
        inside = self._loop_at.get(node)
        went_on = undecided and batch.inside is not None and node == self.graph.loops[batch.inside].stop
        if undecided:
            if went_on:
                assert all(line.done for line in batch.lines), "all that leave are done"
            elif not self.model.whole:
                assert not any(line.done for line in batch.lines), "who is done leaves at once"
        if inside != batch.inside or went_on:
            batch.inside = inside
            for line in batch.lines:
                line.iteration, line.done = 0, False
                if inside is not None:
                    line.steps.append([])

    def merge(self, target: int, source: int) -> None:
        """Append."""
        self._called("merge", target, source)
        one, other = self.batches[target], self.batches.pop(source)
        stands = one.stands & other.stands
        self._stand(one, stands)
        self._stand(other, stands)
        assert one.inside == other.inside
        one.lines += other.lines
        one.values = np.concatenate([one.values, other.values])
        assert len(one.lines) <= self.max_batch_size

    def _take(self, batch: _Batch, requests: Collection[int]) -> _Batch:
        """Move rows into a batch of their own."""
        gone = [k for k, line in enumerate(batch.lines) if line.request in requests]
        kept = [k for k in range(len(batch.lines)) if k not in gone]
        assert len(gone) == len(requests)
        assert kept, "somebody stays"
        taken = _Batch([batch.lines[k] for k in gone], batch.values[gone], batch.stands, batch.inside)
        batch.lines, batch.values = [batch.lines[k] for k in kept], batch.values[kept]
        return taken

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Keep the others."""
        self._called("evict", sub_batch, len(requests))
        self._take(self.batches[sub_batch], requests)

    def leave(self, sub_batch: int, requests: Collection[int]) -> dict[int, Any]:
        """Scatter some."""
        self._called("leave", sub_batch, len(requests))
        return self._results(self._part(sub_batch, requests, len(self.graph)))

    def split(self, sub_batch: int, target: int, requests: Collection[int]) -> None:
        """Some go on by themselves."""
        self._called("split", sub_batch, target)
        assert target not in self.batches
        node = max(self.batches[sub_batch].stands)
        self.batches[target] = self._part(sub_batch, requests, node)

    def _part(self, sub_batch: int, requests: Collection[int], behind: int) -> _Batch:
        batch = self.batches[sub_batch]
        taken = self._take(batch, requests)
        self._stand(taken, frozenset({behind}))
        self._stand(batch, batch.stands - {behind})
        return taken

    def emitted(self, sub_batch: int) -> Mapping[int, Mapping[str, Any]]:
        """The values of this iteration."""
        self._called("emitted", sub_batch)
        return self.batches[sub_batch].emitted

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Scatter all."""
        self._called("close", sub_batch)
        batch = self.batches.pop(sub_batch)
        self._stand(batch, frozenset({len(self.graph)}))
        return self._results(batch)

    def _results(self, batch: _Batch) -> dict[int, Any]:
        return {
            line.request: Answer(value, tuple(line.trips), line.truncated, tuple(map(tuple, line.steps)))
            for line, value in zip(batch.lines, batch.values.tolist(), strict=True)
        }

    def discard(self, sub_batch: int) -> None:
        """Forget."""
        self._called("discard", sub_batch)
        self.batches.pop(sub_batch, None)

    def shutdown(self) -> None:
        """Nothing may be left."""
        self.ended = True
        assert self.batches == {}


def givens(*lines: Sequence[int]) -> list[Given]:
    """Rows, each a number followed by its trips in each loop."""
    return [Given(x, tuple(trips)) for x, *trips in lines]


def admitted(model: Rounds, *given: Given) -> list[Row]:
    """Rows as the engine takes them."""
    return [model.admit(one) for one in given]
