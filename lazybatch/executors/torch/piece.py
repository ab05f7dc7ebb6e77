"""One node of a torch model, and the device it runs on.

Owns: `TorchPiece`, `Device`.
Must not know: sub-batches, rows, the scheduler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from lazybatch.errors import ExecutionError
from lazybatch.partition.proof.ports import one_line


@dataclass(frozen=True, slots=True)
class TorchPiece:
    """The runnable side of one node."""

    name: str
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, values: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs, in order. Raises `ExecutionError` with torch's reason.

        An output that shows only part of what lies behind it, or shows it several times over, becomes a tensor of its
        own: it may be parked for long, and be merged.
        """
        try:
            with torch.inference_mode():
                # Not module(...): that prints the generated source to stderr when an operator fails.
                made = self.module.forward(*[values[name] for name in self.inputs])
                return [_own(value) if isinstance(value, Tensor) else value for value in made]
        except Exception as error:
            raise ExecutionError(f"node {self.name!r} failed: {one_line(error)}") from error


def _own(value: Tensor) -> Tensor:
    if value.untyped_storage().nbytes() == value.numel() * value.itemsize:
        return value
    return value.clone()


class Device:
    """Where nodes run: on a GPU in one stream, in the order they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        self._last: Any = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # weights were put there in other streams
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def ordered(self) -> contextlib.AbstractContextManager[Any]:
        """What is asked for inside runs in this device's order."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """Return when the device has done all it was asked to: a node has run only then, and took so long."""
        if self._stream is not None:
            self._stream.synchronize()

    def follow(self) -> None:
        """Return when the device has done all it was asked to before the latest node, which it may still be at.

        So there is always one node that it can go on with while the next decision is made, and never more than one that
        a decision must wait for.
        """
        if self._stream is not None:
            last, self._last = self._last, self._stream.record_event()
            if last is not None:
                last.synchronize()

    @property
    def stream(self) -> Any:
        """The stream, on a GPU; None elsewhere."""
        return self._stream

    def peak_bytes(self) -> int | None:
        """Most memory held on the device since `forget_peak`; None where the process's own memory is what counts."""
        return None if self._stream is None else int(torch.cuda.max_memory_allocated(self.device))

    def forget_peak(self) -> int:
        """Begin to watch the peak anew; returns what is held now."""
        if self._stream is None:
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        return int(torch.cuda.memory_allocated(self.device))
