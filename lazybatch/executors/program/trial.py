"""A loop's body, run twice side by side as it would be served: its states apart, and in place.

Owns: `Trial`, which says where the two differ, and how many rows it takes memory for.
Must not know: what follows from it, sub-batches that are served.

Several numbers of rows run, from where rows start and from made-up states at any iteration, together and one after the
other, a few iterations each. Everything the loop reads must agree bit for bit; but of states that nobody reads later,
and where a run starts from a made-up one, what is left as the row brought it may differ (`_agree`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.executors.admission import row_dims
from lazybatch.executors.columns import Column
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.sample import row_bytes
from lazybatch.partition.pieces import Partition

ROWS = (1, 2, 3)
"""Rows that run together; and then `ROWS_MANY`, as far as `BYTES` hold them."""
ROWS_MANY = 16
ROWS_LEAST = 2
"""Rows that run together however large they are."""
BYTES, COPIES = 1 << 29, 8
"""What a trial may take. A row's inputs count `COPIES` times: a state lies twice where it is apart, once in place, and
once among the samples; rows are gathered for either side; and a runtime makes outputs before memory is bound."""
DIFFERENT = 5
"""Made-up rows that differ, at most."""
STEPS = 4
"""Iterations of each run: what is read after it was overwritten shows in the same one or in the next."""
STEPS_LONG = 64
"""Iterations, at most, of a run whose final states are compared as they are."""
SPAN = 64
"""Where iterations begin, at most, for loops without a maximum."""
_TRIAL, _NEWCOMER = 0, 1

Array = NDArray[Any]


def rows_held(partition: Partition) -> int:
    """Rows that a trial has memory for; fewer than `ROWS_LEAST` where rows are too large for any. Raises
    `InvalidInput` where their shape is not known."""
    return BYTES // max(1, COPIES * sum(row_bytes(partition).values()))


class Trial:
    """Two chains of a stage's nodes, and what they are both given.

    rows_max: of the runs with many rows; fewer where memory does not hold so many, but `ROWS_LEAST` in any case.
    apart: states are in place on neither side, which tells whether a body agrees with itself.
    Raises `InvalidInput` where no rows can be made up; whatever a body raises comes through.
    """

    def __init__(self, plan: StagePlan, rows_max: int, *, apart: bool = False) -> None:
        assert plan.loop is not None, "it is a loop"
        self._inputs = plan.partition.inputs
        self._loop = loop = plan.loop
        self._cycle = loop.cycle
        self._many = min(rows_max, max(ROWS_LEAST, rows_held(plan.partition)))
        # Without a maximum nobody says how much room there is, and kernels may write where there is none.
        room = _room(plan.partition, loop.cycle) if loop.most is None else loop.most
        self._last = min(room, SPAN + STEPS) if loop.most is None else room
        self._steps = min(STEPS, self._last)
        self._forms = {one.name: one.form for one in plan.given if one.reference is None}
        self._rng = np.random.default_rng(0)
        self._samples = [plan.model.sample_row(seed) for seed in range(min(DIFFERENT, self._many))]
        self._sides: list[_Side] = []
        plain = replace(loop.cycle, in_place=frozenset())
        try:
            for cycle in (plain, plain if apart else loop.cycle):
                self._sides.append(_Side(plan, cycle, self._many))
        except BaseException:
            self.end()
            raise

    def difference(self, *, only_many: bool = False) -> str | None:
        """Where the sides differ, in words; None where they do not. only_many: no runs but those with many rows."""
        return next((found for found in (self._many_runs() if only_many else self._runs()) if found), None)

    def end(self) -> None:
        """Give the memory back at once: states may be large, and bindings that take turns refer to each other."""
        for side in self._sides:
            side.chain.shutdown()
        self._sides.clear()
        self._samples.clear()
        gc.collect()

    def _runs(self) -> Iterator[str | None]:
        few = [rows for rows in ROWS if rows <= self._many]
        for rows in sorted({*few, self._many}):
            yield self._compare(rows, _starts(rows), self._steps, made_up=False)
            yield self._compare(rows, self._anywhere(rows), self._steps, made_up=True)
        if any(self._is_read(name) and name in self._forms for name in self._cycle.in_place):
            # Runs from made-up states let them differ; so they are watched for longer from where they really start.
            yield self._compare(few[-1], _starts(few[-1]), min(self._last, STEPS_LONG), made_up=False)
        if not self._loop.same_iteration:
            yield self._compare_with_newcomers(len(few))

    def _many_runs(self) -> Iterator[str | None]:
        for rows in (1, self._many):  # with one row shapes are learned; from then on memory is bound
            yield self._compare(rows, self._anywhere(rows), self._steps, made_up=True)

    def _anywhere(self, rows: int) -> NDArray[np.int64]:
        """Iterations that rows might be at."""
        positions = self._rng.integers(0, self._last - self._steps, rows, endpoint=True)
        return np.full(rows, positions[0]) if self._loop.same_iteration else positions

    def _compare(self, rows: int, positions: NDArray[np.int64], steps: int, *, made_up: bool) -> str | None:
        columns = self._columns(range(rows), made_up=made_up)
        starts = {name: _rows_of(columns[name], rows) for name in self._loose(made_up)}
        for side in self._sides:
            side.begin(_TRIAL, columns, rows)
        who = f"{rows} rows" if rows > 1 else "one row"
        found = next((one for k in range(steps) if (one := self._step(positions + k, who, starts))), None)
        for side in self._sides:
            side.chain.discard(_TRIAL)
        return found

    def _compare_with_newcomers(self, rows: int) -> str | None:
        """Rows that come one after the other: each is at an iteration of its own, however the body counts."""
        positions = _starts(0)
        starts: dict[str, list[Array]] = {}
        found = None
        for number in range(rows):
            columns = self._columns([number], made_up=False)
            for side in self._sides:
                side.begin(_NEWCOMER if number else _TRIAL, columns, 1)
                if number:
                    side.chain.merge(_TRIAL, _NEWCOMER)
            positions = np.append(positions, 0)
            for name in self._loose(made_up=False):
                starts.setdefault(name, []).extend(_rows_of(columns[name], 1))
            if int(positions[0]) >= self._last:
                break
            found = self._step(positions, f"rows at the iterations {positions.tolist()}", starts)
            if found is not None:
                break
            positions = positions + 1
        for side in self._sides:
            side.chain.discard(_TRIAL)
        return found

    def _columns(self, seeds: Sequence[int], *, made_up: bool) -> dict[str, Column]:
        """What rows are given when they come: what the program says where it says it, else values made up, and also for
        the states in place where ``made_up``: a state that starts as 0 may stay 0 for long."""
        made = [self._sample(seed) for seed in seeds]
        columns = {name: Column.of([row[name] for row in made]) for name in self._inputs}
        for name, form in self._forms.items():
            if form is not None and not (made_up and name in self._cycle.in_place):
                columns[name] = Column(form)
        return columns

    def _sample(self, seed: int) -> Mapping[str, Any]:
        return self._samples[seed % len(self._samples)]

    def _is_read(self, name: str) -> bool:
        """Whether somebody is given this state, in the end or after each iteration."""
        return name in self._loop.states or self._cycle.carried[name] in self._cycle.read

    def _loose(self, made_up: bool) -> list[str]:
        """States that may differ where they are as the row brought them (see `_agree`): not those whose start is known,
        and of those that rows bring, none that somebody is given."""
        brought = [name for name in self._cycle.in_place if name not in self._forms and not self._is_read(name)]
        return [*brought, *(name for name in self._cycle.in_place if made_up and name in self._forms)]

    def _step(self, positions: NDArray[np.int64], who: str, starts: Mapping[str, Sequence[Array]]) -> str | None:
        fed = self._fed(positions)
        plain, other = (side.step(fed) for side in self._sides)
        states = {output: name for name, output in self._cycle.carried.items()}
        for name, want in plain.items():
            if not _agree(want, other[name], starts.get(states.get(name, ""))):
                return f"{name!r} is not what it is otherwise ({who}, iteration {int(positions[0])})"
        for side in self._sides:
            side.go_on(positions)
        return None

    def _fed(self, positions: NDArray[np.int64]) -> dict[str, Array]:
        """What an iteration is given: made-up entries, and its number."""
        fed = {
            name: np.stack([self._sample(at + row)[name] for row, at in enumerate(positions.tolist())])
            for name in self._loop.each
        }
        name = self._loop.iteration
        if name is not None:
            form = self._loop.forms[name]
            numbers = positions[:1] if self._loop.same_iteration else positions
            fed[name] = numbers.astype(form.dtype).reshape(-1, *form.shape)
        return fed


def _room(partition: Partition, cycle: Cycle) -> int:
    """Iterations that the states in place surely have room for: their positions, if any, lie on one of their axes."""
    shapes = [row_dims(partition.boundaries[name]) or () for name in cycle.in_place]
    return min((dim for shape in shapes for dim in shape if dim is not None and dim > 1), default=STEPS)


def _starts(rows: int) -> NDArray[np.int64]:
    return np.zeros(rows, np.int64)


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
