"""What a loop and the way to it take, by rows: all that a loop's control follows from.

Owns: `LoopTimes` and `loop_times`.
Must not know: rates, thresholds, queues, stacks.

A loop on the way to another one is run by all newcomers until the last of them is through: rows leave it as their trips
are over, and wait behind it. So its time is summed over iterations, each with as many rows as are to be expected then.
"""

from __future__ import annotations

from typing import NamedTuple

from lazybatch.core.graph import Stage
from lazybatch.core.lane import Lane


class LoopTimes(NamedTuple):
    """Times by rows 0..maximum; those of 0 rows are 0.

    before_ns: what lies before the loop. step_ns: an iteration, and what rows that leave run behind it while the others
    wait. trips: the mean number of iterations of a row.
    """

    before_ns: tuple[float, ...]
    step_ns: tuple[float, ...]
    trips: float


def loop_times(lane: Lane, number: int) -> LoopTimes:
    """The times of a loop of a lane that has a latency table."""
    stages = lane.spec.graph.stages()
    at = next(n for n, stage in enumerate(stages) if stage.loop == number)
    trips = _mean_trips(lane, number)
    before = [0.0] * (lane.rows_max + 1)
    for stage in stages[:at]:
        before = [sum(pair) for pair in zip(before, _way_ns(lane, stage), strict=True)]
    behind = [0.0] * (lane.rows_max + 1)
    if number + 1 == len(lane.loops):  # else those who leave wait for the others
        for stage in stages[at + 1 :]:
            behind = [sum(pair) for pair in zip(behind, _runs_ns(lane, stage), strict=True)]
    step = _runs_ns(lane, stages[at])
    for rows in range(1, lane.rows_max + 1):
        anybody = 1 - (1 - 1 / trips) ** rows
        step[rows] += anybody * behind[max(1, round(rows / trips))]
    return LoopTimes(tuple(before), tuple(step), trips)


def _mean_trips(lane: Lane, number: int) -> float:
    guess, most = lane.spec.guess(number), lane.loops[number].trips_max
    mean = float(lane.spec.trips(number).mean) if guess is None else guess.mean_trips
    return mean if most is None else min(mean, float(most))


def _runs_ns(lane: Lane, stage: Stage) -> list[float]:
    """By rows, the time of one run of a stage's nodes."""
    times_ns = lane.times_ns
    assert times_ns is not None, "lanes without a table are refused"
    own_ns = times_ns[stage.first : stage.stop]
    return [float(sum([node_ns[rows] for node_ns in own_ns])) for rows in range(lane.rows_max + 1)]


def _way_ns(lane: Lane, stage: Stage) -> list[float]:
    """By rows, the time until all that start a stage together are through it."""
    runs_ns = _runs_ns(lane, stage)
    if stage.loop is None:
        return runs_ns
    guess = lane.spec.guess(stage.loop)
    if guess is None:
        return [run_ns * _mean_trips(lane, stage.loop) for run_ns in runs_ns]
    way_ns = [0.0] * len(runs_ns)
    for share in guess.longer()[: lane.loops[stage.loop].trips_max]:
        for rows in range(1, len(runs_ns)):
            anybody = 1 - (1 - share) ** rows
            way_ns[rows] += anybody * runs_ns[max(1, round(rows * share / anybody))] if anybody else 0.0
    return way_ns
