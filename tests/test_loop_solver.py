"""Solved thresholds: when a running loop is interrupted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_control import NEVER
from lazybatch.errors import InvalidInput
from lazybatch.loop_solver import LOADS, solve_loop_times, solve_loops

MS = 1_000_000
TABLE = LatencyTable(
    "decoder",
    ("encode", "step", "head"),
    (1, 16),
    ((23 * MS, 68 * MS), (14 * MS, 28 * MS), (MS, 2 * MS)),
    ((23 * MS, 68 * MS), (14 * MS, 28 * MS), (MS, 2 * MS)),
)


def spec(*loops: Loop, rows_max: int = 16) -> LaneSpec:
    """Encode, step until done, a head; 10 steps on average."""
    graph = NodeGraph.chain("decoder", TABLE.nodes, loops)
    return LaneSpec(graph, TABLE, max_batch_size=rows_max, lengths=(LengthGuess.of([5, 10, 15]),) * len(loops))


def test_thresholds_grow_with_those_who_run() -> None:
    """With one running one is enough; with many, several must wait; thresholds hardly fall as the load grows."""
    (control,) = solve_loops(spec(Loop("loop", 1, 2)))
    assert control is not None
    assert (control.model, control.loop, len(control.rates_per_ns)) == ("decoder", "loop", len(LOADS))
    for needed in control.thresholds:
        assert len(needed) == 16
        assert needed[0] == 1
        assert all(low <= high for low, high in pairwise(needed[:11])), "then few places are left to fill"
        assert 1 < needed[10] < NEVER
    assert all(low < high for low, high in pairwise(control.rates_per_ns))
    assert all(low < high for low, high in pairwise(control.mean_latency_ns))


def test_nobody_is_interrupted_by_a_loop_that_comes_first() -> None:
    """Where nothing lies before the loop, newcomers cost nobody anything: they join at every step."""
    first, second = solve_loops(spec(Loop("encoder", 0, 1), Loop("decoder", 1, 2)))
    assert first is not None
    assert second is not None
    assert set(first.thresholds) == {(1,) * 16}
    assert max(count for count in second.thresholds[0] if count < NEVER) > 1


def test_equal_iterations_have_no_control() -> None:
    """Nobody can be let in where rows join at equal iterations only."""
    assert solve_loops(spec(Loop("loop", 1, 2, same_iteration=True))) == (None,)


def test_without_a_latency_table_there_is_nothing_to_solve() -> None:
    """The error says so, and names the model."""
    graph = NodeGraph.chain("m", "ab", [Loop("loop", 1, 2)])
    with pytest.raises(InvalidInput, match="model 'm': a control is solved from a latency table"):
        solve_loops(LaneSpec(graph))


def test_a_single_row_leaves_nothing_to_decide() -> None:
    """A maximum of one: with nobody running one is let in."""
    (control,) = solve_loops(spec(Loop("loop", 1, 2), rows_max=1))
    assert control is not None
    assert set(control.thresholds) == {(1,)}


def test_rows_are_lumped_beyond_what_can_be_solved() -> None:
    """130 rows are told apart in threes; a loop twice as fine has about twice the thresholds at about equal rates."""
    fine = solve_loop_times([20 + 3 * k / 4 for k in range(131)], [13 + n / 4 for n in range(131)], 12)
    coarse = solve_loop_times([20 + 3 * k / 2 for k in range(66)], [13 + n / 2 for n in range(66)], 12)
    assert fine[0][0] == pytest.approx(2 * coarse[0][0], rel=0.1)
    assert fine[2][0] == pytest.approx(coarse[2][0], rel=0.1)
    assert len(fine[1][0]) == 130
    assert abs(fine[1][-1][40] - 2 * coarse[1][-1][20]) <= 4
