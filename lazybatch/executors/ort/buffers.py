"""Memory that boundary tensors live in.

Owns: `BufferSet`, the buffers of one sub-batch, one per slot, and `BufferPool`, which lends sets and takes them back.
Must not know: what lies in a slot, any runtime, the scheduler.

A set keeps its addresses from one sub-batch to the next, so whatever was bound to them stays valid; only growing a
slot moves it, and `BufferSet.version` counts that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Uninitialised bytes that start on a multiple of `ALIGNMENT`; pages not yet written to cost no memory."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class BufferSet:
    """One buffer per slot."""

    __slots__ = ("_buffers", "attached", "version")

    def __init__(self, slots: int) -> None:
        self._buffers = [aligned(0) for _ in range(slots)]
        self.version = 0
        self.attached: Any = None
        """Whatever the owner wants to keep with these addresses."""

    def reserve(self, sizes: Sequence[int]) -> bool:
        """Grow the slots that hold fewer bytes than asked for, content kept. Returns whether any moved."""
        small = [slot for slot, nbytes in enumerate(sizes) if nbytes > self._buffers[slot].nbytes]
        for slot in small:
            grown = aligned(sizes[slot])
            grown[: self._buffers[slot].nbytes] = self._buffers[slot]
            self._buffers[slot] = grown
        self.version += bool(small)
        return bool(small)

    def touch(self) -> None:
        """Write to every page, so that the memory is really there before the first request is. Loses the content."""
        for buffer in self._buffers:
            buffer.fill(0)

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """The slot's bytes."""
        return self._buffers[slot]

    def view(self, slot: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The beginning of a slot as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        return self._buffers[slot][: count * dtype.itemsize].view(dtype).reshape(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return sum(buffer.nbytes for buffer in self._buffers)


class BufferPool:
    """Sets that are lent and come back; the one that came back last is warm and goes out first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free: list[BufferSet] = []
        self._all: list[BufferSet] = []

    def take(self) -> BufferSet:
        """A set nobody else holds; new only where none is free."""
        if self._free:
            return self._free.pop()
        made = BufferSet(self._slots)
        self._all.append(made)
        return made

    def give(self, buffers: BufferSet) -> None:
        """Take a set back. Its content is up for grabs."""
        self._free.append(buffers)

    def prepare(self, count: int, sizes: Sequence[int]) -> None:
        """Have ``count`` free sets with slots of these sizes, with their memory really there."""
        lent = [self.take() for _ in range(count)]
        for buffers in lent:
            if buffers.reserve(sizes):
                buffers.touch()
            self.give(buffers)

    def clear(self) -> None:
        """Let go of everything."""
        self._free.clear()
        self._all.clear()

    def __len__(self) -> int:
        """Sets, lent or not."""
        return len(self._all)

    @property
    def nbytes(self) -> int:
        """Bytes of all sets, lent or not."""
        return sum(buffers.nbytes for buffers in self._all)
