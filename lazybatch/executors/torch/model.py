"""A partitioned torch module, ready to be served.

Owns: `TorchModel`: the graph modules of all nodes, shared by every executor made from them, and the contract with
callers.
Must not know: how the module was cut, the scheduler, sub-batches.

Rows go in and come out as NumPy arrays, as they do with every other model; torch tensors are taken, too. The weights
are the module's own, not copies: whoever changes them while the model is served changes its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lazybatch.errors import ExecutionError, InvalidInput, ModelError
from lazybatch.executors.admission import admit_row
from lazybatch.executors.base import Row
from lazybatch.executors.cycle import Cycle
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.executors.torch.executor import TorchExecutor
from lazybatch.executors.torch.frames import CudaRecorder, Frames, Recorder
from lazybatch.executors.torch.piece import Device, TorchPiece
from lazybatch.partition.pieces import Partition
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch import Flat, Source
from lazybatch.partition.torch.extract import modules
from lazybatch.partition.torch.source import output_tensors


class TorchModel(PartitionedModel):
    """A `Model` on torch.

    flat: the graph that the partition cuts. source: the module itself, where it is there, for comparisons.
    threads: that operators may use; torch has one setting for the whole process, which this changes.

    Raises `ModelError` where partition and graph do not belong together, `InvalidInput` for impossible options.
    """

    def __init__(
        self, partition: Partition, flat: Flat, *, source: Source | None = None, threads: int | None = None
    ) -> None:
        if threads is not None:
            if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
                raise InvalidInput(f"threads must be a positive integer or None, got {threads!r}")
            torch.set_num_threads(threads)
        cuts = partition.provenance.get("cuts")
        if not isinstance(cuts, list):
            raise ModelError(f"model {partition.model!r}: its partition is not one of a torch module")
        super().__init__(partition)
        self._flat = flat
        self._source = source
        self.pieces = [
            TorchPiece(piece.name, module, piece.inputs, piece.outputs)
            for piece, module in zip(partition.pieces, modules(flat, cuts), strict=True)
        ]
        self._places = {port.name: _place(flat.values[port.name].meta["val"]) for port in flat.inputs}
        held = [tensor for tensor in flat.root.buffers() if isinstance(tensor, Tensor)]
        self._weights_bytes = sum({t.untyped_storage().data_ptr(): t.nbytes for t in held}.values())
        self._device = Device(next(iter(self._places.values())).device)
        stream = self._device.stream
        self.recorder: Recorder | None = None if stream is None else CudaRecorder(stream)
        """What records nodes for its executors; None: they are run as they are. Set before an executor is made."""

    @property
    def threads(self) -> int:
        """Threads its operators share."""
        return torch.get_num_threads()

    @property
    def accelerator(self) -> str | None:
        """What nodes run on where that is not the CPU, by its maker's name, else None."""
        device = self._device.device
        if device.type == "cpu":
            return None
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def admit(self, inputs: Any) -> Row:
        """Check and copy one row of arrays or tensors; see `lazybatch.executors.admission`. Raises `InvalidInput`."""
        return admit_row(self.partition, inputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """A whole batch, batch axis included, node by node: what the whole module would give, by output name.

        Raises `ExecutionError` naming the node that failed.
        """
        values: dict[str, Any] = dict(zip(self.partition.inputs, self._flat.tensors(feeds), strict=True))
        with self._device.ordered():
            for piece in self.pieces:
                values.update(zip(piece.outputs, piece.run(values), strict=True))
            return {name: np.array(to_array(values[name])) for name in self.partition.outputs}

    def executor(self, *, max_batch_size: int) -> TorchExecutor:
        """A fresh executor, with memory planned for ``max_batch_size`` rows."""
        made = self.chain(max_batch_size=max_batch_size)
        # A model may refuse made-up rows (an index out of range, say); then memory is taken as real rows come.
        with suppress(InvalidInput, ExecutionError):
            made.plan(self.admit(self.sample_row(0)))
        return made

    def chain(self, *, max_batch_size: int, cycle: Cycle | None = None) -> TorchExecutor:
        """See `PartitionedModel.chain`."""
        return TorchExecutor(
            self.partition,
            self.pieces,
            self._places,
            self._device,
            max_batch_size=max_batch_size,
            weights_bytes=self._weights_bytes,
            cycle=cycle,
            frames=None if self.recorder is None or cycle is not None else Frames(self.pieces, self.recorder),
        )

    def whole_call(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The whole module on a batch, batch axis included, as torch runs it eagerly; by output name."""
        whole: Callable[..., Any] = self._flat.whole().forward if self._source is None else self._source.called()

        def call(feeds: Mapping[str, Any]) -> dict[str, Any]:
            with torch.inference_mode():
                answer = output_tensors(whole(*self._flat.tensors(feeds)))
            return dict(zip(self.partition.outputs, map(to_array, answer), strict=True))

        return call


def torch_version() -> str:
    """The version of torch that runs the nodes."""
    return str(torch.__version__)


def _place(example: Tensor) -> Tensor:
    """An empty tensor of a graph input's type, on its device."""
    return torch.empty(0, dtype=example.dtype, device=example.device)
