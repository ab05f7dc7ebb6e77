"""Solving when to interrupt a running loop: value iteration on a semi-Markov decision process.

Owns: `solve_loop_times`, from what a loop and the way to it take to thresholds.
Must not know: the scheduler, files; it runs off line or at start, never per decision.

States: n rows run in the loop, q wait. Two actions: one iteration (S(n); each row leaves with probability 1 / mean
trips), or letting in k = min(q, maximum - n) of those who wait (E(k): what lies before the loop). During an action of
length T the cost is (n + q) T + rate T^2 / 2 row-time, and Poisson(rate T) rows come. Nobody there: wait for the next.

Value iteration with costs C and times W side by side: every state takes the action that is best by C - g W, where the
gain g, the mean number of rows in the system, is by how much C grows over by how much W does. It settles once they grow
alike in all states that matter. A step of each value is damped, or joining and stepping in turn would never settle.

* Rows are lumped where there are more than `ROWS_WEIGHED`, so that the states stay few.
* Beyond the last queue length values stay as they are there. That is wrong by little below the capacity, and a loaded
  loop's thresholds hardly depend on it.
* Loads near and above 1 are not solved: the largest solved one stands for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lazybatch.core.loop_control import NEVER
from lazybatch.core.loop_times import LoopTimes
from lazybatch.solver import poisson

Vector = np.ndarray[Any, np.dtype[np.float64]]

LOADS = (0.05, 0.15, 0.35, 0.55, 0.75, 0.88)
"""Rates that are solved, as shares of the capacity with the loop full and newcomers let in by half batches."""
ROWS_WEIGHED = 64
SOLVER = 2
"""Raised whenever the same times would be solved differently than before."""
_QUEUE = 1.5
"""Queue lengths that are told apart, in full loops."""
_SWEEPS_MAX = 2000
_SWEEPS_CHECKED = 20
_DAMPING = 0.85
_SETTLED = 0.03
"""Iteration ends once no state's value grows otherwise than the others' by more than this share of an action's cost."""


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
    half = len(step) // 2
    per_row = float(np.min(trips * step[1:] / np.arange(1, len(step)))) + float(before[half]) / half
    problem = _Problem(before / per_row, step / per_row, trips)
    rates = tuple(load / per_row * lump for load in LOADS)
    if not before[1:].any():  # newcomers cost nobody anything: there is nothing to solve
        return LoopSolution(rates, ((1,) * rows_max,) * len(rates), (0.0,) * len(rates))
    thresholds: list[tuple[int, ...]] = []
    means: list[float] = []
    values = _Values(*np.zeros((2, len(step), problem.queue + 1)))
    for load in LOADS:
        gain, values, joins = problem.solve(load, values)
        first = np.where(joins.any(axis=1), joins.argmax(axis=1), NEVER)
        needed = [first[n // lump] for n in range(rows_max)]
        thresholds.append(
            tuple(int(count) if count == NEVER else max(1, (int(count) - 1) * lump + 1) for count in needed)
        )
        means.append(gain / load * per_row)
    return LoopSolution(rates, tuple(thresholds), tuple(means))


class _Values(NamedTuple):
    """By rows running and waiting, relative to one state: costs, and times."""

    cost: Vector
    time: Vector


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

    def solve(self, rate: float, values: _Values) -> tuple[float, _Values, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Gain, values and where joining is best, from values that are close."""
        cost, time = values
        come_step, come_before = _come(rate, self.step), _come(rate, self.before)
        time_step = np.broadcast_to(self.step[:, None], cost.shape)
        time_join = self.before[self.joining]
        cost_step = self.inside * time_step + rate * time_step**2 / 2
        cost_join = self.inside * time_join + rate * time_join**2 / 2
        nobody = self.joining == 0
        seen = (max(1, self.rows // 4), max(1, self.rows // 16))
        gain = 0.0
        for sweep in range(_SWEEPS_MAX):
            cost_on, cost_in = self._ahead(cost, come_step, come_before)
            time_on, time_in = self._ahead(time, come_step, come_before)
            cost_on, cost_in, time_on, time_in = (
                cost_on + cost_step,
                cost_in + cost_join,
                time_on + time_step,
                time_in + time_join,
            )
            joins = (cost_in - gain * time_in < cost_on - gain * time_on) & ~nobody
            joins[0] = ~nobody[0]
            more_cost = np.where(joins, cost_in, cost_on) - cost
            more_time = np.where(joins, time_in, time_on) - time
            more_cost[0, 0], more_time[0, 0] = cost[0, 1] - cost[0, 0], time[0, 1] + 1 / rate - time[0, 0]
            gain = float(more_cost[seen] / more_time[seen])
            cost, time = cost + _DAMPING * more_cost, time + _DAMPING * more_time
            cost, time = cost - cost[seen], time - time[seen]
            if sweep % _SWEEPS_CHECKED == _SWEEPS_CHECKED - 1:
                off = np.abs(more_cost - gain * more_time)[:, : self.rows + 1].max()
                if off < _SETTLED * gain * more_time[seen]:
                    break
        return gain, _Values(cost, time), joins

    def _ahead(self, value: Vector, come_step: Vector, come_before: Vector) -> tuple[Vector, Vector]:
        """The expected value after an iteration, and after those who wait have come in as far as there is room."""
        width_step, width_before = come_step.shape[1], come_before.shape[1]
        far = np.repeat(value[:, -1:], max(width_step, width_before), axis=1)
        beyond = np.concatenate([value, far], axis=1)
        stayed = sliding_window_view(self.leave @ beyond, width_step, axis=1)[:, : self.queue + 1]
        on: Vector = np.einsum("nqc,nc->nq", stayed, come_step)
        empty = come_before @ beyond[:, :width_before].T
        full = come_before @ sliding_window_view(beyond[-1], width_before)[: self.queue + 1].T
        return on, np.where(self.left > 0, full[self.joining, self.left], empty[self.joining, self.joined])


def _come(rate: float, times: Vector) -> Vector:
    """By rows, the chances of so many arrivals during these times."""
    most = rate * float(times.max())
    return np.array([poisson(rate * float(time), int(most + 6 * np.sqrt(most) + 8)) for time in times])


def _leaving(rows: int, end: float) -> Vector:
    """leave[n, m]: the chance that of n rows m stay, when each leaves with probability ``end``."""
    leave: Vector = np.zeros((rows + 1, rows + 1))
    leave[0, 0] = 1.0
    for n in range(1, rows + 1):
        leave[n] = end * leave[n - 1]
        leave[n, 1:] += (1 - end) * leave[n - 1, :-1]
    return leave
