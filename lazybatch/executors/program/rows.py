"""A row of a program on its way: the tensors it has by name, and what it is given of them.

Owns: `Traveller`, `ProgramResult`, what a row's tensors are padded to, and how often it goes round.
Must not know: sub-batches, memory, any runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError
from lazybatch.executors.program.plan import Given, LoopPlan, StagePlan
from lazybatch.executors.tally import NEVER
from lazybatch.program import Reference


class ProgramResult(dict[str, Any]):
    """The outputs of a program for one row, by name.

    trips: per loop, the iterations it made. truncated: whether a loop's maximum ended it before it was done.
    """

    def __init__(self, outputs: Mapping[str, Any], trips: tuple[int, ...], truncated: bool) -> None:
        super().__init__(outputs)
        self.trips = trips
        self.truncated = truncated


class Traveller:
    """One row. error: what its result is instead of outputs."""

    __slots__ = ("error", "tensors", "trips", "truncated")

    def __init__(self, inputs: Mapping[str, NDArray[Any]], loops: int) -> None:
        self.tensors: dict[Reference, NDArray[Any]] = {Reference(None, name): one for name, one in inputs.items()}
        self.trips = [0] * loops
        self.truncated = False
        self.error: ExecutionError | None = None

    def result(self, outputs: Mapping[str, Reference]) -> Any:
        """What its caller gets: arrays of its own."""
        if self.error is not None:
            return self.error
        taken: set[Reference] = set()
        made: dict[str, Any] = {}
        for name, reference in outputs.items():
            value = self.tensors[reference]
            made[name] = np.array(value) if reference in taken or reference.stage is None else value
            taken.add(reference)
        return ProgramResult(made, tuple(self.trips), self.truncated)


def check_padded(plan: StagePlan, row: Traveller) -> None:
    """Raises `ExecutionError` where a tensor of the row is longer than it can be padded to for this stage."""
    for given in plan.given:
        if given.pad and given.reference is not None:
            room_for(plan.name, given, len(row.tensors[given.reference]))


def room_for(stage: str, given: Given, length: int) -> int:
    """What a tensor of this length is padded to. Raises `ExecutionError` where it is longer than every size."""
    size = padded_size(given, length)
    if size is None:
        raise ExecutionError(
            f"stage {stage!r}: input {given.name!r}: {str(given.reference)!r} has {length} entries, more than the "
            f"{given.pad[-1]} it can be padded to"
        )
    return size


def padded(stage: str, given: Given, tensor: NDArray[Any]) -> NDArray[Any]:
    """The tensor with zeros behind its first axis. Raises `ExecutionError` where it is longer than every size."""
    size = room_for(stage, given, len(tensor))
    if size == len(tensor):
        return tensor
    whole = np.zeros((size, *tensor.shape[1:]), tensor.dtype)
    whole[: len(tensor)] = tensor
    return whole


def padded_size(given: Given, length: int) -> int | None:
    """What a length is padded to; None where no size is enough."""
    sizes: Sequence[int] = given.pad[-1:] if given.largest else given.pad
    return next((size for size in sizes if size >= length), None)


def iterations(stage: str, loop: LoopPlan, row: Traveller, rounds: int = NEVER) -> int:
    """After how many iterations the row is done, whatever its flag says; `NEVER` where only the flag says it.
    rounds: it makes no more than these.

    Raises `ExecutionError` for none at all, or for more than there are entries to be given.
    """
    count = NEVER
    if loop.ended_by is not None:
        count = number_of(row.tensors[loop.ended_by], by_value=loop.by_value)
        if count < 1:
            raise ExecutionError(
                f"stage {stage!r}: {str(loop.ended_by)!r} asks for {count} iterations, at least 1 is made"
            )
    for name, reference in loop.each.items():
        have = len(entries(stage, name, reference, row))
        if have < min(count, loop.most or count, rounds):
            raise ExecutionError(
                f"stage {stage!r}: input {name!r} of each iteration: {str(reference)!r} has {have} entries, the row "
                f"makes {count} iterations"
            )
    return min(count, rounds)


def number_of(tensor: NDArray[Any], *, by_value: bool) -> int:
    """The one integer a tensor holds, or its length."""
    return int(tensor.reshape(-1)[0]) if by_value else len(tensor)


def entries(stage: str, name: str, reference: Reference, row: Traveller) -> NDArray[Any]:
    """What a row is given per iteration. Raises `ExecutionError` where that is nothing."""
    tensor = row.tensors[reference]
    if not np.ndim(tensor) or not len(tensor):
        raise ExecutionError(f"stage {stage!r}: input {name!r} of each iteration: {str(reference)!r} has no entries")
    return tensor
