"""A partitioned ONNX model, ready to be served.

Owns: `OrtModel`: the sessions of all nodes, shared by every executor made from them, and the contract with callers.
Must not know: how the model was cut, the scheduler, buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.admission import admit_row
from lazybatch.executors.base import Row
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.ort.executor import OrtExecutor
from lazybatch.executors.ort.piece import OrtPiece, run_chain
from lazybatch.executors.ort.session import CPU, CUDA, open_session, pool_threads, provider_names
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.executors.resident import resident_bytes
from lazybatch.partition.pieces import Partition


class OrtModel(PartitionedModel):
    """A `Model` on ONNX Runtime.

    threads: of the pool all sessions of this process share; the first one to ask decides.
    providers: None or "cpu"; "cuda" keeps tensors between nodes on the device (functional, but no time has been
    measured there; merging goes through host memory).

    Raises `ModelError` when a piece cannot be loaded, `InvalidInput` for impossible options.
    """

    def __init__(
        self, partition: Partition, *, threads: int | None = None, providers: str | Sequence[str] | None = None
    ) -> None:
        super().__init__(partition)
        self._threads = threads
        self._providers = provider_names(providers)
        device = "cuda" if CUDA in self._providers else "cpu"
        before = resident_bytes()
        self.pieces = [
            OrtPiece.of(
                piece.name,
                open_session(piece.path, optimise=False, threads=threads, providers=self._providers),
                piece.inputs,
                piece.outputs,
                device,
            )
            for piece in partition.pieces
        ]
        self._loaded_bytes = max(0, (resident_bytes() or 0) - (before or 0))

    @property
    def threads(self) -> int | None:
        """Threads its operators share; None where ONNX Runtime was left to choose."""
        return self._threads or pool_threads()

    @property
    def accelerator(self) -> str | None:
        """What nodes run on where that is not the CPU: ONNX Runtime's name for it, else None."""
        return ", ".join(one for one in self._providers if one != CPU) or None

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row; see `lazybatch.executors.admission`. Raises `InvalidInput`."""
        weights = self.partition.provenance.get("weights")
        return admit_row(self.partition, inputs, weights if isinstance(weights, Sequence) else ())

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """A whole batch, batch axis included (also of 0 rows), node by node: what the whole model would give.

        Raises `ExecutionError` naming the node that failed.
        """
        return run_chain(self.pieces, feeds, self.partition.outputs)

    def executor(self, *, max_batch_size: int) -> OrtExecutor:
        """A fresh executor, with memory planned for ``max_batch_size`` rows of the shape the partition was made with.

        Where rows of other shapes come, buffers grow with the first of them; see `OrtExecutor.plan` to do it before.
        """
        made = self.chain(max_batch_size=max_batch_size)
        # A model may refuse made-up rows (an index out of range, say); then memory is laid out as real rows come.
        with suppress(InvalidInput, ExecutionError):
            made.plan(self.admit(self.sample_row(0)))
        return made

    def chain(self, *, max_batch_size: int, cycle: Cycle | None = None) -> OrtExecutor:
        """See `PartitionedModel.chain`."""
        return OrtExecutor(
            self.partition,
            self.pieces,
            max_batch_size=max_batch_size,
            on_cpu=self._providers == [CPU],
            weights_bytes=sum(piece.weights_bytes for piece in self.partition.pieces),
            loaded_bytes=self._loaded_bytes,
            cycle=cycle,
        )

    @property
    def loaded_bytes(self) -> int:
        """What the process grew by when the sessions were opened."""
        return self._loaded_bytes

    def whole_session(self) -> Any:
        """The optimised whole model as one session under the same settings, for comparisons. Raises `ModelError`."""
        path = self.partition.directory / str(self.partition.provenance.get("whole", "whole.onnx"))
        if not path.exists():
            raise ModelError(f"model {self.name!r}: its directory {self.partition.directory} holds no whole model")
        return open_session(path, optimise=False, threads=self._threads, providers=self._providers)

    def whole_call(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The optimised whole model on a batch, batch axis included, by output name. Raises `ModelError`."""
        session = self.whole_session()
        used = [value.name for value in session.get_inputs()]
        names = [value.name for value in session.get_outputs()]

        def call(feeds: Mapping[str, Any]) -> dict[str, Any]:
            return dict(zip(names, session.run(names, {name: feeds[name] for name in used}), strict=True))

        return call
