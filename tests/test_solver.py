"""The solver against brute force, closed forms and strange tables."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.bounds import graph_batching_mean
from lazybatch.core.control import Control, Solution
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.solver import ROWS_WEIGHED, batch_times_ns, poisson, solve, solve_times


def capacity(times_ns: Sequence[int]) -> float:
    """Rows per nanosecond at the best batch size."""
    return max(b / time_ns for b, time_ns in enumerate(times_ns, start=1))


def exact_poisson(mean: float, kmax: int) -> list[float]:
    """Probabilities of 0..kmax arrivals by the textbook formula, the rest lumped into the last."""
    chances = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(kmax)]
    return [*chances, max(0.0, 1 - sum(chances))]


def by_value_iteration(times: Sequence[int], rate: float, last: int) -> tuple[float, list[int]]:
    """Gain and actions by relative value iteration of the uniformised problem: slow, plain, and another method."""
    states, q = last + 1, np.arange(last + 1)
    tau = 0.99 * min(*times, 1 / rate)
    cost = np.full((len(times) + 1, states), np.inf)
    stay = np.zeros((len(times) + 1, states))
    move = np.zeros((len(times) + 1, states, states))
    cost[0, :-1], stay[0], move[0, q[:-1], q[1:]] = q[:-1] * tau, 1 - rate * tau, rate * tau
    for b, time in enumerate(times, start=1):
        cost[b, b:] = (q[b:] + rate * time / 2) * tau
        stay[b] = 1 - tau / time
        for k, p in enumerate(exact_poisson(rate * time, last)):
            np.add.at(move[b], (q[b:], np.minimum(q[b:] - b + k, last)), p * tau / time)
    value = np.zeros(states)
    for _ in range(100_000):
        options = cost + stay * value + move @ value
        change = options.min(axis=0) - value
        value = value + change - change[0]
        if np.ptp(change) < 1e-10 * tau:
            break
    return change[0] / tau, options.argmin(axis=0).tolist()


SMALL = {
    "gains from batching": (10, 11, 12, 13),
    "no gain": (10, 20, 30, 40),
    "worse than serial": (10, 25, 50),
    "stairs": (10, 10, 18, 18),
    "falls in the middle": (10, 30, 12),
    "two is the best": (10, 12, 40, 41),
    "one alone is slow": (60, 20, 22),
}


@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize("load", [0.1, 0.5])
def test_brute_force_agrees(shape: str, load: float) -> None:
    """For S(b) of any shape, gain and actions are those of value iteration on the same problem."""
    times = SMALL[shape]
    solution = solve_times("m", times, loads=(load,)).solutions[0]
    gain, action = by_value_iteration(times, load * capacity(times), 24)
    assert solution.gain_rows == pytest.approx(gain, rel=1e-3)
    assert list(solution.action[:9]) == action[:9]


@pytest.mark.parametrize("load", [0.01, 0.3, 0.9, 0.97, 0.995])
def test_one_row_at_a_time_is_the_md1_queue(load: float) -> None:
    """With a maximum batch of one, the mean rows are Pollaczek and Khinchine's, close to saturation too."""
    solution = solve_times("m", (1_000_003,), loads=(load,)).solutions[0]
    assert solution.gain_rows == pytest.approx(load + load * load / (2 * (1 - load)), rel=1e-8)
    assert set(solution.action[1:]) == {1}


def test_the_value_of_the_md1_queue_is_quadratic() -> None:
    """h(q) = c q^2 + (L / rate - c) q with c = S / (2 (1 - load)) and L rows in the system; also beyond the states."""
    load, time_ns = 0.8, 1000
    solution = solve_times("m", (time_ns,), loads=(load,)).solutions[0]
    square = time_ns / (2 * (1 - load))
    linear = (load + load * load / (2 * (1 - load))) / (load / time_ns) - square
    known = [square * q * q + linear * q for q in range(len(solution.value))]
    assert list(solution.value) == pytest.approx(known, rel=1e-8)


def test_without_batching_gain_rows_go_one_by_one() -> None:
    """Where b rows take b times as long, or longer, every start is of one row, at every load, without being told."""
    for times in ([25 * b for b in range(1, 17)], [b * b for b in range(1, 17)]):
        for solution in solve_times("m", times).solutions:
            assert set(solution.action[1:]) == {1}


