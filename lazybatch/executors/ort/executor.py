"""Runs the nodes of an ONNX model on sub-batches that can be parked, merged and thinned out.

Owns: `OrtExecutor`: how a node is run on a sub-batch, and what memory is planned for it.
Must not know: the scheduler, threads, time, how the model was cut, where rows lie (`RowStore` does).

Nodes read and write a sub-batch's buffers in place: a dispatch is one call on a binding made before, for this node,
number of rows and buffer set. Parking is doing nothing. Tensors take their shapes from the first run of a signature,
with outputs allocated by ONNX Runtime; from then on outputs are bound. Nodes that touch a tensor without a buffer
(see `RowStore`) always run with outputs allocated by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from lazybatch.errors import ExecutionError
from lazybatch.executors.base import MemoryPlan, Row
from lazybatch.executors.chain import ChainExecutor, rows_capacity
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.ort.loop_store import LoopRowStore
from lazybatch.executors.ort.piece import OrtPiece, Place, copy_out, shape_of
from lazybatch.executors.ort.row_store import RowStore
from lazybatch.executors.ort.sub_batch import Step, SubBatch
from lazybatch.executors.resident import resident_bytes
from lazybatch.partition.pieces import Partition

SETS_PLANNED = 2
"""Buffer sets that are really there from the start: the active sub-batch and one that is parked."""


class OrtExecutor(ChainExecutor[SubBatch]):
    """An `Executor` over the sessions of one partition; see the module's text.

    weights_bytes: of all nodes. loaded_bytes: what the process grew by when the sessions were opened, which is less
    where weights are mapped from files and read only when they are first used. cycle: how rows go round, if they do.
    Raises `InvalidInput` for a ``max_batch_size`` below 1.
    """

    def __init__(
        self,
        partition: Partition,
        pieces: Sequence[OrtPiece],
        *,
        max_batch_size: int,
        on_cpu: bool = True,
        weights_bytes: int = 0,
        loaded_bytes: int = 0,
        cycle: Cycle | None = None,
    ) -> None:
        rows = rows_capacity(partition, max_batch_size)
        store = (
            RowStore(partition, rows, with_buffers=on_cpu)
            if cycle is None
            else LoopRowStore(partition, rows, with_buffers=on_cpu, cycle=cycle)
        )
        super().__init__(partition, store, cycle)
        self.pieces = pieces
        self._store: RowStore = store
        self._bindable = [all(map(self._store.has_buffer, (*p.inputs, *p.outputs))) for p in partition.pieces]
        self._weights_bytes = weights_bytes
        self._grown_bytes = loaded_bytes
        self._scratch_bytes = 0

    def plan(self, row: Row) -> MemoryPlan:
        """Learn the shapes of this row's signature, and lay out memory for the maximum batch of such rows.

        Runs every node on one row and then twice on the maximum batch (the second pass may allocate differently), up
        to results; what the process grew by, less weights and buffers, is the scratch memory. So call it before
        serving, and not while other code allocates. Raises `ExecutionError`.
        """
        before = resident_bytes()
        self._rehearse(row, 1)
        self.prepare(row.signature)
        for _ in range(2):
            results = self._rehearse(row, self._store.capacity)
        self._grown_bytes += max(0, (resident_bytes() or 0) - (before or 0))
        del results  # callers hold theirs while the next batch runs
        self._scratch_bytes = max(0, self._grown_bytes - self._weights_bytes - self._store.pool.nbytes)
        return self.memory()

    def prepare(self, signature: Hashable) -> None:
        """Have buffers for the maximum batch of rows of this signature, which ran before, really there."""
        sets = SETS_PLANNED if self._store.capacity > 1 else 1
        self._store.pool.prepare(sets, self._store.layout(signature, {}).slot_bytes)

    @property
    def buffer_sets(self) -> int:
        """How many sub-batches have been in flight at once, or were planned for."""
        return len(self._store.pool)

    def memory(self) -> MemoryPlan:
        """What is planned so far: weights, all buffers, and the scratch memory measured by `plan`."""
        return MemoryPlan(self._weights_bytes, self._store.pool.nbytes, self._scratch_bytes)

    def _advance(self, state: SubBatch, node: int) -> None:
        """Run one node on all rows, on memory bound to it where that is possible."""
        if state.awaited is not None:
            self._store.settle(state)
        step = state.frame.steps[node]
        if step is None and self._bindable[node] and state.layout.knows(self.pieces[node].outputs):
            step = state.frame.steps[node] = self._bind(state, node)
        if step is None:
            self._run_free(state, node)
        else:
            try:
                step()
            except Exception as error:
                raise self.pieces[node].failure(error) from error

    def _bind(self, state: SubBatch, node: int) -> Step | None:
        """The call that runs a node on this sub-batch's buffers; None where ONNX Runtime would not write to them."""
        piece = self.pieces[node]
        self._store.make_room(state, piece.outputs)

        def places(names: Sequence[str]) -> list[Place]:
            views = [(name, self._store.view(state, name)) for name in names]
            return [Place(name, view.dtype, view.shape, view.ctypes.data) for name, view in views]

        outputs = places(piece.outputs)
        if not piece.accepts(outputs):
            return None
        return piece.bind(places(piece.inputs), outputs)

    def _run_free(self, state: SubBatch, node: int) -> None:
        """Run a node with outputs allocated by ONNX Runtime; learn their shapes, and store what has a buffer."""
        piece, store = self.pieces[node], self._store
        held = [name for name in piece.outputs if store.has_buffer(name)]
        first = state.rows > 1 and not state.layout.knows(held)
        alone = self._shapes_alone(state, node) if first else {}
        outputs = piece.run(
            {name: store.view(state, name) if store.has_buffer(name) else state.values[name] for name in piece.inputs}
        )
        for name in held:
            form = state.layout.learn(name, shape_of(outputs[name]), state.rows)
            if name in alone and form.shape(1) != alone[name]:
                raise ExecutionError(
                    f"node {piece.name!r} gives {name!r} the shape {list(form.shape(1))} per row in company, and "
                    f"{list(alone[name])} alone"
                )
        store.make_room(state, piece.outputs)
        for name, value in outputs.items():
            if store.has_buffer(name):
                copy_out(value, store.view(state, name))
            else:
                state.values[name] = value
        for name in [name for name in state.values if name not in store.plan.live[node + 1]]:
            del state.values[name]

    def _shapes_alone(self, state: SubBatch, node: int) -> dict[str, tuple[int, ...]]:
        """Run a node for the first row alone, where its signature is first seen in company.

        A model may refuse a row of this shape alone and, by splitting what all rows have together, swallow several of
        them (a Reshape to [-1, 8] over rows of 12). They must fail as they would alone, not get each other's values.
        """
        single = {name: self._store.first_row(state, name) for name in self.pieces[node].inputs}
        if any(value is None for value in single.values()):
            return {}
        return {name: shape_of(value) for name, value in self.pieces[node].run(single).items()}
