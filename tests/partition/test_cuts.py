"""The choice of cuts: balanced nodes, the wish of the user, and the bounds of both."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.partition.cuts import NODES_MAX, Cut, Residual, choose


def lengths(costs: list[float], positions: list[int]) -> list[float]:
    """The cost of each node between the chosen cuts."""
    bounds = [0, *(position + 1 for position in positions), len(costs)]
    return [sum(costs[a:b]) for a, b in itertools.pairwise(bounds)]


def everywhere(costs: list[float], live_bytes: int = 0) -> list[Cut]:
    """A cut after every node."""
    return [Cut(k, live_bytes) for k in range(len(costs))]


def test_equal_nodes_are_cut_evenly() -> None:
    """The number of nodes is what the dispatch share allows, and they are equal."""
    costs = [1e-3] * 40
    positions = choose(costs, everywhere(costs), dispatch_s=200e-6, preempt_within_s=None)
    assert lengths(costs, positions) == pytest.approx([0.01] * 4)


def test_short_models_stay_whole() -> None:
    """Where one dispatch more is dear, there is one node."""
    costs = [1e-6] * 40
    assert choose(costs, everywhere(costs), dispatch_s=20e-6, preempt_within_s=None) == []


def test_long_models_are_capped() -> None:
    """However long the model, there are not more nodes than the cap."""
    costs = [1.0] * 500
    assert len(choose(costs, everywhere(costs), dispatch_s=20e-6, preempt_within_s=None)) == NODES_MAX - 1


def test_wish_is_met_with_the_fewest_nodes() -> None:
    """No node is longer than asked for, and one node less would not do."""
    costs = [1e-3, 2e-3, 3e-3, 1e-3, 1e-3, 2e-3]
    positions = choose(costs, everywhere(costs), dispatch_s=20e-6, preempt_within_s=4e-3)
    assert max(lengths(costs, positions)) <= 4e-3 + 1e-12
    assert len(positions) == 2


def test_wish_that_cannot_be_met_is_met_around_it() -> None:
    """One long operator stays long; everything else keeps to the wish."""
    costs = [1e-3, 1e-3, 9e-3, 1e-3, 1e-3]
    positions = choose(costs, everywhere(costs), dispatch_s=20e-6, preempt_within_s=2e-3)
    made = lengths(costs, positions)
    assert max(made) == 9e-3
    assert sorted(made)[-2] <= 2e-3 + 1e-12


def test_thin_places_are_preferred() -> None:
    """Of two nearly equal places the one with fewer live bytes is taken."""
    costs = [1e-3] * 10
    cuts = [Cut(4, 40_000_000), Cut(5, 100)]
    assert choose(costs, cuts, dispatch_s=1e-6, preempt_within_s=6e-3) == [5]


def test_residual_adds_end_their_node() -> None:
    """A node that ends with the residual add saves a copy; so does one that holds the value's maker too."""
    costs = [1e-3] * 6
    cuts = everywhere(costs)
    residual = Residual(made=0, position=3, value_bytes=40_000_000)
    positions = choose(costs, cuts, dispatch_s=1e-6, preempt_within_s=4.5e-3, residuals=[residual])
    assert positions == [3]
    assert choose(costs, cuts, dispatch_s=1e-6, preempt_within_s=4.5e-3) == [2]


def test_nothing_to_choose() -> None:
    """Without allowed cuts, or after the last node, there is nothing to cut."""
    assert choose([1.0, 1.0], [], dispatch_s=1e-6, preempt_within_s=None) == []
    assert choose([1.0, 1.0], [Cut(1, 0)], dispatch_s=1e-6, preempt_within_s=None) == []
    assert choose([0.0, 0.0], [Cut(0, 0)], dispatch_s=1e-6, preempt_within_s=1e-9) == []


@given(
    st.lists(st.floats(1e-6, 1e-2), min_size=2, max_size=30),
    st.sets(st.integers(0, 29)),
    st.floats(1e-5, 1e-1),
)
def test_wish_holds_wherever_cuts_allow(costs: list[float], places: set[int], limit: float) -> None:
    """A node is longer than the wish only if no allowed cut lies inside it; cuts are allowed ones, ascending."""
    cuts = [Cut(k, 0) for k in sorted(places) if k < len(costs)]
    positions = choose(costs, cuts, dispatch_s=20e-6, preempt_within_s=limit)
    assert positions == sorted(set(positions))
    assert set(positions) <= {cut.position for cut in cuts}
    bounds = [-1, *positions, len(costs) - 1]
    for start, end in itertools.pairwise(bounds):
        inside = [cut for cut in cuts if start < cut.position < end]
        assert sum(costs[start + 1 : end + 1]) <= limit * (1 + 1e-6) or not inside
