"""The contract between a driver and whatever runs nodes.

Owns: `Row`, `Executor`, `Model`, `MemoryPlan`: what the engine needs of a model, and nothing of how it is run.
Must not know: any framework, the scheduler, threads, futures.

Life of a sub-batch in an executor, always called from one thread:
`open` (rows gathered) -> `run` node 0, 1, ... -> `close` (rows scattered); in between `merge` joins two sub-batches
that stand at the same node, `evict` removes rows that were cancelled, and a parked sub-batch costs no call at all.
`discard` ends it at any point without results.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lazybatch.core.graph import NodeGraph


@dataclass(frozen=True, slots=True)
class Row:
    """One admitted row, checked and copied, in the form its executor wants.

    signature: rows join only when equal. size: length or tokens, for budgets and buckets.
    """

    values: Any
    signature: Hashable = None
    size: int = 1


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes an executor plans to use, for the maximum batch. ``total`` is what the process should grow by."""

    weights_bytes: int
    buffers_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.buffers_bytes + self.scratch_bytes


class Executor(Protocol):
    """Runs the nodes of one model. Calls for one sub-batch never overlap; see the module's text for their order."""

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Start a sub-batch with these rows (request id -> row, equal signatures). No node runs yet."""

    def run(self, sub_batch: int, node: int) -> None:
        """Run one node on all rows of the sub-batch. Whatever it raises fails the sub-batch (see `discard`)."""

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches at the same node: ``source`` ends, its rows live on in ``target``."""

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Remove these rows, without results. At least one row remains (a sub-batch without rows is discarded)."""

    def close(self, sub_batch: int) -> dict[int, Any]:
        """After the last node: results by request id (an exception instance fails that row alone). Ends it."""

    def discard(self, sub_batch: int) -> None:
        """End a sub-batch without results, at any point, also after `run` raised."""

    def shutdown(self) -> None:
        """Free everything. No call follows."""


class Model(Protocol):
    """A loaded model: its node graph, its contract with callers, and the maker of its executor."""

    @property
    def name(self) -> str:
        """Short name, for stats, traces and errors."""

    @property
    def graph(self) -> NodeGraph:
        """The chain the scheduler sees."""

    @property
    def joinable(self) -> bool:
        """Whether rows of different requests may share a sub-batch: proved, never guessed."""

    @property
    def reason(self) -> str | None:
        """Why rows cannot be joined; None where they can."""

    @property
    def fingerprint(self) -> str:
        """Identity of model and partition, for latency tables."""

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row (no batch axis). Raises `InvalidInput` naming the culprit."""

    def executor(self, *, max_batch_size: int) -> Executor:
        """A fresh executor with memory planned for ``max_batch_size`` rows. Raises `ModelError`, `InvalidInput`."""
