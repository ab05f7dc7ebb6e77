"""The contract between a driver and whatever runs nodes.

Owns: `Row`, `Executor`, `LoopExecutor`, `Model`, `MemoryPlan`: what the engine needs of a model, and nothing of how it
is run.
Must not know: any framework, the scheduler, threads, futures.

Life of a sub-batch in an executor, always called from one thread:
`open` (rows gathered) -> `run` node 0, 1, ... -> `close` (rows scattered); in between `merge` joins two sub-batches
that stand at the same node, `evict` removes rows that were cancelled, and a parked sub-batch costs no call at all.
`discard` ends it at any point without results.

In a graph with loops the driver alone knows who stays in a loop. After the last node of a body a sub-batch stands, for
all its executor knows, at the loop's first node and behind the loop at once. What follows says which: `leave` and
`split` take rows out, and those they leave behind stand at the first node; a `run` says it by its node; a `merge` by
the nodes at which both sub-batches may stand (two that have just ended the same body may still stand at either). The
step back, next inputs, carried state and counting of iterations, is the executor's own affair.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lazybatch.core.graph import NodeGraph


@dataclass(frozen=True, slots=True)
class Row:
    """One admitted row, checked and copied, in the form its executor wants.

    signature: rows join only when equal. size: length or tokens, for budgets and buckets. length: what it was padded
    to, where its model pads rows; those of several lengths may be given to `Executor.open` if signatures are equal.
    trips: per loop of the model's graph, the iterations this row makes where that is known beforehand, else None; they
    lie within the loop's maximum. Empty: None for every loop.
    """

    values: Any
    signature: Hashable = None
    size: int = 1
    trips: tuple[int | None, ...] = ()
    length: int | None = None


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

    def run(self, sub_batch: int, node: int) -> Collection[int] | None:
        """Run one node on all rows of the sub-batch. Whatever it raises fails the sub-batch (see `discard`).

        Where the node is the last of a loop's body: the requests this iteration found to be done with the loop. Those
        that end because their trips were known, or the loop's maximum is reached, need not be among them. None, or
        nothing, elsewhere.
        """

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches at the same node: ``source`` ends, its rows live on in ``target``."""

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Remove these rows, without results. At least one row remains (a sub-batch without rows is discarded)."""

    def close(self, sub_batch: int) -> dict[int, Any]:
        """After the last node: results by request id (an exception instance fails that row alone). Ends it."""

    def discard(self, sub_batch: int) -> None:
        """End a sub-batch without results, at any point, also after a call for it raised; one that is gone already is
        ignored."""

    def shutdown(self) -> None:
        """Free everything. No call follows."""


class LoopExecutor(Executor, Protocol):
    """Runs the nodes of a model whose graph has loops. What the rows of a sub-batch have behind them may differ.

    A row that is done does not always leave at once: policies that run whole batches keep it until all are. It is run
    along then, but its state, its collected outputs and its number of iterations stay what they were when it was done.
    Where the others are cancelled meanwhile, one more iteration runs for nobody before the rest leaves.
    """

    def leave(self, sub_batch: int, requests: Collection[int]) -> dict[int, Any]:
        """After the last node, where that ends a loop: results, as of `close`, of those that leave. Others stay: they
        stand at the loop's first node."""

    def split(self, sub_batch: int, target: int, requests: Collection[int]) -> None:
        """After the last node of a body: these rows leave the loop and are sub-batch ``target`` at the node behind it.
        Others stay: they stand at the loop's first node."""

    def emitted(self, sub_batch: int) -> Mapping[int, Mapping[str, Any]]:
        """Right after the last node of a body ran: by request, the outputs collected in this iteration, by name.

        Only asked for where somebody listens, at most once per iteration, and before any row leaves. The values are the
        listener's to keep. Rows that were done before this iteration have none.
        """


class Model(Protocol):
    """A loaded model: its node graph, its contract with callers, and the maker of its executor."""

    @property
    def name(self) -> str:
        """Short name, for stats, traces and errors."""

    @property
    def graph(self) -> NodeGraph:
        """The chains and loops the scheduler sees."""

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
        """A fresh executor with memory planned for ``max_batch_size`` rows, a `LoopExecutor` where the graph has loops.

        Raises `ModelError`, `InvalidInput`.
        """
