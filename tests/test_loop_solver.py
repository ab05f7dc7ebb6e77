"""Solved thresholds: when a running loop is interrupted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_control import NEVER
from lazybatch.core.loop_times import LoopTimes, loop_times
from lazybatch.loop_solver import LOADS, LoopSolution, solve_loop_times

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


def solved(made: LaneSpec, number: int = 0) -> LoopSolution:
    """The solution of one of its loops."""
    return solve_loop_times(loop_times(Lane(made), number))


def test_thresholds_grow_with_those_who_run() -> None:
    """With one running one is enough; with many, several must wait; thresholds hardly fall as the load grows."""
    solution = solved(spec(Loop("loop", 1, 2)))
    assert len(solution.rates_per_ns) == len(LOADS)
    for needed in solution.thresholds:
        assert len(needed) == 16
        assert needed[0] == 1
        assert all(low <= high for low, high in pairwise(needed[:11])), "then few places are left to fill"
        assert 1 < needed[10] < NEVER
    assert all(low < high for low, high in pairwise(solution.rates_per_ns))
    assert all(low < high for low, high in pairwise(solution.mean_latency_ns))


def test_nobody_is_interrupted_by_a_loop_that_comes_first() -> None:
    """Where nothing lies before the loop, newcomers cost nobody anything: they join at every step."""
    made = spec(Loop("encoder", 0, 1), Loop("decoder", 1, 2))
    first, second = solved(made), solved(made, 1)
    assert set(first.thresholds) == {(1,) * 16}
    assert max(count for count in second.thresholds[0] if count < NEVER) > 1


def test_a_single_row_leaves_nothing_to_decide() -> None:
    """A maximum of one: with nobody running one is let in."""
    assert set(solved(spec(Loop("loop", 1, 2), rows_max=1)).thresholds) == {(1,)}


def test_rows_are_lumped_beyond_what_can_be_solved() -> None:
    """130 rows are told apart in threes; a loop twice as fine has about twice the thresholds at about equal rates."""
    fine, coarse = (
        solve_loop_times(
            LoopTimes(tuple(20 + 3 * k / share for k in range(rows)), tuple(13 + n / share for n in range(rows)), 12)
        )
        for rows, share in ((131, 4), (66, 2))
    )
    assert fine.rates_per_ns[0] == pytest.approx(2 * coarse.rates_per_ns[0], rel=0.1)
    assert fine.mean_latency_ns[0] == pytest.approx(coarse.mean_latency_ns[0], rel=0.1)
    assert len(fine.thresholds[0]) == 130
    assert abs(fine.thresholds[-1][40] - 2 * coarse.thresholds[-1][20]) <= 4
