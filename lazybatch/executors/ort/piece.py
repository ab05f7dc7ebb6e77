"""One node's session, and the two ways to run it: bound to memory, or with outputs that ONNX Runtime allocates.

Owns: `OrtPiece`, `run_chain`, and the conversions between arrays and ONNX Runtime's values.
Must not know: sub-batches, slots, rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError
from lazybatch.executors.ort.session import reason, runtime

ONNX_TYPES: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
"""ONNX's code of each element type whose tensors are plain memory, by NumPy's name."""


class Place(NamedTuple):
    """Memory that a tensor is read from or written to."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pointer: int


@dataclass(frozen=True, slots=True)
class OrtPiece:
    """The runnable side of one node.

    plain: all its inputs and outputs are tensors of numbers, which can be handed on without conversion.
    device: where outputs go when ONNX Runtime allocates them.
    """

    name: str
    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plain: bool
    device: str = "cpu"

    @classmethod
    def of(cls, name: str, session: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], device: str) -> OrtPiece:
        """The piece behind a session."""
        types = [value.type for value in (*session.get_inputs(), *session.get_outputs())]
        plain = all(text.startswith("tensor(") and text != "tensor(string)" for text in types)
        return cls(name, session, inputs, outputs, plain, device)

    def accepts(self, outputs: Iterable[Place]) -> bool:
        """Whether outputs of these shapes may be bound: ONNX Runtime refuses what differs from its inferred shapes.

        Inferred shapes can be wrong; an output that ONNX Runtime allocates itself is not held against them.
        """
        inferred = {value.name: value.shape for value in self.session.get_outputs()}
        return all(
            not isinstance(dim, int) or dim == have
            for place in outputs
            for dim, have in zip(inferred[place.name] or place.shape, place.shape, strict=False)
        )

    def bind(self, inputs: Iterable[Place], outputs: Iterable[Place]) -> Callable[[], None]:
        """A call that runs the node on this memory, as often as wanted, without touching anything else."""
        binding = self.session.io_binding()
        for place in inputs:
            binding.bind_input(place.name, "cpu", 0, ONNX_TYPES[place.dtype.name], place.shape, place.pointer)
        for place in outputs:
            binding.bind_output(place.name, "cpu", 0, ONNX_TYPES[place.dtype.name], place.shape, place.pointer)
        return partial(self.session.run_with_iobinding, binding)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run on these values (arrays, lists, or what `run` returned before); ONNX Runtime allocates the outputs.

        Raises `ExecutionError` with ONNX Runtime's reason.
        """
        try:
            if not self.plain:
                given = {name: feeds[name] for name in self.inputs}
                return dict(zip(self.outputs, self.session.run(list(self.outputs), given), strict=True))
            binding = self.session.io_binding()
            for name in self.inputs:
                value = feeds[name]
                if isinstance(value, np.ndarray):
                    code = ONNX_TYPES[value.dtype.name]
                    binding.bind_input(name, "cpu", 0, code, value.shape, value.ctypes.data)
                else:
                    binding.bind_ortvalue_input(name, value)
            for name in self.outputs:
                binding.bind_output(name, self.device)
            self.session.run_with_iobinding(binding)
            return dict(zip(self.outputs, binding.get_outputs(), strict=True))
        except Exception as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> ExecutionError:
        """What went wrong, with this node's name."""
        return ExecutionError(f"node {self.name!r} failed: {reason(error)}")


def run_chain(pieces: Iterable[OrtPiece], feeds: Mapping[str, Any], outputs: Iterable[str]) -> dict[str, Any]:
    """Run nodes one after another, values handed on as they are; returns these outputs as arrays of their own.

    Values stay until the end: this is for comparisons and measurements, not for serving.
    """
    values = dict(feeds)
    for piece in pieces:
        values.update(piece.run(values))
    return {name: to_python(values[name]) for name in outputs}


def to_python(value: Any) -> Any:
    """An array (or list, for sequences) that shares no memory with anything else."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, runtime().OrtValue):
        return np.array(value.numpy())
    return value


def copy_out(value: Any, target: NDArray[Any]) -> None:
    """Copy an output that ONNX Runtime allocated on the CPU to memory of the same shape and type."""
    if isinstance(value, np.ndarray):
        target[...] = value
    else:
        ctypes.memmove(target.ctypes.data, value.data_ptr(), target.nbytes)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a tensor that `OrtPiece.run` returned."""
    return tuple(value.shape) if isinstance(value, np.ndarray) else tuple(value.shape())
