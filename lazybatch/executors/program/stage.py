"""One stage of a program at work: a chain that rows pass once.

Owns: `ChainStage`: what happens to rows when they come to a stage, between its nodes, and when they leave it.
Must not know: other stages, the scheduler, which runtime runs the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError
from lazybatch.executors.chain import ChainExecutor
from lazybatch.executors.program.given import NO_BLOCKS, Blocks, columns_for, signature_of
from lazybatch.executors.program.plan import StagePlan
from lazybatch.executors.program.rows import Traveller, check_padded
from lazybatch.executors.rows import copied
from lazybatch.partition.pieces import Kind
from lazybatch.program import Reference


class ChainStage:
    """Rows pass once."""

    def __init__(self, plan: StagePlan, chain: ChainExecutor[Any]) -> None:
        self.plan = plan
        self.chain = chain
        self.nodes = len(plan.partition.pieces)
        self._offered = tuple((name, Reference(plan.name, name)) for name in plan.outputs)
        boundaries = plan.partition.boundaries
        self._shared = tuple(one.name for one in plan.given if boundaries[one.name].kind is Kind.SHARED)
        self._signature: Hashable = None
        self.handed_on: frozenset[Reference] = frozenset()
        """Tensors that the next stage is given as they are."""
        self.kept: frozenset[Reference] = frozenset()
        """Tensors that rows need of their own."""

    def requests(self, sub_batch: int) -> list[int]:
        """Its rows, in their order."""
        requests: list[int] = self.chain.state(sub_batch).requests
        return requests

    def rows(self, sub_batch: int) -> int:
        """Rows it executes, padding included."""
        rows: int = self.chain.state(sub_batch).rows
        return rows

    def check(self, row: Traveller) -> None:
        """Raises `ExecutionError` where a row has come to tensors that this stage does not take."""
        check_padded(self.plan, row)

    def open(self, sub_batch: int, rows: Mapping[int, Traveller], padded_rows: int, blocks: Blocks = NO_BLOCKS) -> None:
        """Rows come to this stage; blocks: what they bring besides what they keep, in their order.

        Raises `ExecutionError` where their tensors do not fit it, or each other.
        """
        columns = columns_for(self.plan, list(rows.values()), blocks)
        self._signature = signature_of(self.plan.name, columns, self._shared)
        try:
            self.chain.enter(sub_batch, list(rows), columns, self._signature, padded_rows)
        except ValueError as error:
            raise ExecutionError(f"stage {self.plan.name!r}: its rows cannot be gathered: {error}") from error

    def run(self, state: Any, node: int) -> None:
        """Run one node on all rows of a sub-batch."""
        self.chain.advance(state, node)

    def ended(self, sub_batch: int) -> bool:
        """Whether all rows stand behind this stage."""
        state = self.chain.state(sub_batch)
        return bool(state.cursor == self.nodes)

    def finish(self, sub_batch: int, rows: Mapping[int, Traveller]) -> Blocks:
        """All rows stand behind this stage: each takes what it needs of it later. What only the next stage reads, and
        as it is, is returned instead."""
        blocks: dict[Reference, NDArray[Any]] = {}
        with self.chain.ordered():
            for name, reference in self._offered:
                block = self.chain.block(sub_batch, name)
                if block is None:
                    for request, outputs in self.chain.take(sub_batch, (name,)).items():
                        rows[request].tensors[reference] = outputs[name]
                    continue
                if reference in self.handed_on:
                    blocks[reference] = copied(block)
                if reference in self.kept:
                    for request, value in zip(self.requests(sub_batch), block, strict=True):
                        rows[request].tensors[reference] = np.array(value, block.dtype, order="C")
        return blocks

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches at the same node."""
        self.chain.merge(target, source)

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Remove these rows; at least one remains."""
        self.chain.evict(sub_batch, requests)

    def prepare(self) -> None:
        """Have memory for the maximum batch of rows like those that came last, which ran, really there."""
        self.chain.prepare(self._signature)

    def end(self, sub_batch: int) -> None:
        """Its rows are gone; a sub-batch that never came is no matter."""
        self.chain.discard(sub_batch)

    def shutdown(self) -> None:
        """Free everything; what runs the nodes belongs to the model."""
        self.chain.shutdown()
