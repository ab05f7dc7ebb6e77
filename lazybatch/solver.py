"""Solving the graph-level control of one model: policy iteration on a small semi-Markov decision process.

Owns: `solve`, from a latency table to a `Control` for a grid of arrival rates.
Must not know: the scheduler; it runs off line or at start, never per decision.

States q = 0..Q waiting rows with a free processor. Action b starts b rows: cost q S(b) + rate S(b)^2 / 2 row-time, next
state q - b + Poisson(rate S(b)). Action 0 waits for one arrival. Policy iteration (Howard) with an exact linear solve
per step converges in a handful of steps; the tail beyond Q is lumped into Q.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lazybatch.core.control import Control, Solution
from lazybatch.core.latency import LatencyTable

Vector = NDArray[np.float64]

LOADS = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.27, 0.35, 0.43, 0.51, 0.59, 0.67, 0.75, 0.82, 0.88, 0.93, 0.97)
"""Loads (rate over the best capacity) a control is solved for."""


def poisson(mean: float, kmax: int) -> Vector:
    """Probabilities of 0..kmax arrivals; what lies beyond kmax is added to the last."""
    if mean <= 0:
        none: Vector = np.eye(1, kmax + 1)[0]
        return none
    k = np.arange(1, kmax + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(k))]) - mean
    pmf: Vector = np.exp(logs)
    pmf[-1] += max(0.0, 1.0 - pmf.sum())
    return pmf


def _spread(mean: float, states: int) -> int:
    return min(states, int(mean + 10 * np.sqrt(mean) + 10))


def _expect(value: Vector, pmf: Vector, lumped: bool = True) -> Vector:
    """E[value(min(q + K, Q))] for every q."""
    tail = np.full(len(pmf) - 1, value[-1]) if lumped else value[-1] + (value[-1] - value[-2]) * np.arange(1, len(pmf))
    expected: Vector = np.correlate(np.concatenate([value, tail]), pmf, "valid")
    return expected


def solve(table: LatencyTable, rows_max: int, *, loads: Sequence[float] = LOADS, joinable: bool = True) -> Control:
    """The control of a model, for the given loads. Under a second for a maximum batch of 64."""
    rows_max = rows_max if joinable else 1
    whole_ns = np.array([sum(times[b] for times in table.dense_ns(rows_max)) for b in range(1, rows_max + 1)], float)
    capacity = float(np.max(np.arange(1, rows_max + 1) / whole_ns))
    return Control(table.model, rows_max, tuple(_solve_rate(whole_ns, load * capacity) for load in loads))


def _solve_rate(whole_ns: Vector, rate: float) -> Solution:
    rows_max = len(whole_ns)
    states = max(5 * rows_max, 80)
    unit_ns = whole_ns[0]
    service, lam = whole_ns / unit_ns, rate * unit_ns
    pmfs = [poisson(lam * s, _spread(lam * s, states)) for s in service]
    q = np.arange(states + 1)
    action = np.minimum(q, rows_max)
    value, gain = np.zeros(states + 1), 0.0
    for _ in range(60):
        gain, value = _evaluate(action, service, lam, pmfs)
        best = np.full(states + 1, np.inf)
        improved = np.zeros(states + 1, int)
        for b in range(1, rows_max + 1):
            s = service[b - 1]
            cost = q[b:] * s + lam * s * s / 2 - gain * s + _expect(value, pmfs[b - 1])[: states + 1 - b]
            better = cost < best[b:] - 1e-9
            best[b:][better] = cost[better]
            improved[b:][better] = b
        wait = q / lam - gain / lam + np.append(value[1:], np.inf)
        waits = wait < best - 1e-9
        improved[waits] = 0
        improved[0] = 0
        if np.array_equal(improved, action):
            break
        action = improved
    horizon = np.concatenate([[0.0], np.geomspace(service[0] / 64, 6 * service[-1], 40)])
    ahead = []
    for t in horizon:
        mean = lam * t
        pmf = poisson(mean, int(mean + 10 * np.sqrt(mean) + 10))
        ahead.append(tuple(float(v) * unit_ns for v in _expect(value, pmf, lumped=False)))
    return Solution(
        rate,
        float(gain),
        tuple(float(v) * unit_ns for v in value),
        tuple(int(a) for a in action),
        tuple(int(t * unit_ns) for t in horizon),
        tuple(ahead),
    )


def _evaluate(action: NDArray[np.int64], service: Vector, lam: float, pmfs: Sequence[Vector]) -> tuple[float, Vector]:
    """Gain and relative values of a fixed policy: h(q) = c(q) - g tau(q) + sum P h, with h(0) = 0."""
    states = len(action)
    transition = np.zeros((states, states))
    cost, tau = np.zeros(states), np.zeros(states)
    for q, b in enumerate(action):
        if b == 0:
            tau[q], cost[q] = 1 / lam, q / lam
            transition[q, min(q + 1, states - 1)] += 1
            continue
        s = service[b - 1]
        tau[q], cost[q] = s, q * s + lam * s * s / 2
        pmf = pmfs[b - 1]
        end = min(states, q - b + len(pmf))
        transition[q, q - b : end] = pmf[: end - (q - b)]
        transition[q, -1] += pmf[end - (q - b) :].sum()
    matrix = np.eye(states) - transition
    matrix[:, 0] = tau  # the column of h(0) = 0 holds the unknown gain
    solved = np.asarray(np.linalg.solve(matrix, cost), np.float64)
    gain = float(solved[0])
    solved[0] = 0.0
    return gain, solved
