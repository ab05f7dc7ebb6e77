"""Buffers: aligned, kept at their addresses, and lent to one owner at a time."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.executors.ort.buffers import ALIGNMENT, BufferPool, BufferSet, aligned


@pytest.mark.parametrize("nbytes", [1, 63, 64, 4096, 1 << 20])
def test_aligned_memory_starts_on_a_cache_line(nbytes: int) -> None:
    """Every size gives that many bytes at an aligned address."""
    memory = aligned(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % ALIGNMENT == 0


def test_reserve_grows_only_what_is_too_small_and_keeps_content() -> None:
    """Slots that are large enough keep their address; a grown one keeps what was in it and counts a version."""
    buffers = BufferSet(2)
    assert buffers.reserve([8, 16])
    buffers.bytes_of(0)[:] = range(8)
    before = buffers.bytes_of(1).ctypes.data
    version = buffers.version
    assert buffers.reserve([32, 16])
    assert buffers.version == version + 1
    assert buffers.bytes_of(1).ctypes.data == before
    assert buffers.bytes_of(0)[:8].tolist() == list(range(8))
    assert buffers.nbytes == 48
    assert not buffers.reserve([1, 1])
    assert buffers.version == version + 1


def test_views_see_the_memory() -> None:
    """A view is the slot's beginning under a type and a shape, writable, also for no elements and no axes."""
    buffers = BufferSet(1)
    buffers.reserve([64])
    buffers.view(0, np.dtype("float32"), (2, 3))[...] = 7
    assert buffers.bytes_of(0)[:24].view(np.float32).tolist() == [7.0] * 6
    assert buffers.view(0, np.dtype("int64"), ()).shape == ()
    assert buffers.view(0, np.dtype("int64"), (0, 5)).shape == (0, 5)


def test_a_pool_lends_the_warmest_free_set() -> None:
    """What came back last goes out first; a new set is made only when none is free."""
    pool = BufferPool(1)
    one, other = pool.take(), pool.take()
    assert one is not other
    pool.give(one)
    pool.give(other)
    assert pool.take() is other
    assert pool.take() is one


def test_prepared_sets_are_there_before_they_are_needed() -> None:
    """`prepare` makes and sizes the sets it was asked for, counts their bytes, and is idempotent."""
    pool = BufferPool(2)
    pool.prepare(2, [100, 28])
    assert pool.nbytes == 256
    pool.prepare(2, [100, 28])
    assert pool.nbytes == 256
    assert pool.take().nbytes == pool.take().nbytes == 128
    pool.clear()
    assert pool.nbytes == 0