def test_all_that_wait_where_batching_is_free_enough() -> None:
    """Where S(b) hardly grows, whoever starts takes all that wait; near saturation it first waits for company."""
    times = [1000 + b for b in range(1, 33)]
    control = solve_times("m", times)
    for solution in control.solutions:
        assert all(b in (0, min(q, 32)) for q, b in enumerate(solution.action))
    waits = [sum(b == 0 for b in solution.action) for solution in control.solutions]
    assert waits == sorted(waits), "the busier, the longer it pays to wait"
    assert waits[0] <= 2 < waits[-1]


@pytest.mark.parametrize("rate_rps", [2.0, 10.0, 40.0])
def test_never_worse_than_graph_batching(rate_rps: float) -> None:
    """The gain is at most the mean rows in the system under GraphB(0), known in closed form (Little's law)."""
    fixed_ns, per_row_ns = 50_000_000, 10_000_000
    times = [fixed_ns + per_row_ns * b for b in range(1, 65)]
    solution = solve_times("m", times, loads=(rate_rps / 1e9 / capacity(times),)).solutions[0]
    graph = graph_batching_mean(fixed_ns, per_row_ns, rate_rps)
    assert solution.gain_rows <= rate_rps / 1e9 * graph.mean_ns * (1 + 1e-6)


