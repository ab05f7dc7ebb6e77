"""Solving when to interrupt a running loop: value iteration on a semi-Markov decision process.

Owns: `solve_loop_times`, from what a loop and the way to it take to thresholds.
Must not know: the scheduler, files; it runs off line or at start, never per decision.

States: n rows run in the loop, q wait. Two actions: one iteration (S(n); each row leaves with probability 1 / mean
trips), or letting in k = min(q, maximum - n) of those who wait (E(k): what lies before the loop). During an action of
length T the cost is (n + q) T + rate T^2 / 2 row-time, and Poisson(rate T) rows come. With the gain g, the mean number
of rows in the system, v = min over actions (cost - g T + E v'): iterated with g following from the empty state, where
nothing can be done but wait for the next row.

* Rows are lumped where there are more than `ROWS_WEIGHED`, so that the states stay few.
* Beyond the last queue length values stay as they are there. That is wrong by little below the capacity, and a loaded
  loop's thresholds hardly depend on it.
* Loads near and above 1 are not solved: the largest solved one stands for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lazybatch.core.loop_control import NEVER
from lazybatch.core.loop_times import LoopTimes
from lazybatch.solver import poisson

Vector = np.ndarray[Any, np.dtype[np.float64]]

LOADS = (0.15, 0.35, 0.55, 0.75, 0.88)
"""Rates that are solved, as shares of the capacity with the loop full and newcomers let in by half batches."""
ROWS_WEIGHED = 64
SOLVER = 1
"""Raised whenever the same times would be solved differently than before."""
_QUEUE = 2.5
"""Queue lengths that are told apart, in full loops."""
_SWEEPS_MAX = 2000
_SWEEPS_CHECKED = 20
_GAIN_SETTLED = 2e-4


class LoopSolution(NamedTuple):
    """Rates, ascending; per rate thresholds by rows running and the predicted mean latency (see `LoopControl`)."""

    rates_per_ns: tuple[float, ...]
    thresholds: tuple[tuple[int, ...], ...]
    mean_latency_ns: tuple[float, ...]


def solve_loop_times(times: LoopTimes) -> LoopSolution:
    """When to let newcomers in, for the rates of `LOADS`."""
    before_ns, step_ns, trips = times
    rows_max = len(step_ns) - 1
    lump = -(-rows_max // ROWS_WEIGHED)
    counts = np.minimum(np.arange(-(-rows_max // lump) + 1) * lump, rows_max)
    before, step = np.array(before_ns, float)[counts], np.array(step_ns, float)[counts]
    half = (len(step) - 1 + 1) // 2
    per_row = float(np.min(trips * step[1:] / np.arange(1, len(step)))) + float(before[half]) / half
    problem = _Problem(before / per_row, step / per_row, trips)
    rates = tuple(load / per_row * lump for load in LOADS)
    if not before[1:].any():  # newcomers cost nobody anything: there is nothing to solve
        return LoopSolution(rates, ((1,) * rows_max,) * len(rates), (0.0,) * len(rates))
    thresholds: list[tuple[int, ...]] = []
    means: list[float] = []
    value = np.zeros((len(step), problem.queue + 1))
    for load in LOADS:
        gain, value, joins = problem.solve(load, value)
        first = np.where(joins.any(axis=1), joins.argmax(axis=1), NEVER)
        needed = [first[n // lump] for n in range(rows_max)]
        thresholds.append(
            tuple(int(count) if count == NEVER else max(1, (int(count) - 1) * lump + 1) for count in needed)
        )
        means.append(gain / load * per_row)
    return LoopSolution(rates, tuple(thresholds), tuple(means))


class _Problem:
    """Times by rows, in units of what a row takes of a loaded loop, so that rates are loads."""

    def __init__(self, before: Vector, step: Vector, trips: float) -> None:
        self.before, self.step = before, step
        self.rows = len(step) - 1
        self.queue = int(_QUEUE * self.rows) + 1
        self.leave = _leaving(self.rows, 1 / max(trips, 1.0))
        running, waiting = np.arange(self.rows + 1)[:, None], np.arange(self.queue + 1)[None, :]
        self.joining = np.minimum(waiting, self.rows - running)
        self.joined = running + self.joining
        self.left = waiting - self.joining
        self.inside = running + waiting

    def solve(self, rate: float, value: Vector) -> tuple[float, Vector, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Gain, relative values and where joining is best, from values that are close."""
        step, before, joining = self.step, self.before, self.joining
        longest = float(max(step.max(), before.max()))
        come = int(rate * longest + 8 * np.sqrt(rate * longest) + 8)
        come_step, come_before = (np.array([poisson(rate * time, come) for time in times]) for times in (step, before))
        cost_step = self.inside * step[:, None] + rate * step[:, None] ** 2 / 2
        time_before = before[joining]
        cost_before = self.inside * time_before + rate * time_before**2 / 2
        cost_before[joining == 0] = np.inf
        gain = seen = rate * float(value[0, 1])
        for sweep in range(_SWEEPS_MAX):
            beyond = np.concatenate([value, np.repeat(value[:, -1:], come, axis=1)], axis=1)
            go = cost_step - gain * step[:, None] + _ahead(self.leave @ beyond, come_step)
            go[0] = np.inf
            empty = come_before @ beyond[:, : come + 1].T
            full = _ahead(np.broadcast_to(beyond[-1], (self.rows + 1, beyond.shape[1])), come_before)
            ahead = np.where(self.left > 0, full[joining, self.left], empty[joining, self.joined])
            join = cost_before - gain * time_before + ahead
            best = np.minimum(go, join)
            best[0, 0] = value[0, 1] - gain / rate
            value = best - best[0, 0]
            gain = (gain + rate * float(value[0, 1])) / 2
            if sweep % _SWEEPS_CHECKED == _SWEEPS_CHECKED - 1:
                if abs(gain - seen) < _GAIN_SETTLED * gain:
                    break
                seen = gain
        return gain, value, join < go


def _ahead(values: Vector, come: Vector) -> Vector:
    """By rows running and waiting, the expected value after so many have come (rows of ``come``: probabilities)."""
    states = values.shape[1] - come.shape[1] + 1
    expected: Vector = np.zeros((values.shape[0], states))
    for arrivals in range(come.shape[1]):
        expected += come[:, arrivals, None] * values[:, arrivals : arrivals + states]
    return expected


def _leaving(rows: int, end: float) -> Vector:
    """leave[n, m]: the chance that of n rows m stay, when each leaves with probability ``end``."""
    leave: Vector = np.zeros((rows + 1, rows + 1))
    leave[0, 0] = 1.0
    for n in range(1, rows + 1):
        leave[n] = end * leave[n - 1]
        leave[n, 1:] += (1 - end) * leave[n - 1, :-1]
    return leave
