"""Programs over the bodies; evaluated plainly, one row alone; and run through an executor in any legal order.

Owns: `count`, `translate`, `plain` and `Course`. Must not know: how programs are executed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import lazybatch as lb
from lazybatch.errors import ExecutionError
from lazybatch.executors.admission import row_dims
from lazybatch.executors.base import Row
from lazybatch.executors.program.model import ProgramModel
from lazybatch.partition.pieces import Kind
from lazybatch.program import Append, Carry, Feed, Program, Reference, Repeat, Stage
from tests.executors.program import bodies

STEP = Repeat(
    carry={"h": Carry("h_next", "encoder.h"), "keys": Append("key", 0, 7)},
    iteration="position",
    done="finished",
    trips_max=6,
    collect=("token",),
)
"""How the decoder step of `bodies.attention` goes round."""


def count(folder: Path) -> ProgramModel:
    """A loop in whole numbers that counts from one input to another and ends at the latest after five steps."""
    body: Any = lb.load(bodies.counter(folder / "counter.onnx"), cache=False)
    loop = Repeat(carry={"n": Carry("n_next", "from")}, done="finished", trips_max=5, collect=("square",))
    outputs = {"n": "count.n", "squares": "count.square"}
    return ProgramModel(Program("count", (Stage("count", body, {"target": "to"}, loop),), outputs), {"count": body})


def translate(folder: Path, **outputs: str) -> ProgramModel:
    """Encoder, decoder with a cache and rows at their own positions, and something behind it.

    outputs: besides the tokens and their score.
    """
    makers = (("encoder", bodies.encoder), ("attention", bodies.attention), ("tail", bodies.tail))
    parts: dict[str, Any] = {name: lb.load(make(folder / f"{name}.onnx"), cache=False) for name, make in makers}
    stages = (
        Stage("encoder", parts["encoder"], {"source": Feed("source", (3, 6)), "length": Feed(length_of="source")}),
        Stage("decoder", parts["attention"], {"memory": "encoder.memory"}, STEP),
        Stage(
            "tail",
            parts["tail"],
            {"tokens": Feed("decoder.token", (8,)), "count": Feed(length_of="decoder.token"), "h": "decoder.h"},
        ),
    )
    named = {"tokens": "decoder.token", "score": "tail.score", **outputs}
    return ProgramModel(Program("translate", stages, named), {stage.name: stage.model for stage in stages})


def plain(model: ProgramModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of one row, by a Python loop over the stages' models; with ``trips`` and ``truncated``."""
    tensors: dict[str, Any] = {name: np.asarray(value) for name, value in inputs.items()}
    trips: list[int] = []
    truncated = False
    for stage in model.program.stages:
        given = {name: _given(tensors, feed) for name, feed in stage.feeds.items()}
        if stage.loop is None:
            made = _once(model, stage, given)
            tensors.update({f"{stage.name}.{name}": value for name, value in made.items()})
            continue
        count, cut = _around(model, stage, given, tensors)
        trips.append(count)
        truncated |= cut
    outputs = {name: tensors[text] for name, text in model.program.outputs.items()}
    return {**outputs, "trips": tuple(trips), "truncated": truncated}


def _given(tensors: Mapping[str, Any], feed: Feed) -> Any:
    if feed.length_of is not None:
        return np.array(len(tensors[feed.length_of]))
    value = tensors[feed.of or ""]
    if feed.pad:
        sizes = feed.pad if Reference.of(feed.of or "").stage is None else feed.pad[-1:]
        size = next(size for size in sizes if size >= len(value))
        value = np.concatenate([value, np.zeros((size - len(value), *value.shape[1:]), value.dtype)])
    return value


def _once(model: ProgramModel, stage: Stage, given: Mapping[str, Any]) -> dict[str, Any]:
    """One run of a stage's model on one row, batch axes put in and taken out."""
    inner = model.models[stage.name]
    boundaries = inner.partition.boundaries
    feeds = {}
    for name in inner.partition.inputs:
        boundary, value = boundaries[name], np.asarray(given[name]).astype(boundaries[name].dtype)
        want = row_dims(boundary) or ()
        value = value.reshape(value.shape or (1,) * len(want))
        feeds[name] = np.expand_dims(value, boundary.axis or 0) if boundary.kind is Kind.ROWS else value
    made: dict[str, Any] = inner.run(feeds)  # type: ignore[attr-defined]
    return {
        name: np.squeeze(value, boundaries[name].axis) if boundaries[name].kind is Kind.ROWS else value
        for name, value in made.items()
    }


