"""Solving the graph-level control of one model: policy iteration on a small semi-Markov decision process.

Owns: `solve` and `solve_times`, from the times of whole batches S(b) to a `Control` over a grid of arrival rates;
`batch_times_ns`, S(b) of a model as it is served.
Must not know: the scheduler, files; it runs off line or at start, never per decision.

States q = 0..Q rows wait, the processor is free. Action b starts b rows: it costs q S(b) + rate S(b)^2 / 2 row-time
and leads to q - b + Poisson(rate S(b)) waiting rows. Action 0 waits for one arrival. Policy iteration (Howard): the
equations of a fixed policy are solved exactly, then every state takes its best action; a handful of rounds suffice.

* Beyond Q a backlog is served in batches of the best throughput, for which the value is a quadratic known in closed
  form up to the gain; it takes the place of the states left out, so that Q need not grow with the load.
* The equations are solved by elimination along the band they have (a batch takes at most the maximum away, arrivals
  are few) in plain vector operations. A general solver would start threads, and wait for them on a busy machine.
* Probabilities are conditioned on a state that the policy visits often. Conditioning on the empty queue, as textbooks
  do, fails for large batches: it may be left for longer than doubles can tell.
* Batch sizes above `ROWS_WEIGHED` are not weighed; with more rows waiting than are tabulated, the advice is the size
  of the best throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lazybatch.core.control import Control, Solution
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput

Vector = NDArray[np.float64]
Actions = NDArray[np.int64]

SOLVER = 4
"""Raised whenever the same times would be solved differently than before."""
LOADS = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.27, 0.35, 0.43, 0.51, 0.59, 0.67, 0.75, 0.82, 0.88, 0.92, 0.95, 0.98)
"""Loads (rate over the best capacity) a control is solved for."""
ROWS_WEIGHED = 256
"""The largest batch size that is weighed against others."""

_STATES_MIN = 80
_ROUNDS_SETTLED = 60
"""Rounds that no longer lower the gain before that is enough. States hardly visited settle one after the other, in
fewer rounds; more mean that rounding makes two policies take turns."""
_HORIZON_POINTS = 40
_TIE = 1e-9
_LEAK = 1e-12
"""Chance per step to be put back to the reference state: the equations stay solvable if a policy never gets there."""


def batch_times_ns(
    table: LatencyTable, rows_max: int, *, joinable: bool = True, allowed_sizes: Sequence[int] = ()
) -> tuple[int, ...]:
    """S(1), S(2), ...: nanoseconds of the whole model by rows; where only some sizes may run, of the padded size."""
    rows_max = rows_max if joinable else 1
    sums = [sum(times) for times in zip(*table.dense_ns(max([rows_max, *allowed_sizes])), strict=True)]
    return tuple(sums[min((size for size in allowed_sizes if size >= b), default=b)] for b in range(1, rows_max + 1))


def solve(
    table: LatencyTable,
    rows_max: int,
    *,
    loads: Sequence[float] = LOADS,
    joinable: bool = True,
    allowed_sizes: Sequence[int] = (),
) -> Control:
    """The control of a model with a maximum batch of ``rows_max``, for the given loads; see `solve_times`."""
    times_ns = batch_times_ns(table, rows_max, joinable=joinable, allowed_sizes=allowed_sizes)
    return solve_times(table.model, times_ns, loads=loads)


def solve_times(model: str, times_ns: Sequence[int], *, loads: Sequence[float] = LOADS) -> Control:
    """The control for batches that take S(1), S(2), ... nanoseconds, of any shape.

    loads: rates as shares of the best capacity, ascending, within (0, 1). Tables reach to four full batches waiting
    (at most to 4 * `ROWS_WEIGHED`, at least to 80 rows).
    Raises `InvalidInput` for times that are not positive, or loads out of range.
    """
    if not times_ns or min(times_ns) <= 0:
        raise InvalidInput(f"model {model!r}: times of whole batches must be positive, got {list(times_ns)[:4]}")
    if not loads or not 0 < min(loads) <= max(loads) < 1 or list(loads) != sorted(set(loads)):
        raise InvalidInput(f"loads must ascend within 0 and 1, both excluded, got {list(loads)}")
    problem = _Problem.of(times_ns)
    action = np.minimum(np.arange(problem.states), problem.best)
    solutions = []
    for load in loads:
        gain, value, action = _iterate(problem, load, action)
        solutions.append(_tabulate(problem, load, gain, value, action))
    capacity_per_ns = max(rows / time_ns for rows, time_ns in enumerate(times_ns, 1))
    return Control(model, len(times_ns), capacity_per_ns, tuple(solutions))


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is the same at all rates. Times in units of the time per row at the best batch size, so rate = load.

    service: times of the sizes weighed, service[b] for b rows (service[0] unused). best: the size of the best
    throughput among them; best_of_all: among all sizes. states: 0..Q, their number. reach: the last tabulated state.
    """

    unit_ns: float
    service: Vector
    best: int
    best_of_all: int
    states: int
    reach: int

    @classmethod
    def of(cls, times_ns: Sequence[int]) -> _Problem:
        whole_ns = np.array(times_ns, float)
        per_row_ns = whole_ns / np.arange(1, len(whole_ns) + 1)
        weighed = min(len(whole_ns), ROWS_WEIGHED)
        best = int(np.argmin(per_row_ns[:weighed])) + 1
        unit_ns = float(per_row_ns[best - 1])
        service = np.concatenate([[0.0], whole_ns[:weighed] / unit_ns])
        states = max(2 * weighed, _STATES_MIN) + 1
        reach = max(4 * weighed, _STATES_MIN)
        return cls(unit_ns, service, best, int(np.argmin(per_row_ns)) + 1, states, reach)


