"""Runs the nodes of a torch model on sub-batches that can be parked, merged and thinned out.

Owns: `TorchExecutor`: how a node is run on a sub-batch, and what memory it takes.
Must not know: the scheduler, threads, time, how the model was cut, where rows lie (`TorchStore` does).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from lazybatch.executors.base import MemoryPlan, Row
from lazybatch.executors.chain import ChainExecutor, rows_capacity
from lazybatch.executors.columns import Columns
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.resident import resident_bytes
from lazybatch.executors.torch.frames import Frames
from lazybatch.executors.torch.piece import Device, TorchPiece
from lazybatch.executors.torch.rows import TorchBatch, TorchStore
from lazybatch.partition.pieces import Partition

SETS_PLANNED = 2
"""Sub-batches that memory is counted for: the active one, and one that is parked."""


class TorchExecutor(ChainExecutor[TorchBatch]):
    """An `Executor` over the graph modules of one partition; see the module's text.

    weights_bytes: of all nodes, those shared by several counted once. cycle: how rows go round, where they do.
    frames: recordings of nodes, where they can be replayed; not for rows that go round.

    A GPU runs ahead by one node: `run` returns when the node before it has run, but for executors that are `in_step`.
    Raises `InvalidInput` for a ``max_batch_size`` below 1.
    """

    def __init__(
        self,
        partition: Partition,
        pieces: Sequence[TorchPiece],
        places: Mapping[str, Tensor],
        device: Device,
        *,
        max_batch_size: int,
        weights_bytes: int = 0,
        cycle: Cycle | None = None,
        frames: Frames | None = None,
    ) -> None:
        store = TorchStore(partition, rows_capacity(partition, max_batch_size), places, cycle)
        super().__init__(partition, store, cycle)
        self.pieces = pieces
        self._store: TorchStore = store
        self._device = device
        self._weights_bytes = weights_bytes
        self._buffers_bytes = 0
        self._scratch_bytes = 0
        self._planning = False
        self._in_step = False
        self.frames = frames
        live = store.live
        self._dead = [
            tuple((live[node] | set(piece.outputs)) - live[node + 1]) for node, piece in enumerate(partition.pieces)
        ]

    def plan(self, row: Row) -> MemoryPlan:
        """Run the maximum batch of such rows once, and note what it takes: torch's allocator keeps it ready.

        Of recordings, those of this batch are counted; those of other numbers of rows and other signatures, up to
        `FRAMES_MAX` frames with memory of their own, are not. Raises `ExecutionError`.
        """
        self._rehearse(row, 1)
        held, before = self._device.forget_peak(), resident_bytes() or 0
        self.watch(True)
        try:
            results = self._rehearse(row, self._store.capacity)
        finally:
            self.watch(False)
        peak = self._device.peak_bytes()
        grown = max(0, (resident_bytes() or 0) - before) if peak is None else peak - held
        del results  # callers hold theirs while the next batch runs
        self._scratch_bytes = max(0, grown - self._buffers_bytes)
        return self.memory()

    def in_step(self) -> None:
        """From now on `run` returns when its node has run: whoever measures wants to know how long that took."""
        self._in_step = True

    @property
    def runs_ahead(self) -> bool:
        """Whether `run` returns while its node still runs, unless `in_step`: it runs while the caller decides."""
        return self._device.stream is not None

    def shutdown(self) -> None:
        """See `ChainExecutor.shutdown`."""
        super().shutdown()
        if self.frames is not None:
            self.frames.clear()

    def watch(self, on: bool) -> None:
        """See `ChainExecutor.watch`: of values alive between nodes."""
        self._planning = on

    def ordered(self) -> AbstractContextManager[Any]:
        """See `ChainExecutor.ordered`."""
        return self._device.ordered()

    def memory(self) -> MemoryPlan:
        """What is planned so far: weights, values alive between nodes, and what `plan` saw nodes take besides."""
        sets = SETS_PLANNED if self._store.capacity > 1 else 1
        return MemoryPlan(self._weights_bytes, sets * self._buffers_bytes, self._scratch_bytes)

    def enter(
        self, sub_batch: int, requests: Sequence[int], columns: Columns, signature: Hashable, padded_rows: int
    ) -> None:
        """See `ChainExecutor.enter`."""
        with self._device.ordered():
            super().enter(sub_batch, requests, columns, signature, padded_rows)

    def merge(self, target: int, source: int) -> None:
        """See `ChainExecutor.merge`."""
        with self._device.ordered():
            super().merge(target, source)

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """See `ChainExecutor.evict`."""
        with self._device.ordered():
            super().evict(sub_batch, requests)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """See `ChainExecutor.close`."""
        with self._device.ordered():
            return super().close(sub_batch)

    def _advance(self, state: TorchBatch, node: int) -> None:
        piece = self.pieces[node]
        with self._device.ordered():
            made = None if self.frames is None else self.frames.run(state, node)
            if made is None:
                made = self._store.apart(state, piece.outputs, piece.run(state.values))
            if self._in_step:
                self._device.wait()
            else:
                self._device.follow()
        state.values.update(zip(piece.outputs, made, strict=True))
        for name in self._dead[node]:
            del state.values[name]
        if self._planning:
            held = sum(value.nbytes for value in state.values.values() if isinstance(value, Tensor))
            self._buffers_bytes = max(self._buffers_bytes, held)
