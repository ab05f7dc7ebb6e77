"""One stage of a program at work: a loop whose body rows run again and again.

Owns: `LoopStage`: what a loop's rows are given, and what is taken of them, from one iteration to the next.
Must not know: other stages, the scheduler, which runtime runs the nodes.

A loop's rows stand at its first node with nothing but their state: what an iteration is given (entries, its number) is
written when it begins, so parked rows, merged rows and newcomers are all alike. When it ends, flags, collected outputs
and slices are read as arrays over all rows, final values of those that are done are taken, and the state goes round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError, InvariantError
from lazybatch.executors.chain import ChainExecutor
from lazybatch.executors.program.given import NO_BLOCKS, Blocks
from lazybatch.executors.program.plan import LoopPlan, StagePlan
from lazybatch.executors.program.rows import Traveller, iterations
from lazybatch.executors.program.stage import ChainStage
from lazybatch.executors.tally import NEVER, Tally
from lazybatch.executors.tape import Tape
from lazybatch.program import Reference

_BOOL = np.dtype(np.bool_)
TAPES_MAX = 64
"""Signatures whose tapes are kept although no row has a place there."""


class LoopStage(ChainStage):
    """Rows go round, each as often as it must."""

    def __init__(self, plan: StagePlan, chain: ChainExecutor[Any]) -> None:
        super().__init__(plan, chain)
        assert plan.loop is not None, "it is a loop"
        self._loop: LoopPlan = plan.loop
        self._cycle = plan.loop.cycle
        self._store = chain.store
        self._tapes: OrderedDict[Hashable, Tape] = OrderedDict()
        self._most = NEVER if plan.loop.most is None else plan.loop.most
        self.rounds = NEVER
        """After so many iterations a row is done, whatever it says; for measuring."""
        self.onward: Callable[[Traveller], None] | None = None
        """Asked of every row that made its last iteration, while the node may fail: raises where it cannot go on."""
        self._emitted: tuple[Any, NDArray[np.intp] | None] | None = None
        self._collected = tuple(Reference(plan.name, name) for name in plan.loop.collected)
        self._number = plan.loop.forms.get(plan.loop.iteration or "")
        self._begin = chain.in_order(self._begin_iteration)
        self.step = chain.in_order(self._end_iteration)
        """See `_end_iteration`."""

    @property
    def tape_bytes(self) -> int:
        """Bytes of what rows collect and are given per iteration."""
        return sum(tape.nbytes for tape in self._tapes.values())

    def check(self, row: Traveller) -> None:
        """See `ChainStage.check`."""
        super().check(row)
        iterations(self.plan.name, self._loop, row, self.rounds)

    def open(self, sub_batch: int, rows: Mapping[int, Traveller], padded_rows: int, blocks: Blocks = NO_BLOCKS) -> None:
        """See `ChainStage.open`."""
        loop = self._loop
        if loop.ended_by is None and not loop.each:
            counts = [self.rounds] * len(rows)
        else:
            counts = [iterations(self.plan.name, loop, row, self.rounds) for row in rows.values()]
        super().open(sub_batch, rows, padded_rows, blocks)
        state = self.chain.state(sub_batch)
        state.tally = tally = Tally(np.array(counts, np.int64), self._tape(state.signature), self._most)
        for name, reference in self._loop.each.items():
            for place, row in zip(tally.places.tolist(), rows.values(), strict=True):
                tally.tape.record(name, place, row.tensors[reference])

    def _tape(self, signature: Hashable) -> Tape:
        """Where rows of this signature keep their steps. Those of a body that is not joinable may each have shapes of
        their own: they share none."""
        tape = self._tapes.get(signature) if self.plan.partition.joinable else None
        if tape is None:
            if len(self._tapes) >= TAPES_MAX:
                for old in [key for key, one in self._tapes.items() if not one.rows][
                    : len(self._tapes) - TAPES_MAX + 1
                ]:
                    del self._tapes[old]
            tape = self._tapes[signature] = Tape()
        return tape

    def run(self, state: Any, node: int) -> None:
        """Run one node on all rows; before the first, write what this iteration is given."""
        if node == 0:
            self._begin(state)
        self.chain.advance(state, node)

    def _begin_iteration(self, state: Any) -> None:
        tally, store, loop = state.tally, self._store, self._loop
        if tally.news:
            for name in self._cycle.grown:
                store.blank(state, name, tally.fresh)
            tally.began()
        if loop.each:
            spots = tally.find_spots()
            for name in loop.each:
                store.feed(state, name, tally.tape.read(name, spots))
        form = self._number
        if form is not None and loop.iteration is not None:
            numbers = tally.position
            if loop.same_iteration:
                numbers = numbers.max(keepdims=True)
            if form.dtype != numbers.dtype:
                numbers = numbers.astype(form.dtype)
            store.feed(state, loop.iteration, numbers.reshape(-1, *form.shape) if form.shape else numbers)

    def _end_iteration(self, state: Any, rows: Mapping[int, Traveller]) -> list[int]:
        """The body's last node ran: the iteration ends. The requests that this one was the last of, but for those that
        only the loop's maximum ended.

        Raises `ExecutionError` for outputs that are not what the loop needs.
        """
        tally, loop = state.tally, self._loop
        if loop.collect:
            self._collect(state)
        if self._cycle.grown:
            self._grow(state)
        flags = None if loop.done is None else self._flags(state, loop.done)
        leaving = tally.ending(flags)
        self._emitted = (state, leaving)
        if leaving is None:
            self.chain.again(state)
            tally.end()
            return []
        made = [position + 1 for position in tally.position[leaving].tolist()]
        ended = [True] * len(made)
        if tally.due:
            ended = [count >= trips for count, trips in zip(made, tally.trips[leaving].tolist(), strict=True)]
            if flags is not None:
                ended = [flag or counted for flag, counted in zip(flags[leaving].tolist(), ended, strict=True)]
        requests = [state.requests[row] for row in leaving.tolist()]
        self._take_finals(state, leaving, made, ended, [rows[request] for request in requests])
        self.chain.again(state)
        tally.end(leaving)
        return [request for request, one in zip(requests, ended, strict=True) if one]

    def _grow(self, state: Any) -> None:
        """What was made for inputs that grow is written there, but for rows that are over."""
        tally = state.tally
        going = (~tally.over).nonzero()[0] if tally.overs else None
        positions = tally.position if going is None else tally.position[going]
        for name, growth in self._cycle.grown.items():
            self._store.extend(state, name, growth, going, positions)

    def _flags(self, state: Any, name: str) -> NDArray[np.bool_]:
        flags = self._store.peek(state, name)
        if flags.dtype == _BOOL and flags.shape == (len(state.requests),):
            return flags
        if flags.size != len(state.requests):
            raise ExecutionError(
                f"stage {self.plan.name!r}: done {name!r} has the shape {list(flags.shape[1:])} per row; it must be "
                "one flag"
            )
        flags = flags.reshape(-1)
        return flags if flags.dtype == _BOOL else flags != 0

    def _collect(self, state: Any) -> None:
        """Of all rows: those that are over took what they collected, and write over the last of it."""
        tally, store = state.tally, self._store
        spots = tally.find_spots()
        for name in self._loop.collect:
            try:
                tally.tape.write(name, spots, store.peek(state, name))
            except ValueError as error:
                raise ExecutionError(f"stage {self.plan.name!r}: output {name!r} is collected: {error}") from error

    def emitted(self, sub_batch: int) -> dict[int, dict[str, Any]]:
        """What each row collected in the iteration that just ended; see `LoopExecutor.emitted`."""
        state = self.chain.state(sub_batch)
        if not self._loop.collect or self._emitted is None or self._emitted[0] is not state:
            return {}
        tally, requests, leaving = state.tally, state.requests, self._emitted[1]
        places, positions = tally.places, tally.position - ~tally.over  # who goes on stands one further by now
        if tally.overs:
            before = tally.over.copy()
            if leaving is not None:
                before[leaving] = False
            going = (~before).nonzero()[0]
            requests = [requests[row] for row in going.tolist()]
            places, positions = places[going], positions[going]
        spots = tally.tape.spots(places, positions)
        steps = {name: tally.tape.read(name, spots) for name in self._loop.collect}
        return {
            request: {name: np.array(values[row], values.dtype) for name, values in steps.items()}
            for row, request in enumerate(requests)
        }

    def _take_finals(
        self,
        state: Any,
        leaving: NDArray[np.intp],
        made: Sequence[int],
        done: Sequence[bool],
        travellers: Sequence[Traveller],
    ) -> None:
        """These rows made their last iteration, as many as ``made`` says: they take what is needed of it, before their
        state goes round."""
        loop, tally = self._loop, state.tally
        if loop.collected:
            kept = tally.tape.sequences(loop.collected, tally.places[leaving], made)
            for reference, sequences in zip(self._collected, kept, strict=True):
                for traveller, sequence in zip(travellers, sequences, strict=True):
                    traveller.tensors[reference] = sequence
        for name in loop.states:
            self._take_state(state, name, leaving.tolist(), made, travellers)
        number = loop.number
        for traveller, trips, one in zip(travellers, made, done, strict=True):
            traveller.trips[number] = trips
            if not one:
                self._truncate(traveller, trips)
            if self.onward is not None:
                self._go_on(traveller, self.onward)

    def _take_state(
        self, state: Any, name: str, rows: Sequence[int], made: Sequence[int], travellers: Sequence[Traveller]
    ) -> None:
        """The final value of one state; of one that grows, the part that was filled."""
        values = self._store.peek(state, self._cycle.carried.get(name, name), name)
        growth, reference = self._cycle.grown.get(name), Reference(self.plan.name, name)
        for row, trips, traveller in zip(rows, made, travellers, strict=True):
            value = values[row]
            if growth is not None:
                value = value[(slice(None),) * growth.axis + (slice(trips),)]
            traveller.tensors[reference] = np.array(value, values.dtype, order="C")

    def _truncate(self, traveller: Traveller, trips: int) -> None:
        """The loop's maximum ended this row."""
        traveller.truncated = True
        if self._loop.at_max == "error" and traveller.error is None:
            traveller.error = ExecutionError(
                f"stage {self.plan.name!r}: the row is not done after {trips} iterations, the most it may make"
            )

    def _go_on(self, traveller: Traveller, onward: Callable[[Traveller], None]) -> None:
        """Rows that leave are moved when the scheduler knows of it, and then all that move together would be lost."""
        try:
            onward(traveller)
        except ExecutionError as error:
            raise traveller.error or error from None

    def ended(self, sub_batch: int) -> bool:
        """Whether all rows made their last iteration."""
        state = self.chain.state(sub_batch)
        return bool(state.cursor == 0 and state.tally.all_over)

    def over(self, sub_batch: int, requests: Collection[int], rows: Mapping[int, Traveller]) -> bool:
        """Whether all these rows made their last iteration: then they know how many they made."""
        number = self._loop.number
        if self.chain.state(sub_batch).cursor:
            return False
        return all(request in rows and rows[request].trips[number] for request in requests)

    def finish(self, sub_batch: int, rows: Mapping[int, Traveller]) -> Blocks:
        """Rows took what is needed when they made their last iteration."""
        return NO_BLOCKS

    def merge(self, target: int, source: int) -> None:
        """See `ChainStage.merge`. Where the body cannot mix iterations, they must be equal."""
        if self._loop.same_iteration:
            tallies = [self.chain.state(sub_batch).tally for sub_batch in (target, source)]
            if len({int(tally.position[~tally.over].max()) for tally in tallies if not tally.all_over}) > 1:
                raise InvariantError(
                    f"sub-batches {target} and {source} stand at different iterations of stage {self.plan.name!r}"
                )
        super().merge(target, source)
        self._emitted = None  # it was asked for by now, and one of the two is no more

    def end(self, sub_batch: int) -> None:
        """See `ChainStage.end`."""
        state = self.chain.find(sub_batch)
        super().end(sub_batch)
        if state is None:
            return
        if self._emitted is not None and self._emitted[0] is state:
            self._emitted = None
        if state.tally is not None:
            state.tally.tape.end(state.tally.places)

    def shutdown(self) -> None:
        """See `ChainStage.shutdown`."""
        super().shutdown()
        self._emitted = None
        self._tapes.clear()