def poisson(mean: float, kmax: int) -> Vector:
    """Probabilities of 0..kmax arrivals; what lies beyond kmax is added to the last."""
    if mean <= 0:
        none: Vector = np.eye(1, kmax + 1)[0]
        return none
    k = np.arange(1, kmax + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(k))]) - mean
    pmf: Vector = np.exp(logs)
    pmf[-1] += max(0.0, 1.0 - pmf.sum())
    # Chances that no sum can feel would only make slow (denormal) numbers.
    pmf[pmf < 1e-17] = 0.0
    return pmf


def _arrivals(mean: float) -> Vector:
    return poisson(mean, int(mean + 10 * np.sqrt(mean) + 10))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The value beyond Q: h(Q + j) = h(Q) + square ((Q + j)^2 - Q^2) + (linear + per_gain gain) j.

    From h(q) = q s + rate s^2 / 2 - gain s + E h(q - b + K) with b rows at a time, K ~ Poisson(rate s).
    """

    square: float
    linear: float
    per_gain: float

    @classmethod
    def of(cls, problem: _Problem, rate: float) -> _Tail:
        b, s = problem.best, problem.service[problem.best]
        drift = b - rate * s
        square = s / (2 * drift)
        linear = (square * (rate * s + drift * drift) + rate * s * s / 2) / drift
        return cls(float(square), float(linear), float(-s / drift))

    def extend(self, value: Vector, gain: float, more: int) -> Vector:
        """The values and ``more`` beyond the last."""
        last, j = len(value) - 1, np.arange(1, more + 1)
        steps = self.square * (2.0 * last * j + j * j) + (self.linear + self.per_gain * gain) * j
        return np.concatenate([value, value[-1] + steps])


def _iterate(problem: _Problem, rate: float, action: Actions) -> tuple[float, Vector, Actions]:
    """Gain, values of 0..Q relative to the empty queue, and best actions, starting from a policy that is close."""
    tail = _Tail.of(problem, rate)
    # A batch during which more rows come than there are states is beyond all comparison (the best one never is).
    sizes = [b for b in range(1, len(problem.service)) if rate * problem.service[b] < problem.states]
    pmfs = {b: _arrivals(rate * problem.service[b]) for b in sizes}
    if not set(action.tolist()) <= {0, *sizes}:
        action = _first_policy(problem, sizes)
    lowest, settled = np.inf, 0
    while True:
        gain, value = _evaluate(problem, rate, action, pmfs, tail)
        settled = 0 if gain < lowest * (1 - _TIE) else settled + 1
        lowest = min(lowest, gain)
        costs = _costs(problem, rate, gain, tail.extend(value, gain, max(map(len, pmfs.values()))), pmfs)
        best = costs.min(axis=0)
        mine = costs[action, np.arange(problem.states)]
        keep = mine <= best + _TIE * (1 + np.abs(best))
        if keep.all() or settled == _ROUNDS_SETTLED:
            return gain, value - value[0], action
        action = np.where(keep, action, costs.argmin(axis=0))


def _first_policy(problem: _Problem, sizes: Sequence[int]) -> Actions:
    """As many as wait, of the sizes there are, and otherwise wait; a backlog in batches of the best throughput."""
    action = np.zeros(problem.states, np.int64)
    for b in sizes:
        action[b:] = b
    action[problem.best :] = problem.best
    return action


def _costs(problem: _Problem, rate: float, gain: float, ahead: Vector, pmfs: dict[int, Vector]) -> Vector:
    """By action (0: wait) and state, the value of taking it once; infinite where it cannot be taken."""
    states = problem.states
    q = np.arange(states)
    costs = np.full((len(problem.service), states), np.inf)
    costs[0, :-1] = (q[:-1] - gain) / rate + ahead[1:states]
    for b, pmf in pmfs.items():
        s = problem.service[b]
        expected = np.correlate(ahead[: states - b + len(pmf) - 1], pmf, "valid")
        costs[b, b:] = (q[b:] + rate * s / 2 - gain) * s + expected
    return costs


def _evaluate(
    problem: _Problem, rate: float, action: Actions, pmfs: dict[int, Vector], tail: _Tail
) -> tuple[float, Vector]:
    """Gain and relative values of a fixed policy, from h = cost - gain time + P h."""
    states = problem.states
    last = states - 1
    matrix = np.zeros((states, states))
    right = np.zeros((states, 2))  # columns: cost, time
    for q, b in enumerate(action.tolist()):
        if b == 0:
            right[q] = q / rate, 1 / rate
            matrix[q, q + 1] = -1.0
            continue
        s, pmf = problem.service[b], pmfs[b]
        cost, time = (q + rate * s / 2) * s, s
        inside = min(len(pmf), states - (q - b))
        matrix[q, q - b : q - b + inside] -= pmf[:inside]
        if inside < len(pmf):
            j, over = np.arange(1, len(pmf) - inside + 1), pmf[inside:]
            matrix[q, last] -= over.sum()
            mean = float(over @ j)
            cost += tail.square * float(over @ (2.0 * last * j + j * j)) + tail.linear * mean
            time -= tail.per_gain * mean
        right[q] = cost, time
    matrix[np.arange(states), np.arange(states)] += 1.0 + _LEAK
    reference = _often_visited(problem, rate, action)
    row, (cost, time) = matrix[reference].copy(), right[reference].copy()
    matrix[reference], right[reference] = 0.0, 0.0
    matrix[reference, reference] = 1.0
    of_cost, of_time = _solve_band(matrix, right).T
    gain = float((cost - row @ of_cost) / (time - row @ of_time))
    return gain, of_cost - gain * of_time


def _often_visited(problem: _Problem, rate: float, action: Actions) -> int:
    """A state the policy comes back to: where it settles when arrivals are as many as expected."""
    q, service, actions = 0.0, problem.service.tolist(), action.tolist()
    for _ in range(2 * problem.states):  # waiting for a large batch alone may take that many steps
        state = min(round(q), problem.states - 1)
        b = actions[state]
        q = state + 1 if b == 0 else max(0.0, state - b + rate * service[b])
    return min(round(q), problem.states - 1)


def _solve_band(matrix: Vector, right: Vector) -> Vector:
    """Gauss elimination without pivoting; rows dominate their diagonals. Both arguments are used up."""
    states = len(matrix)
    index = np.arange(states)
    filled = matrix != 0
    lowest = filled.argmax(axis=1)
    highest = np.maximum.accumulate(states - 1 - filled[:, ::-1].argmax(axis=1))
    deepest = np.zeros(states, np.int64)
    np.maximum.at(deepest, lowest, index)
    deepest = np.maximum.accumulate(deepest)
    for k in range(states - 1):
        rows, columns = slice(k + 1, deepest[k] + 1), slice(k + 1, highest[k] + 1)
        factor = matrix[rows, k, None] / matrix[k, k]
        matrix[rows, columns] -= factor * matrix[k, columns]
        right[rows] -= factor * right[k]
    for k in range(states - 1, -1, -1):
        columns = slice(k + 1, highest[k] + 1)
        right[k] = (right[k] - matrix[k, columns] @ right[columns]) / matrix[k, k]
    return right


def _tabulate(problem: _Problem, rate: float, gain: float, value: Vector, action: Actions) -> Solution:
    """The solution at one rate in nanoseconds, up to the last tabulated state."""
    unit_ns, tail, reach = problem.unit_ns, _Tail.of(problem, rate), problem.reach
    service = problem.service[1:]
    longest = float(service[rate * service < problem.states].max())
    points = np.geomspace(float(service.min()) / 64, 6 * longest, _HORIZON_POINTS)
    horizon_ns = np.unique(np.concatenate([[0.0], np.rint(points * unit_ns)]))
    pmfs = [_arrivals(rate * time_ns / unit_ns) for time_ns in horizon_ns]
    beyond = tail.extend(value, gain, reach + max(map(len, pmfs)) - len(value))
    tables = [np.correlate(beyond[: reach + len(pmf)], pmf, "valid") * unit_ns for pmf in pmfs]
    actions = np.concatenate([action, np.full(reach + 1 - len(action), problem.best)])
    actions[-1] = problem.best_of_all
    return Solution(
        rate / unit_ns,
        gain,
        tuple((beyond[: reach + 1] * unit_ns).tolist()),
        tuple(actions.tolist()),
        tuple(int(time_ns) for time_ns in horizon_ns),
        tuple(tuple(table.tolist()) for table in tables),
    )
