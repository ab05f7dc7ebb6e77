"""What every model made of a partition says of itself, whichever framework runs its nodes.

Owns: `PartitionedModel`. Must not know: frameworks, how rows are admitted and run, buffers.
"""

from __future__ import annotations

from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.executors.base import Executor, Row
from lazybatch.executors.chain import ChainExecutor
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.sample import sample_row
from lazybatch.partition.pieces import Partition
from lazybatch.words import counted


class PartitionedModel:
    """The part of the `Model` contract that the partition alone answers."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    def __repr__(self) -> str:
        joining = "joinable" if self.joinable else "not joinable"
        return f"{type(self).__name__}({self.name!r}, {counted(len(self.graph), 'node')}, {joining})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.partition.model

    @property
    def graph(self) -> NodeGraph:
        """The chain the scheduler sees."""
        return self.partition.graph()

    @property
    def joinable(self) -> bool:
        """Whether rows of different requests may share a sub-batch."""
        return self.partition.joinable

    @property
    def reason(self) -> str | None:
        """Why rows cannot be joined; None where they can."""
        return self.partition.reason

    @property
    def fingerprint(self) -> str:
        """Identity of model and partition."""
        return self.partition.fingerprint

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row. Raises `InvalidInput` naming the culprit."""
        raise NotImplementedError

    def executor(self, *, max_batch_size: int) -> Executor:
        """A fresh executor, with memory planned for ``max_batch_size`` rows."""
        raise NotImplementedError

    def chain(self, *, max_batch_size: int, cycle: Cycle | None = None) -> ChainExecutor[Any]:
        """A fresh executor for whoever runs this model as a part of something larger, without memory planned yet.

        cycle: how rows go round, where they run the nodes again and again.
        """
        raise NotImplementedError

    @property
    def loaded_bytes(self) -> int:
        """What loading it took besides its weights, where that is known."""
        return 0

    def sample_row(self, seed: int) -> dict[str, Any]:
        """One made-up row as callers give it; see `lazybatch.executors.sample`. Raises `InvalidInput`."""
        return sample_row(self.partition, seed)