def _around(model: ProgramModel, stage: Stage, given: dict[str, Any], tensors: dict[str, Any]) -> tuple[int, bool]:
    loop = stage.loop
    assert loop is not None
    boundaries = model.models[stage.name].partition.boundaries
    state: dict[str, Any] = {}
    for name, one in loop.states.items():
        dims = [dim or 0 for dim in row_dims(boundaries[name]) or ()]
        if isinstance(one, Append):
            dims[one.axis] = one.room
            state[name] = np.zeros(dims, boundaries[name].dtype)
        else:
            start = tensors[one.start] if isinstance(one.start, str) else np.full(dims, one.start)
            state[name] = np.asarray(start).astype(boundaries[name].dtype)
    limit = None if loop.counted is None else int(_given(tensors, loop.counted))
    if loop.each:
        entries = len(tensors[next(iter(loop.each.values()))])
        limit = entries if limit is None else min(limit, entries)
    kept: dict[str, list[Any]] = {name: [] for name in loop.collect}
    for k in itertools.count():
        now = {name: tensors[text][k] for name, text in loop.each.items()}
        if loop.iteration is not None:
            now[loop.iteration] = np.array(k)
        made = _once(model, stage, {**given, **state, **now})
        for name in loop.collect:
            kept[name].append(made[name])
        for name, one in loop.states.items():
            if isinstance(one, Append):
                state[name][(slice(None),) * one.axis + (k,)] = made[one.slice]
            else:
                state[name] = made[one.next]
        done = loop.done is not None and bool(made[loop.done])
        over = k + 1 == limit
        if done or over or k + 1 == loop.most:
            break
    for name, one in loop.states.items():
        filled = (slice(None),) * one.axis + (slice(k + 1),) if isinstance(one, Append) else ...
        tensors[f"{stage.name}.{name}"] = state[name][filled]
    tensors.update({f"{stage.name}.{name}": np.stack(values) for name, values in kept.items()})
    return k + 1, not (done or over)