shapes = st.lists(st.integers(1, 1000), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(times=st.one_of(shapes, shapes.map(sorted)), load=st.sampled_from((0.02, 0.2, 0.6, 0.93)))
def test_the_equations_hold(times: list[int], load: float) -> None:
    """For any S(b): h(q) is what its best action costs, no action costs less, and waiting is one of them."""
    rate = load * capacity(times)
    solution = solve_times("m", times, loads=(load,)).solutions[0]
    value = solution.value
    for q in range(20):
        costs = {0: q / rate - solution.gain_rows / rate + value[q + 1]}
        for b in range(1, min(q, len(times)) + 1):
            time, mean = times[b - 1], rate * times[b - 1]
            if mean > 30:
                continue
            ahead = sum(p * value[q - b + k] for k, p in enumerate(exact_poisson(mean, 80 - q)))
            costs[b] = q * time + rate * time * time / 2 - solution.gain_rows * time + ahead
        scale = abs(value[q]) + max(times)
        assert min(costs.values()) >= value[q] - 1e-6 * scale
        if solution.action[q] in costs:
            assert costs[solution.action[q]] == pytest.approx(value[q], abs=1e-6 * scale)


@settings(max_examples=25, deadline=None)
@given(times=shapes.map(sorted))
def test_monotone(times: list[int]) -> None:
    """Where more rows never run faster: more waiting rows are worth more, and a higher rate fills the system more."""
    control = solve_times("m", times)
    for solution in control.solutions:
        assert all(a < b for a, b in zip(solution.value, solution.value[1:], strict=False))
    gains = [solution.gain_rows for solution in control.solutions]
    assert gains == sorted(gains)


def check(control: Control) -> None:
    """What the policy relies on: finite numbers, ascending grids, actions that can be taken, tables of one length."""
    rates = [solution.rate_per_ns for solution in control.solutions]
    assert rates == sorted(set(rates))
    for solution in control.solutions:
        assert math.isfinite(solution.gain_rows)
        assert solution.gain_rows > 0
        assert all(map(math.isfinite, solution.value))
        assert solution.value[0] == 0
        assert len(solution.horizon_ns) == len(solution.ahead) >= 2
        assert solution.horizon_ns[0] == 0
        assert all(a < b for a, b in zip(solution.horizon_ns, solution.horizon_ns[1:], strict=False))
        assert all(len(row) == len(solution.value) == len(solution.action) for row in solution.ahead)
        assert all(all(map(math.isfinite, row)) for row in solution.ahead)
        assert all(0 <= b <= q or q == len(solution.action) - 1 for q, b in enumerate(solution.action))
        assert solution.action[0] == 0 < solution.action[-1] <= control.rows_max


@pytest.mark.parametrize(
    "times",
    [
        (1,),
        (1,) * 64,
        (10**15,) * 3,
        (1, 10**12),
        (10**12, 1),
        tuple(b * b for b in range(1, 65)),
        (5, 3, 100, 2, 7, 7, 1, 50),
        tuple([10] * 7 + [11] * 8 + [1000] * 49),
    ],
    ids=["1 ns", "flat", "ten days", "huge step up", "huge step down", "quadratic", "noise", "stairs"],
)
def test_strange_tables(times: tuple[int, ...]) -> None:
    """Nanoseconds, days, cliffs and noise give finite tables with ascending grids."""
    check(solve_times("m", times))


def test_ahead_is_the_expected_value() -> None:
    """The table of E[h(q + arrivals)] is that of the values, at time zero and later."""
    load, times = 0.5, [10_000 + 1_000 * b for b in range(1, 9)]
    solution: Solution = solve_times("m", times, loads=(load,)).solutions[0]
    assert list(solution.ahead[0]) == pytest.approx(list(solution.value))
    for i in (5, 20, 35):
        mean = solution.rate_per_ns * solution.horizon_ns[i]
        expected = sum(p * solution.value[3 + k] for k, p in enumerate(exact_poisson(mean, 76)))
        assert solution.ahead[i][3] == pytest.approx(expected, rel=1e-6)


def test_large_batches_are_bounded() -> None:
    """Above `ROWS_WEIGHED` nothing more is weighed: the tables stay as they are, a backlog starts the best of all."""
    times = [100_000 + 10 * b for b in range(1, 1025)]
    large = solve_times("m", times, loads=(0.1, 0.9))
    check(large)
    small = solve_times("m", times[:ROWS_WEIGHED], loads=(0.1, 0.9))
    assert large.rows_max == 1024
    assert len(large.solutions[0].value) == len(small.solutions[0].value) == 4 * ROWS_WEIGHED + 1
    assert large.solutions[1].action[:-1] == small.solutions[1].action[:-1]
    assert [solution.start(3000) for solution in large.solutions] == [1024, 1024]


def test_times_of_a_model_as_it_is_served() -> None:
    """S(b) sums the nodes; padded sizes cost what they execute; rows that cannot join run alone."""
    table = LatencyTable("m", ("a", "b"), (1, 2, 4), ((5, 6, 8), (1, 1, 3)), ((5, 6, 8), (1, 1, 3)))
    assert batch_times_ns(table, 4) == (6, 7, 9, 11)
    assert batch_times_ns(table, 4, allowed_sizes=(2, 4)) == (7, 7, 11, 11)
    assert batch_times_ns(table, 4, joinable=False) == (6,)
    assert batch_times_ns(table, 4, joinable=False, allowed_sizes=(4,)) == (11,)
    padded = solve(table, 4, allowed_sizes=(4,), loads=(0.3,))
    assert padded == solve_times("m", (11,) * 4, loads=(0.3,))
    assert solve(table, 4, joinable=False, loads=(0.3,)).rows_max == 1


def test_capacity_and_rates() -> None:
    """Rates are shares of the best batch size's throughput, which the control carries."""
    control = solve_times("m", (10, 12, 40), loads=(0.25, 0.5))
    assert control.capacity_per_ns == pytest.approx(2 / 12)
    assert [solution.rate_per_ns for solution in control.solutions] == pytest.approx([2 / 48, 2 / 24])


@pytest.mark.parametrize("times", [(), (0,), (5, -1)])
def test_times_must_be_positive(times: tuple[int, ...]) -> None:
    """No times, or times that are none, are refused."""
    with pytest.raises(InvalidInput, match="must be positive"):
        solve_times("m", times)


@pytest.mark.parametrize("loads", [(), (0.0, 0.5), (0.5, 1.0), (0.5, 0.4), (0.3, 0.3), (math.nan,)])
def test_loads_must_ascend_below_saturation(loads: tuple[float, ...]) -> None:
    """A load of nothing, of everything, or out of order is refused."""
    with pytest.raises(InvalidInput, match="loads must ascend"):
        solve_times("m", (5,), loads=loads)


def test_poisson() -> None:
    """The chances are the textbook's, add up to one, and do not overflow for large means."""
    for mean in (0.0, 1e-9, 0.3, 7.0, 300.0, 5000.0):
        kmax = int(mean + 10 * math.sqrt(mean) + 10)
        chances = poisson(mean, kmax)
        assert sum(chances) == pytest.approx(1, abs=1e-9)
        assert sum(k * p for k, p in enumerate(chances)) == pytest.approx(mean, rel=1e-9)
        if mean:
            k = random.Random(round(mean)).randint(0, int(mean) + 2)
            assert chances[k] == pytest.approx(exact_poisson(mean, kmax)[k], rel=1e-6, abs=1e-16)
