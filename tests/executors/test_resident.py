"""Resident memory: a number that follows what the process touches."""

from __future__ import annotations

import numpy as np
import pytest

from lazybatch.executors import resident
from lazybatch.executors.resident import resident_bytes


def test_touched_memory_is_counted() -> None:
    """64 MiB written to are 64 MiB more, within a few."""
    before = resident_bytes()
    if before is None:
        pytest.skip("this system does not report resident memory")
    block = np.ones(64 << 20, np.uint8)
    after = resident_bytes()
    assert after is not None
    assert block.nbytes * 0.9 < after - before < block.nbytes * 1.2


def test_a_system_that_does_not_say_gives_none(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Without the file there is no number, and no exception."""
    monkeypatch.setattr(resident, "_STATM", resident._STATM.parent / "not there")
    assert resident_bytes() is None
