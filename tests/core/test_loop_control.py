"""Thresholds as data: the nearest rate, by rows running."""

from __future__ import annotations

from lazybatch.core.loop_control import NEVER, LoopControl

CONTROL = LoopControl("m", "loop", (1e-9, 4e-9), ((1, 2, 3), (1, 4, NEVER)), (5.0, 9.0))


def test_the_nearest_rate_by_ratio_decides() -> None:
    """2e-9 lies in the middle of 1e-9 and 4e-9; rates beyond the grid are those at its ends."""
    assert [CONTROL.needed(1, rate) for rate in (0.0, 1e-12, 1e-9, 1.9e-9, 2.1e-9, 4e-9, 1.0)] == [2, 2, 2, 2, 4, 4, 4]


def test_a_full_loop_lets_nobody_in() -> None:
    """Nor does one with so many rows that interrupting it never pays."""
    assert CONTROL.needed(3, 1e-9) == CONTROL.needed(2, 4e-9) == NEVER
