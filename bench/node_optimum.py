"""The best control at node level, solved: what any policy on one small model can be measured against.

Owns: `solve_nodes`, `NodeControl`, and `Solved`, the policy that follows it.
Must not know: the policies compared with it, how they are run.

The decision problem is that of `lazybatch.solver`, with a choice at every node boundary: the sub-batch goes on, or k of
the q waiting rows catch up with it and merge. One sub-batch is preempted at a time, and those that catch up are not
preempted themselves. Poisson arrivals, no deadlines, exact latencies; the waiting rows are lumped at ``states``.

From one free processor to the next a batch only moves forward (to a later node, or at one node to more rows). So given
what the end is worth, the best choices follow by one backward induction, and with them the expected cost, the time and
the chances of each number waiting at the end. Policy iteration over these is exact and takes some ten rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.base import Choice, Start, View, Wait
from lazybatch.core.task import Reason
from lazybatch.errors import InvalidInput
from lazybatch.solver import poisson

Vector = NDArray[np.float64]
Actions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeControl:
    """The solution. gain_rows: mean rows in the system under it.

    start: by q, rows to start on a free processor (0: wait for one more). join: by node, rows in flight and q, how many
    are to catch up (0: go on).
    """

    rate_per_ns: float
    gain_rows: float
    start: Actions
    join: Actions

    @property
    def mean_ns(self) -> float:
        """Mean latency, by Little's law."""
        return self.gain_rows / self.rate_per_ns


def solve_nodes(table: LatencyTable, rows_max: int, rate_per_ns: float, states: int) -> NodeControl:
    """The best control for Poisson arrivals at this rate. Memory and time grow with nodes * rows_max^2 * states^2.

    Raises `InvalidInput` for fewer states than rows, or a rate that is not positive.
    """
    if states < rows_max or rate_per_ns <= 0:
        raise InvalidInput(f"need states >= {rows_max} and a positive rate, got {states} and {rate_per_ns}")
    problem = _Problem(table, rows_max, rate_per_ns, states)
    value, gain = np.zeros(states + 1), np.inf
    while True:
        # The first round knows no gain yet: it takes what costs least until the processor is free, whatever it leaves.
        start, join, outcome = problem.improved(value, 0.0 if gain == np.inf else gain)
        better, value = problem.evaluated(outcome)
        if better >= gain * (1 - 1e-10):
            return NodeControl(rate_per_ns, float(min(gain, better)), start, join)
        gain = better


class _Problem:
    """An outcome is a matrix by q whose columns are: cost, time, then the chance of each number waiting at the end.

    Time is in units of one row's whole run, so that all columns are of similar size.
    """

    def __init__(self, table: LatencyTable, rows_max: int, rate_per_ns: float, states: int) -> None:
        self.unit_ns = table.whole_ns(1)
        self.rate = rate_per_ns * self.unit_ns
        self.rows_max, self.states = rows_max, states
        self.times = np.array(table.dense_ns(rows_max), float) / self.unit_ns
        self.passed = np.concatenate([np.zeros((1, rows_max + 1)), np.cumsum(self.times, axis=0)])
        self.q = np.arange(states + 1)
        self._arrivals: dict[float, Vector] = {}

    def arrivals(self, time: float) -> Vector:
        """Chances of going from q to q' waiting rows within a time."""
        found = self._arrivals.get(time)
        if found is None:
            pmf = poisson(self.rate * time, self.states)
            found = np.zeros((self.states + 1, self.states + 1))
            for q in self.q:
                found[q, q:] = pmf[: self.states + 1 - q]
                found[q, -1] += 1.0 - found[q].sum()
            self._arrivals[time] = found
        return found

    def after(self, time: float, rows: int, taken: int, outcome: Vector) -> Vector:
        """The outcome, by q >= taken, of ``rows`` in flight for a time, ``taken`` of the q among those after it."""
        found: Vector = self.arrivals(time)[: self.states + 1 - taken] @ outcome
        found[:, 0] += (rows + self.q[taken:]) * time + self.rate * time * time / 2
        found[:, 1] += time
        return found

    def improved(self, value: Vector, gain: float) -> tuple[Actions, Actions, Vector]:
        """The best choices where the end is worth ``value`` and time ``gain``, and their outcome."""
        worth = np.concatenate([[1.0, -gain], value])
        nodes, states = len(self.times), self.states
        join = np.zeros((nodes, self.rows_max + 1, states + 1), np.int64)
        done = np.hstack([np.zeros((states + 1, 2)), np.eye(states + 1)])
        later = [done] * (self.rows_max + 1)
        for node in reversed(range(nodes)):
            here = list(later)
            for rows in range(self.rows_max, 0, -1):
                best = self.after(self.times[node][rows], rows, 0, later[rows])
                costs = best @ worth
                for more in range(1, self.rows_max - rows + 1) if node else ():
                    candidate = self.after(self.passed[node][more], rows, more, here[rows + more])
                    self._take(candidate, more, worth, best, costs, join[node, rows])
                here[rows] = best
            later = here
        start = np.zeros(states + 1, np.int64)
        best = np.zeros((states + 1, states + 3))  # waiting for one more
        best[:, 0], best[:, 1] = self.q / self.rate, 1 / self.rate
        best[self.q, 2 + np.minimum(self.q + 1, states)] = 1.0
        costs = best @ worth
        costs[-1] = np.inf  # beyond the last state nobody is seen to arrive: waiting there would seem free
        for rows in range(1, self.rows_max + 1):
            self._take(later[rows][: states + 1 - rows], rows, worth, best, costs, start)
        return start, join, best

    @staticmethod
    def _take(candidate: Vector, rows: int, worth: Vector, best: Vector, costs: Vector, action: Actions) -> None:
        """Where the candidate (given for q >= rows) is better, let it be the best."""
        found = candidate @ worth
        better = found + 1e-12 * np.abs(found) < costs[rows:]
        best[rows:][better] = candidate[better]
        costs[rows:][better] = found[better]
        action[rows:][better] = rows

    def evaluated(self, outcome: Vector) -> tuple[float, Vector]:
        """Gain and relative values of choices, from their outcome; h(0) = 0."""
        matrix = np.eye(self.states + 1) - outcome[:, 2:]
        matrix[:, 0] = outcome[:, 1]  # the column of h(0) holds the unknown gain
        solved: Vector = np.linalg.solve(matrix, outcome[:, 0])
        gain = float(solved[0])
        solved[0] = 0.0
        return gain, solved


class Solved:
    """The policy that follows a `NodeControl`: one lane, one signature, no deadlines."""

    needs_table = True

    def __init__(self, control: NodeControl) -> None:
        self._start = control.start.tolist()
        self._join = control.join.tolist()

    def decide(self, view: View, now: int) -> Choice:
        """What the control says of where the sub-batch stands and how many wait."""
        (lane,) = view.lanes
        waiting = min(len(lane.queue), len(self._start) - 1)
        active = view.active
        if active is None:
            rows = self._start[waiting]
            if rows == 0 and view.draining:
                rows = min(waiting, lane.rows_max)
            return Start(lane, rows, Reason.START_IDLE) if rows else Wait()
        rows = self._join[active.cursor][len(active)][waiting] if len(view.stack) == 1 else 0
        return Start(lane, rows, Reason.PREEMPT_CHEAPER) if rows else None
