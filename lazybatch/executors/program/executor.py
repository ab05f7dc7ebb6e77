"""Runs programs: sub-batches whose rows go through chains and loops, each at its own pace.

Owns: `ProgramExecutor`: which stage a sub-batch is in, what rows take from stage to stage, and memory for all of it.
Must not know: the scheduler, threads, time, which runtime runs the nodes.

Rows that pass a chain take what later stages need and are gathered there at once; rows that are done with a loop took
it with their last iteration. So after each iteration a sub-batch stands at its loop's first node and, where all its
rows are over (`Tally`), behind the loop as well: the next call shows which, and nothing has to be told to step back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from lazybatch.errors import ExecutionError, InvariantError
from lazybatch.executors.base import MemoryPlan, Row
from lazybatch.executors.chain import rows_capacity
from lazybatch.executors.program.given import NO_BLOCKS, Blocks
from lazybatch.executors.program.loop_stage import LoopStage
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.program.rows import Traveller
from lazybatch.executors.program.stage import ChainStage
from lazybatch.executors.resident import resident_bytes
from lazybatch.executors.tally import NEVER
from lazybatch.program import Reference

_REHEARSAL = -1
"""Sub-batch of a planning run; schedulers count from 0."""
_TURNS = 2
"""Iterations of a planning run: in the second one, carried tensors have changed places."""


class ProgramExecutor:
    """A `LoopExecutor`; see the module's text. outputs: by the name callers see: the row's tensor.

    loaded_bytes: what the process grew by when the models were loaded.
    Raises `InvalidInput` for a ``max_batch_size`` below 1.
    """

    def __init__(
        self,
        plans: Sequence[StagePlan],
        outputs: Mapping[str, Reference],
        *,
        max_batch_size: int,
        joinable: bool,
        loaded_bytes: int = 0,
    ) -> None:
        rows_capacity(plans[0].partition, max_batch_size)
        self._capacity = max_batch_size if joinable else 1
        self._stages: list[ChainStage] = []
        for plan in plans:
            cycle = None if plan.loop is None else plan.loop.cycle
            chain = plan.model.chain(max_batch_size=self._capacity, cycle=cycle)
            self._stages.append((ChainStage if plan.loop is None else LoopStage)(plan, chain))
        for stage, following in pairwise(self._stages):
            if isinstance(stage, LoopStage):
                stage.onward = following.check
        self._stages[-1].kept = needed = frozenset(outputs.values())
        for stage, following in reversed([*pairwise(self._stages)]):
            stage.handed_on, single = following.plan.taken
            stage.kept = needed | single
            needed = stage.kept | stage.handed_on
        # By node of the whole graph: its stage, that one's number, which of its nodes it is, whether it is the last.
        self._nodes = [
            (stage, number, node, node + 1 == stage.nodes)
            for number, stage in enumerate(self._stages)
            for node in range(stage.nodes)
        ]
        self._outputs = outputs
        self._loops = sum(plan.loop is not None for plan in plans)
        self._at: dict[int, int] = {}
        self._rows: dict[int, Traveller] = {}
        self._grown_bytes = loaded_bytes
        self._scratch_bytes = 0

    # -- the life of a sub-batch -----------------------------------------------------------------------------------

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """See `Executor.open`."""
        if sub_batch in self._at or not rows or len(rows) > self._capacity:
            raise InvariantError(f"sub-batch {sub_batch} opened twice, empty, or with {len(rows)} rows")
        travellers = {request: Traveller(row.values, self._loops) for request, row in rows.items()}
        self._enter(0, sub_batch, travellers, padded_rows)
        self._at[sub_batch] = 0
        self._rows.update(travellers)

    def run(self, sub_batch: int, node: int) -> list[int] | None:
        """See `Executor.run`."""
        stage, number, inner, last = self._nodes[node]
        if self._at[sub_batch] != number:
            self._arrive(sub_batch)
            if self._at[sub_batch] != number:
                raise InvariantError(
                    f"sub-batch {sub_batch} is in stage {self._at[sub_batch]}, node {node} in {number}"
                )
        state = stage.chain.state(sub_batch)
        try:
            stage.run(state, inner)
            if not last:
                return None
            if isinstance(stage, LoopStage):
                return stage.step(state, self._rows)
        except ExecutionError as error:
            raise _named(stage, error) from error.__cause__
        self._arrive(sub_batch)
        return None

    def _arrive(self, sub_batch: int) -> None:
        """Where all rows stand behind their stage, and another one follows, they come to that."""
        number = self._at[sub_batch]
        stage = self._stages[number]
        if number + 1 == len(self._stages) or not stage.ended(sub_batch):
            return
        blocks = stage.finish(sub_batch, self._rows)
        travellers = {request: self._rows[request] for request in stage.requests(sub_batch)}
        self._enter(number + 1, sub_batch, travellers, stage.rows(sub_batch), blocks)
        stage.end(sub_batch)
        self._at[sub_batch] = number + 1

    def _enter(
        self,
        number: int,
        sub_batch: int,
        travellers: Mapping[int, Traveller],
        padded_rows: int,
        blocks: Blocks = NO_BLOCKS,
    ) -> None:
        """Rows come to a stage, all of them or none."""
        try:
            self._stages[number].open(sub_batch, travellers, padded_rows, blocks)
        except BaseException:
            self._stages[number].end(sub_batch)
            raise

    def merge(self, target: int, source: int) -> None:
        """See `Executor.merge`.

        Two that ended the same loop are joined where they lie, wherever they stand: what they took of it is theirs.
        """
        if self._at[target] != self._at[source]:
            self._arrive(min(target, source, key=self._at.__getitem__))
        number = self._at[target]
        if number != self._at[source]:
            raise InvariantError(f"sub-batches {target} and {source} do not stand at the same node")
        self._stages[number].merge(target, source)
        del self._at[source]

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """See `Executor.evict`."""
        self._stages[self._at[sub_batch]].evict(sub_batch, requests)
        for request in requests:
            del self._rows[request]

    def split(self, sub_batch: int, target: int, requests: Collection[int]) -> None:
        """See `LoopExecutor.split`."""
        number = self._over(sub_batch, requests)
        if number + 1 == len(self._stages) or target in self._at:
            raise InvariantError(f"sub-batch {sub_batch}: nothing follows its loop, or {target} is in use")
        self._enter(number + 1, target, {request: self._rows[request] for request in requests}, len(requests))
        self._at[target] = number + 1
        self._stages[number].evict(sub_batch, requests)

    def leave(self, sub_batch: int, requests: Collection[int]) -> dict[int, Any]:
        """See `LoopExecutor.leave`."""
        number = self._over(sub_batch, requests)
        if number + 1 != len(self._stages):
            raise InvariantError(f"sub-batch {sub_batch}: another stage follows its loop")
        results = {request: self._rows[request].result(self._outputs) for request in requests}
        self.evict(sub_batch, requests)
        return results

    def _over(self, sub_batch: int, requests: Collection[int]) -> int:
        """The stage of a sub-batch of which these rows are done with a loop."""
        number = self._at[sub_batch]
        stage = self._stages[number]
        if not isinstance(stage, LoopStage) or not stage.over(sub_batch, requests, self._rows):
            raise InvariantError(f"sub-batch {sub_batch}: rows {sorted(requests)} are not all done with a loop")
        return number

    def close(self, sub_batch: int) -> dict[int, Any]:
        """See `Executor.close`: a `ProgramResult` per row, or what went wrong with it."""
        number = self._at[sub_batch]
        stage = self._stages[number]
        if number + 1 != len(self._stages) or not stage.ended(sub_batch):
            raise InvariantError(f"sub-batch {sub_batch} closed in stage {stage.plan.name!r}, before its end")
        stage.finish(sub_batch, self._rows)
        results = {request: self._rows[request].result(self._outputs) for request in stage.requests(sub_batch)}
        self.discard(sub_batch)
        return results

    def discard(self, sub_batch: int) -> None:
        """See `Executor.discard`."""
        number = self._at.pop(sub_batch, None)
        if number is None:
            return
        stage = self._stages[number]
        for request in stage.requests(sub_batch):
            del self._rows[request]
        stage.end(sub_batch)

    def emitted(self, sub_batch: int) -> Mapping[int, Mapping[str, NDArray[Any]]]:
        """See `LoopExecutor.emitted`."""
        stage = self._stages[self._at[sub_batch]]
        return stage.emitted(sub_batch) if isinstance(stage, LoopStage) else {}

    def shutdown(self) -> None:
        """Free everything; what runs the nodes belongs to the models."""
        self._at.clear()
        self._rows.clear()
        for stage in self._stages:
            stage.shutdown()

    def limit(self, rounds: Sequence[int]) -> None:
        """For measuring: whatever rows say, none makes more than so many iterations, per loop."""
        loops = [stage for stage in self._stages if isinstance(stage, LoopStage)]
        for stage, most in zip(loops, rounds, strict=True):
            stage.rounds = most

    # -- memory ----------------------------------------------------------------------------------------------------

    def plan(self, row: Row) -> MemoryPlan:
        """Learn the shapes of this row's signature at every stage, and lay out memory for the maximum batch of such
        rows, states and room for what grows included.

        Runs a few iterations of every loop. Call it before serving, and not while other code allocates. Raises
        `ExecutionError`.
        """
        before = resident_bytes()
        self.limit([_TURNS] * self._loops)
        try:
            self._rehearse(row, 1)
            for stage in self._stages:
                stage.prepare()
                stage.chain.watch(True)
            for _ in range(2):
                results = self._rehearse(row, self._capacity)
        finally:
            self.limit([NEVER] * self._loops)
            for stage in self._stages:
                stage.chain.watch(False)
        self._grown_bytes += max(0, (resident_bytes() or 0) - (before or 0))
        del results  # callers hold theirs while the next batch runs
        so_far = self.memory()
        self._scratch_bytes = max(0, self._grown_bytes - so_far.weights_bytes - so_far.buffers_bytes)
        return self.memory()

    def memory(self) -> MemoryPlan:
        """What is planned so far, over all stages: weights; buffers, states and what rows collect; and scratch memory
        of the process as `plan` saw it. What a device takes besides, for recordings for one, is not counted."""
        parts = [stage.chain.memory() for stage in self._stages]
        tapes = sum(stage.tape_bytes for stage in self._stages if isinstance(stage, LoopStage))
        return MemoryPlan(
            sum(part.weights_bytes for part in parts),
            sum(part.buffers_bytes for part in parts) + tapes,
            self._scratch_bytes,
        )

    def _rehearse(self, row: Row, rows: int) -> dict[int, Any]:
        """Take copies of one row through all stages, a few iterations each."""
        sub_batch = _REHEARSAL
        self.open(sub_batch, {-request: row for request in range(1, rows + 1)}, rows)
        try:
            for number, stage in enumerate(self._stages):
                if self._at[sub_batch] != number:
                    self._arrive(sub_batch)
                state = stage.chain.state(sub_batch)
                for _ in range(_TURNS if isinstance(stage, LoopStage) else 1):
                    for node in range(stage.nodes):
                        stage.run(state, node)
                    if isinstance(stage, LoopStage):
                        stage.step(state, self._rows)
                        if stage.ended(sub_batch):
                            break
            return self.close(sub_batch)
        finally:
            self.discard(sub_batch)


def _named(stage: ChainStage, error: ExecutionError) -> ExecutionError:
    """The error with the name of its stage, unless it names one: a row may have come to what the next does not take."""
    text = str(error)
    return error if text.startswith("stage ") else ExecutionError(f"stage {stage.plan.name!r}: {text}")
