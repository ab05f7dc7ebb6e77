"""Thresholds as data: the nearest rate, by rows running."""

from __future__ import annotations

from lazybatch.core.loop_control import NEVER, THUMB_LOADS, LoopControl, rule_of_thumb
from lazybatch.core.loop_times import LoopTimes

CONTROL = LoopControl("m", "loop", (1e-9, 4e-9), ((1, 2, 3), (1, 4, NEVER)), (5.0, 9.0))


def test_the_nearest_rate_by_ratio_decides() -> None:
    """2e-9 lies in the middle of 1e-9 and 4e-9; rates beyond the grid are those at its ends."""
    assert [CONTROL.needed(1, rate) for rate in (0.0, 1e-12, 1e-9, 1.9e-9, 2.1e-9, 4e-9, 1.0)] == [2, 2, 2, 2, 4, 4, 4]


def test_a_full_loop_lets_nobody_in() -> None:
    """Nor does one with so many rows that interrupting it never pays."""
    assert CONTROL.needed(3, 1e-9) == CONTROL.needed(2, 4e-9) == NEVER


def thumb(load: float, running: int, *, fixed: float = 20.0, rows_max: int = 64) -> int:
    """What the rule of thumb asks for; the way takes so much and 3 per row, a step 13 and 0.95 per row."""
    before = tuple([fixed + 3.0 * rows for rows in range(rows_max + 1)])
    step = tuple([13.0 + 0.95 * rows for rows in range(rows_max + 1)])
    control = rule_of_thumb("m", "loop", LoopTimes(before, step, 17.5))
    assert (control.model, control.loop) == ("m", "loop")
    place = THUMB_LOADS.index(load)
    return control.needed(running, control.rates_per_ns[place])


def test_the_rule_of_thumb_grows_with_those_who_run_and_with_the_load() -> None:
    """Few running or a light load: one is enough. Never more than there is room for; nothing saved, nobody waits."""
    assert thumb(0.1, 4) == thumb(0.9, 0) == 1
    assert thumb(0.1, 32) < thumb(0.5, 32) < thumb(0.8, 32)
    assert thumb(0.5, 8) < thumb(0.5, 32)
    assert thumb(0.9, 60) == 4
    assert thumb(0.9, 30, fixed=0.0) == 1
    assert thumb(0.9, 0, rows_max=1) == 1


def test_the_rule_of_thumb_is_near_the_solution() -> None:
    """On a loaded LSTM decoder the solved thresholds are 2, 4, 7 and 14 with 4, 8, 16 and 32 running."""
    for running, solved in ((4, 2), (8, 4), (16, 7), (32, 14)):
        assert solved / 2 <= thumb(0.65, running) <= 2 * solved
