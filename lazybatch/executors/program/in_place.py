"""May a loop's body write a state over itself? Refused where the graph says no, else tried.

Owns: `refusal`, which looks at the nodes, `prove_in_place`, which runs them, and `could_be_in_place`, which suggests.
Must not know: any runtime, sub-batches that are served.

A state kept in place has one memory for its value and the next one. An operator that is made for that (an attention
that finds its past and present at one address) changes what must change and copies nothing; most others would read what
they have already written. No graph tells the two apart, so both are run side by side, as they would be served: several
numbers of rows, from where rows start and from made-up states at any iteration, together and one after the other, a few
iterations each. Everything the loop reads must agree bit for bit.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.columns import Column
from lazybatch.executors.cycle import Cycle, lives
from lazybatch.executors.program.plan import LoopPlan, StagePlan
from lazybatch.partition.pieces import Kind, Partition

ROWS = (1, 2, 3)
"""Rows that run together; and then `ROWS_MANY`, or as many of them as `BYTES` hold."""
ROWS_MANY, BYTES = 16, 1 << 29
DIFFERENT = 5
"""Made-up rows that differ."""
STEPS = 4
"""Iterations of each run: what is read after it was overwritten shows in the same one or in the next."""
SPAN = 64
"""Where iterations begin, at most, for loops without a maximum."""
LARGE = 1 << 16
"""Bytes of a state, per row, from which on it is worth a word that it could be kept in place."""
_TRIAL, _NEWCOMER = 0, 1

Array = NDArray[Any]


def refusal(partition: Partition, cycle: Cycle, name: str) -> str | None:
    """Why the nodes forbid a carried input to share memory with the output that it is next; None where they do not."""
    carried, alive = cycle.carried, lives(partition, cycle).alive
    output = carried[name]
    if partition.reason is not None:
        return f"its rows are not joined, and lie in no buffers: {partition.reason}"
    if partition.boundaries[name].kind is not Kind.ROWS:
        return "it is no row's own"
    if output in partition.inputs:
        return f"{output!r}, its next value, is an input of the body"
    other = next((one for one, source in carried.items() if source == output and one != name), None)
    if other is not None:
        return f"{output!r}, its next value, is also that of {other!r}"
    made = next(k for k, piece in enumerate(partition.pieces) if output in piece.outputs)
    late = next((piece for piece in partition.pieces[made + 1 :] if name in piece.inputs), None)
    if late is not None:
        return f"node {late.name!r} reads it after node {partition.pieces[made].name!r} has made {output!r}"
    if name in alive[made + 1]:
        return f"it is read after node {partition.pieces[made].name!r} has made {output!r}"
    if name not in alive[0]:
        return "the body does not read it"
    return None


def prove_in_place(plan: StagePlan, rows_max: int | None = None) -> None:
    """Run a loop's body with and without its states in place. Raises `ModelError` naming stage and tensors.

    rows_max: only for a batch of so many rows, or as many as are tried at all: kernels take several rows at once, and
    what a few rows show might not hold for all. None: everything else.
    """
    loop = plan.loop
    if loop is None or not loop.cycle.in_place or (rows_max is not None and rows_max <= ROWS_MANY):
        return
    try:
        proof = _Proof(plan, loop, ROWS_MANY if rows_max is None else rows_max)
        try:
            proof.run() if rows_max is None else proof.run_many()
        finally:
            proof.end()
    except (InvalidInput, ExecutionError) as error:
        raise _refused(plan, loop, f"that could not be tried with rows made up from its examples: {error}") from error


def could_be_in_place(plan: StagePlan) -> tuple[str, ...]:
    """Carried states that are large and would pass the proof together, if they were declared; empty where there are
    none, or where it fails."""
    loop = plan.loop
    if loop is None or plan.partition.reason is not None:
        return ()
    try:
        row = plan.model.sample_row(0)
        able = frozenset(
            name
            for name in loop.cycle.carried
            if np.asarray(row[name]).nbytes >= LARGE and refusal(plan.partition, loop.cycle, name) is None
        )
        prove_in_place(replace(plan, loop=replace(loop, cycle=replace(loop.cycle, in_place=able))))
    except (InvalidInput, ModelError):
        return ()
    return tuple(sorted(able - loop.cycle.in_place))


def _refused(plan: StagePlan, loop: LoopPlan, why: str) -> ModelError:
    pairs = ", ".join(f"{name!r} -> {loop.cycle.carried[name]!r}" for name in sorted(loop.cycle.in_place))
    return ModelError(f"stage {plan.name!r}: state {pairs} cannot be kept in place: {why}")


class _Proof:
    """Two chains of the same nodes, and what they are both given."""

    def __init__(self, plan: StagePlan, loop: LoopPlan, rows_max: int) -> None:
        self._plan = plan
        self._loop = loop
        self._cycle = loop.cycle
        unit = 3 * sum(np.asarray(plan.model.sample_row(0)[name]).nbytes for name in loop.cycle.in_place)
        self._many = min(rows_max, max(max(ROWS), BYTES // max(unit, 1)))
        self._plain = _Side(plan, replace(loop.cycle, in_place=frozenset()), self._many)
        self._shared = _Side(plan, loop.cycle, self._many)
        self._steps = min(STEPS, loop.most or STEPS)
        self._forms = {one.name: one.form for one in plan.given if one.reference is None}
        self._rng = np.random.default_rng(0)
        self._samples = [plan.model.sample_row(seed) for seed in range(DIFFERENT)]

    def run(self) -> None:
        """All runs. Raises `ModelError` where they differ."""
        kept = [name for name in self._cycle.in_place if not self._shared.chain.store.in_place(name)]
        if kept:
            raise _refused(
                self._plan,
                self._loop,
                "its runtime keeps every value in memory of its own (torch modules, tensors on a device, types without "
                "a buffer); leave in_place out, or let the state grow by slices (append)",
            )
        for rows in sorted({*ROWS, self._many}):
            self._compare(rows, np.zeros(rows, np.int64), made_up=False)
            self._compare(rows, self._anywhere(rows), made_up=True)
        if not self._loop.same_iteration:
            self._compare_with_newcomers()

    def run_many(self) -> None:
        """As many rows as are tried. Raises `ModelError` where they differ."""
        for rows in (1, self._many):  # with one row shapes are learned; from then on memory is bound
            self._compare(rows, self._anywhere(rows), made_up=True)

    def end(self) -> None:
        """Give the memory back at once: states may be large, and bindings that take turns refer to each other."""
        for side in (self._plain, self._shared):
            side.chain.shutdown()
        gc.collect()

    def _anywhere(self, rows: int) -> NDArray[np.int64]:
        """Iterations that rows might be at."""
        last = (self._loop.most or SPAN + self._steps) - self._steps
        positions = self._rng.integers(0, last, rows, endpoint=True)
        return np.full(rows, positions[0]) if self._loop.same_iteration else positions

    def _compare(self, rows: int, positions: NDArray[np.int64], *, made_up: bool) -> None:
        columns = self._columns(range(rows), made_up=made_up)
        starts = {name: _rows_of(columns[name], rows) for name in self._loose(made_up)}
        for side in (self._plain, self._shared):
            side.begin(_TRIAL, columns, rows)
        for step in range(self._steps):
            self._step(positions + step, f"{rows} rows" if rows > 1 else "one row", starts)
        for side in (self._plain, self._shared):
            side.chain.discard(_TRIAL)

    def _compare_with_newcomers(self) -> None:
        """Rows that come one after the other: each is at an iteration of its own, however the body counts."""
        positions = np.zeros(0, np.int64)
        starts: dict[str, list[Array]] = {}
        for number in range(len(ROWS)):
            columns = self._columns([number], made_up=False)
            for side in (self._plain, self._shared):
                side.begin(_NEWCOMER if number else _TRIAL, columns, 1)
                if number:
                    side.chain.merge(_TRIAL, _NEWCOMER)
            positions = np.append(positions, 0)
            for name in self._loose(made_up=False):
                starts.setdefault(name, []).extend(_rows_of(columns[name], 1))
            if self._loop.most is not None and int(positions[0]) >= self._loop.most:
                break
            self._step(positions, f"rows at the iterations {positions.tolist()}", starts)
            positions = positions + 1
        for side in (self._plain, self._shared):
            side.chain.discard(_TRIAL)

    def _columns(self, seeds: Sequence[int], *, made_up: bool) -> dict[str, Column]:
        """What rows are given when they come: what the program says where it says it, else values made up, and also for
        the states in place where ``made_up``: a state that starts as 0 may stay 0 for long."""
        made = [self._samples[seed % DIFFERENT] for seed in seeds]
        columns = {name: Column.of([row[name] for row in made]) for name in self._plan.partition.inputs}
        for name, form in self._forms.items():
            if form is not None and not (made_up and name in self._cycle.in_place):
                columns[name] = Column(form)
        return columns

    def _loose(self, made_up: bool) -> list[str]:
        """States that may differ where they are as the row brought them (see `_left`): not those whose start is known,
        and of those that rows bring, none that is read afterwards."""
        brought = [name for name in self._cycle.in_place if name not in self._forms and name not in self._loop.states]
        return [*brought, *(name for name in self._cycle.in_place if made_up and name in self._forms)]

    def _step(self, positions: NDArray[np.int64], who: str, starts: Mapping[str, Sequence[Array]]) -> None:
        fed = self._fed(positions)
        plain, shared = self._plain.step(fed), self._shared.step(fed)
        states = {output: name for name, output in self._cycle.carried.items()}
        for name, want in plain.items():
            start = starts.get(states.get(name, ""))
            if not _agree(want, shared[name], start):
                raise _refused(
                    self._plan,
                    self._loop,
                    f"where it is, {name!r} is not what it is otherwise ({who}, iteration {int(positions[0])}): the "
                    "body needs the former value after it has begun to write the next one",
                )
        for side in (self._plain, self._shared):
            side.go_on(positions)

    def _fed(self, positions: NDArray[np.int64]) -> dict[str, Array]:
        """What an iteration is given: made-up entries, and its number."""
        fed = {
            name: np.stack([self._samples[(at + row) % DIFFERENT][name] for row, at in enumerate(positions.tolist())])
            for name in self._loop.each
        }
        name = self._loop.iteration
        if name is not None:
            form = self._loop.forms[name]
            numbers = positions[:1] if self._loop.same_iteration else positions
            fed[name] = numbers.astype(form.dtype).reshape(-1, *form.shape)
        return fed


def _rows_of(column: Column, rows: int) -> list[Array]:
    return [column.first] * rows if column.rows is None else list(column.rows)


def _agree(want: Array, have: Array, start: Sequence[Array] | None) -> bool:
    """Whether all rows are the same bit for bit; but where they start is given, what is left as it was may differ.

    A body with a memory of its own for the next value may blank what the row has not come to yet, as attention does
    behind the last position; in place it is left alone.
    """
    if (want.shape, want.dtype) != (have.shape, have.dtype):
        return False
    for row, (one, other) in enumerate(zip(want, have, strict=True)):
        if want.dtype.hasobject:
            if not np.array_equal(one, other):
                return False
        elif one.tobytes() != other.tobytes():
            if start is None:
                return False
            a, b, began = (np.frombuffer(array.tobytes(), np.uint8) for array in (one, other, start[row]))
            if not (b == began)[a != b].all():
                return False
    return True


class _Side:
    """The nodes with one kind of memory."""

    def __init__(self, plan: StagePlan, cycle: Cycle, capacity: int) -> None:
        self.chain = plan.model.chain(max_batch_size=capacity, cycle=cycle)
        self._cycle = cycle
        self._nodes = len(plan.partition.pieces)
        self._like = {output: name for name, output in cycle.carried.items()}
        self._read = sorted({*cycle.read, *cycle.carried.values()})

    def begin(self, sub_batch: int, columns: Mapping[str, Column], rows: int) -> None:
        """Rows come to the first node."""
        signature = tuple(column.first.shape for column in columns.values())
        requests = [sub_batch * self.chain.store.capacity + row for row in range(rows)]
        self.chain.enter(sub_batch, requests, columns, signature, rows)
        for name in self._cycle.grown:
            self.chain.store.blank(self.chain.state(sub_batch), name, np.ones(rows, np.bool_))

    def step(self, fed: Mapping[str, Array]) -> dict[str, Array]:
        """One iteration; views of what the loop reads of it, rows first."""
        state, store = self.chain.state(_TRIAL), self.chain.store
        for name, values in fed.items():
            store.feed(state, name, values)
        for node in range(self._nodes):
            self.chain.run(_TRIAL, node)
        return {name: store.peek(state, name, self._like.get(name)) for name in self._read}

    def go_on(self, positions: NDArray[np.int64]) -> None:
        """To the next iteration, once views have been read."""
        state, store = self.chain.state(_TRIAL), self.chain.store
        for name, growth in self._cycle.grown.items():
            store.extend(state, name, growth, None, positions)
        self.chain.again(state)
