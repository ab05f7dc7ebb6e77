"""Whose turn it is to be measured: every size from beginning to end, however much it costs."""

from __future__ import annotations

import pytest

from lazybatch.core.latency import LatencyTable
from lazybatch.executors.simulated import SimulatedModel
from lazybatch.profiler.state import State
from lazybatch.profiler.turns import SAMPLES_MIN, next_size

COSTS_NS = {1: 5, 4: 17, 16: 65}


def measured(budget_ns: int, repeats: int) -> list[int]:
    """The sizes in the order of their turns, where each costs what it costs."""
    model = SimulatedModel(LatencyTable.uniform("m", 1, 1, 4, (1, 4, 16)), lambda by_ns: None)
    state = State(model, tuple(COSTS_NS), [model.admit({})], None)
    order: list[int] = []
    took_ns: dict[int, int] = {}
    left_ns = budget_ns
    while (size := next_size(state, repeats, budget_ns, left_ns, took_ns)) is not None:
        order.append(size)
        took_ns[size] = COSTS_NS[size]
        left_ns -= COSTS_NS[size]
        state.add(size, [COSTS_NS[size]])
    return order


@pytest.mark.parametrize(("budget_ns", "repeats"), [(2_000, 1_000), (2_500, 40), (1_000_000, 40)])
def test_all_sizes_are_measured_until_the_end(budget_ns: int, repeats: int) -> None:
    """With repeats that no size reaches, the small ones only, or all: half of each size's turns come in each half, and
    none is done long before the others, so no slow spell is of one size alone."""
    order = measured(budget_ns, repeats)[3 * SAMPLES_MIN :]
    for size in COSTS_NS:
        places = [place for place, one in enumerate(order) if one == size]
        assert places[-1] >= 0.8 * len(order)
        assert places[len(places) // 2] == pytest.approx(len(order) / 2, abs=0.15 * len(order))


def test_four_times_the_cost_is_half_as_many() -> None:
    """By the square root, of a budget that is used up to the last pass that fits."""
    order = measured(20_000, 10_000)
    counts = {size: order.count(size) for size in COSTS_NS}
    assert counts[16] / counts[1] == pytest.approx((5 / 65) ** 0.5, rel=0.05)
    assert counts[4] / counts[1] == pytest.approx((5 / 17) ** 0.5, rel=0.05)
    assert 20_000 - 65 <= sum(COSTS_NS[size] * count for size, count in counts.items()) <= 20_000


def test_no_size_is_left_without_the_least_number() -> None:
    """Whatever the budget, in turns."""
    assert measured(1, 1_000) == [1, 4, 16] * SAMPLES_MIN