class Course:
    """Sub-batches of one program on their way, with every call an executor may get; the test chooses which.

    whole: rows that are done stay until all of their sub-batch are.
    """

    def __init__(self, model: ProgramModel, executor: Any, rows: Mapping[int, Any], *, whole: bool = False) -> None:
        self.model, self.executor, self.whole = model, executor, whole
        self.admitted: dict[int, Row] = {request: model.admit(row) for request, row in rows.items()}
        self.waiting = list(rows)
        self.at: dict[int, int] = {}
        self.members: dict[int, list[int]] = {}
        self.behind: dict[int, int] = {}
        self.done: set[int] = set()
        self.results: dict[int, Any] = {}
        self.emitted: dict[int, list[Mapping[str, Any]]] = {}
        self.evicted = 0
        self._next = itertools.count()
        graph = model.graph
        self._loops = {loop.stop: loop for loop in graph.loops}
        self._loop_numbers = {loop.name: number for number, loop in enumerate(graph.loops)}

    def open(self, count: int, padding: int = 0) -> int:
        """Some of those that wait start."""
        rows = [self.waiting.pop(0) for _ in range(count)]
        number = next(self._next)
        self.executor.open(number, {request: self.admitted[request] for request in rows}, count + padding)
        self.at[number], self.members[number] = 0, rows
        self.behind.update(dict.fromkeys(rows, 0))
        return number

    def run(self, number: int) -> None:
        """One node; what follows from it, as a scheduler says it."""
        node = self.at[number]
        found = self.executor.run(number, node) or ()
        loop = self._loops.get(node + 1)
        members = self.members[number]
        if loop is None:
            self._stand(number, node + 1)
            return
        for request, step in self.executor.emitted(number).items():
            self.emitted.setdefault(request, []).append(step)
        over = set(found)
        for request in members:
            self.behind[request] += 1
            known = self.admitted[request].trips[self._loop_numbers[loop.name]]
            if self.behind[request] in (known, loop.trips_max):
                over.add(request)
        self.done |= over
        leaving = [request for request in members if request in self.done]
        if self.whole and len(leaving) < len(members):
            leaving = []
        if len(leaving) == len(members):
            self._stand(number, loop.stop)
            return
        self.at[number] = loop.first
        if not leaving:
            return
        self.members[number] = [request for request in members if request not in self.done]
        if loop.stop == len(self.model.graph):
            self.results.update(self.executor.leave(number, leaving))
        else:
            target = next(self._next)
            self.executor.split(number, target, leaving)
            self.members[target] = leaving
            self._stand(target, loop.stop)

    def _stand(self, number: int, node: int) -> None:
        """They come to a node from outside its loop, or to the end."""
        if node == len(self.model.graph):
            self.results.update(self.executor.close(number))
            del self.at[number], self.members[number]
            return
        self.at[number] = node
        if node in self._loops or any(loop.first == node for loop in self._loops.values()):
            self.behind.update(dict.fromkeys(self.members[number], 0))
            self.done -= set(self.members[number])

    def mates(self) -> list[tuple[int, int]]:
        """Pairs of sub-batches that may merge."""

        def alike(one: int, other: int) -> bool:
            node = self.at[one]
            inside = next((loop for loop in self._loops.values() if loop.first <= node < loop.stop), None)
            steps = {self.behind[request] for number in (one, other) for request in self.members[number]}
            return (
                node == self.at[other]
                and self.admitted[self.members[one][0]].signature == self.admitted[self.members[other][0]].signature
                and (inside is None or not inside.same_iteration or len(steps) == 1)
            )

        return [pair for pair in itertools.permutations(self.at, 2) if alike(*pair)]

    def merge(self, target: int, source: int) -> None:
        """Join two."""
        self.executor.merge(target, source)
        self.members[target] += self.members.pop(source)
        del self.at[source]

    def evict(self, number: int, request: int) -> None:
        """One row is withdrawn."""
        self.evicted += 1
        self.members[number].remove(request)
        if self.members[number]:
            self.executor.evict(number, [request])
        else:
            self.executor.discard(number)
            del self.at[number], self.members[number]

    def drive(self, choose: Callable[[int], int], *, evicting: int = 2, rows_max: int = 8) -> None:
        """Until nothing is left, doing what ``choose(n)`` picks among n possibilities. evicting: so many at most."""
        try:
            while self.waiting or self.at:
                inside = sum(map(len, self.members.values()))
                actions: list[Callable[[], object]] = []
                for number in self.at:
                    actions += [lambda number=number: self.run(number)] * 3
                room = min(len(self.waiting), rows_max - inside, 3)
                same = [self.admitted[request].signature for request in self.waiting]
                for count in range(1, room + 1):
                    if len(set(same[:count])) == 1 and (self.model.joinable or count == 1):
                        actions.append(lambda count=count: self.open(count))
                if room and self.model.joinable and inside + 2 <= rows_max:
                    actions.append(lambda: self.open(1, 1))
                if self.model.joinable:
                    actions += [lambda pair=pair: self.merge(*pair) for pair in self.mates()]
                if self.evicted < evicting:
                    actions += [
                        lambda n=n: self.evict(n, self.members[n][choose(len(self.members[n]))]) for n in self.at
                    ]
                actions[choose(len(actions))]()
        finally:
            for number in self.at:
                self.executor.discard(number)


def matches(got: Any, want: Mapping[str, Any], tolerance: float = 0.0) -> None:
    """Assert that a result is what `plain` gives."""
    assert not isinstance(got, ExecutionError), got
    assert got.trips == want["trips"]
    assert got.truncated == want["truncated"]
    for name, value in got.items():
        expected = np.asarray(want[name])
        assert value.shape == expected.shape, name
        assert value.dtype == expected.dtype, name
        if tolerance and expected.dtype.kind == "f":
            assert np.abs(value - expected).max(initial=0) <= tolerance * max(1.0, np.abs(expected).max(initial=0)), (
                name
            )
        else:
            assert np.array_equal(value, expected), name
