"""What no policy can beat, and what clairvoyant ones reach: yardsticks for simulations of one model.

Owns: capacities, a closed form for GraphB(0), lower bounds of latency and upper bounds of goodput per trace, and the
best schedules found by dynamic programming.
Must not know: the scheduler, policies, the simulator. Times are integer nanoseconds unless a name says otherwise.

Two levels. At *graph level* a batch runs from the first node to the last without interruption; at *node level* any
requests that stand at the same node may run it together, in any order (every policy of this package is of that kind).
Two relaxations carry the bounds. A row costs at least its share of the best batch at every node,

    c = sum over nodes of min over b of s(node, b) / b,

so that the k-th completion of any schedule comes no sooner than C_k = max(C_{k-1}, r_k) + c. And no row is done sooner
than s1 = sum over nodes of min over b of s(node, b) after its arrival, which is S(1) where more rows take longer. (The
k-th completion has k arrivals before it, so it obeys both at once.)

The dynamic programmes use that requests of one model and one SLA target are interchangeable: a schedule that takes them
in order of arrival is as good as any. All functions take the latency table and the largest batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput

NS_PER_S = 1e9
_NEVER = math.inf

Label = tuple[int, int]
"""When a partial schedule ends, and the sum of its completion times; fewer of both is better."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Two upper bounds of the mean latency of GraphB(0) under Poisson arrivals (Inoue, Performance Evaluation 2021)."""

    phi0_ns: float
    phi1_ns: float

    @property
    def mean_ns(self) -> float:
        """The better of the two; within a few per cent of the true mean up to loads of 0.8."""
        return min(self.phi0_ns, self.phi1_ns)


def graph_batching_mean(fixed_ns: float, per_row_ns: float, rate_rps: float) -> ClosedForm:
    """Mean latency of GraphB(0) where S(b) = fixed + per_row * b and batches may be of any size.

    Raises `InvalidInput` for a rate that is not positive, or so high that no batch size sustains it.
    """
    if not math.isfinite(rate_rps) or rate_rps <= 0:
        raise InvalidInput(f"the arrival rate must be a positive number of requests per second, got {rate_rps}")
    if fixed_ns < 0 or per_row_ns < 0 or fixed_ns + per_row_ns <= 0:
        raise InvalidInput(f"S(b) = {fixed_ns} + {per_row_ns} b is not the time of a batch")
    rate = rate_rps / NS_PER_S
    load = rate * per_row_ns
    if load >= 1:
        raise InvalidInput(f"{rate_rps:g} requests/s exceed the limit of {NS_PER_S / per_row_ns:g}/s at any batch size")
    gap = rate * fixed_ns
    phi0 = (per_row_ns + fixed_ns) / (2 * (1 - load)) * (1 + 2 * gap + (1 - gap) / (1 + load))
    phi1 = 1.5 * fixed_ns / (1 - load) + per_row_ns / 2 * (load + 2) / (1 - load * load)
    return ClosedForm(phi0, phi1)


def affine_above(table: LatencyTable, rows_max: int) -> tuple[float, float]:
    """(fixed_ns, per_row_ns) of a line that is nowhere below S(b), 1 <= b <= rows_max, with the slope of its ends."""
    whole = whole_ns(table, rows_max)
    slope = (whole[-1] - whole[0]) / (rows_max - 1) if rows_max > 1 else 0.0
    return max(time_ns - slope * rows for rows, time_ns in enumerate(whole, start=1)), slope


def whole_ns(table: LatencyTable, rows_max: int) -> list[int]:
    """S(1) ... S(rows_max). Raises `InvalidInput` for a maximum below 1."""
    if rows_max < 1:
        raise InvalidInput(f"the largest batch must be at least 1, got {rows_max}")
    dense = table.dense_ns(rows_max)
    return [sum(times[rows] for times in dense) for rows in range(1, rows_max + 1)]


def graph_capacity_rps(table: LatencyTable, rows_max: int) -> float:
    """Requests per second of the best batch size: the most that graph batching sustains."""
    return max(rows * NS_PER_S / time_ns for rows, time_ns in enumerate(whole_ns(table, rows_max), start=1))


def node_capacity_rps(table: LatencyTable, rows_max: int) -> float:
    """Requests per second if every node ran at its own best batch size: the most that any policy sustains."""
    return NS_PER_S / row_cost_ns(table, rows_max)


def row_cost_ns(table: LatencyTable, rows_max: int) -> float:
    """c of the module's text: machine time that a row costs at least."""
    dense = table.dense_ns(rows_max)
    return sum(min(times[rows] / rows for rows in range(1, rows_max + 1)) for times in dense)


def shortest_ns(table: LatencyTable, rows_max: int) -> int:
    """s1 of the module's text: the shortest possible latency."""
    return sum(min(times[1:]) for times in table.dense_ns(rows_max))


def total_latency_bound_ns(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int]) -> float:
    """A lower bound of the summed latency of a trace, for any policy at node level that serves all of it."""
    _check_order(arrivals_ns)
    cost_ns, shortest = row_cost_ns(table, rows_max), shortest_ns(table, rows_max)
    done_ns, total = -_NEVER, 0.0
    for at_ns in arrivals_ns:
        done_ns = max(done_ns, at_ns) + cost_ns
        total += max(shortest, done_ns - at_ns)
    return total


def goodput_bound(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int], sla_ns: int) -> int:
    """An upper bound of the requests of a trace that any policy at node level finishes within the SLA target.

    The relaxation is a machine with jobs of length c: taking them in order, and dropping one exactly when it cannot
    finish in time, is optimal there.
    """
    _check_order(arrivals_ns)
    if sla_ns < shortest_ns(table, rows_max):
        return 0
    cost_ns = row_cost_ns(table, rows_max)
    done_ns, good = -_NEVER, 0
    for at_ns in arrivals_ns:
        end_ns = max(done_ns, at_ns) + cost_ns
        if end_ns <= at_ns + sla_ns + 1e-6:
            done_ns, good = end_ns, good + 1
    return good


def best_graph_goodput(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int], sla_ns: int) -> int:
    """The most requests a clairvoyant graph-level schedule finishes within the SLA target; the others are dropped.

    f[i][k], the earliest end over the first i arrivals with k of them on time, from f[i-1][k] (drop the i-th) and
    f[i-b][k-b] (it ends a batch of b). Time O(n^2 rows_max), memory O(n rows_max).
    """
    _check_order(arrivals_ns)
    whole = whole_ns(table, rows_max)
    count = len(arrivals_ns)
    recent: list[NDArray[np.float64]] = [np.full(count + 1, np.inf)]
    recent[0][0] = -np.inf
    for i, at_ns in enumerate(arrivals_ns, start=1):
        best = recent[-1].copy()
        for rows in range(1, min(i, rows_max) + 1):
            end = np.maximum(recent[-rows][: count + 1 - rows], at_ns) + whole[rows - 1]
            end[end > arrivals_ns[i - rows] + sla_ns] = np.inf
            np.minimum(best[rows:], end, out=best[rows:])
        recent.append(best)
        del recent[:-rows_max]
    return int(np.flatnonzero(np.isfinite(recent[-1]) | (recent[-1] == -np.inf))[-1])


def best_graph_total_latency_ns(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int]) -> int:
    """The smallest summed latency of a clairvoyant graph-level schedule that serves the whole trace.

    Pareto sets of (end, sum of completion times) over the first i arrivals; exact, and fast while the sets are small
    (hundreds of arrivals at any load below capacity).
    """
    _check_order(arrivals_ns)
    whole = whole_ns(table, rows_max)
    fronts: list[list[Label]] = [[(0, 0)]]
    for i, at_ns in enumerate(arrivals_ns, start=1):
        labels: list[Label] = []
        for rows in range(1, min(i, rows_max) + 1):
            for end_ns, total in fronts[-rows]:
                ends_ns = max(end_ns, at_ns) + whole[rows - 1]
                labels.append((ends_ns, total + rows * ends_ns))
        fronts.append(_pareto(labels))
        del fronts[:-rows_max]
    return min(total for _, total in fronts[-1]) - sum(arrivals_ns)


def best_node_total_latency_ns(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int]) -> int:
    """The smallest summed latency of a clairvoyant node-level schedule that serves the whole trace.

    Pareto sets of (end, sum of completion times) per number of rows that stand at each node: O(n^nodes) states, so for
    tiny traces and graphs only (8 requests and 4 nodes take milliseconds, 30 and 4 minutes).
    """
    _check_order(arrivals_ns)
    dense = table.dense_ns(rows_max)
    nodes, count = len(dense), len(arrivals_ns)
    layer: dict[tuple[int, ...], list[Label]] = {(count,) + (0,) * nodes: [(0, 0)]}
    final = (0,) * nodes + (count,)
    best = _NEVER
    # Every move takes some rows one node on; states are visited by the number of node passes made so far.
    by_passes: list[dict[tuple[int, ...], list[Label]]] = [layer, *({} for _ in range(nodes * count))]
    for passes, states in enumerate(by_passes):
        for state, labels in states.items():
            front = _pareto(labels)
            if state == final:
                best = min(total for _, total in front)
                continue
            for node, rows, after in _moves(state, rows_max):
                begun = count - state[0]
                ready_ns = arrivals_ns[begun + rows - 1] if node == 0 else 0
                last = rows if node == nodes - 1 else 0
                moved = by_passes[passes + rows].setdefault(after, [])
                for end_ns, total in front:
                    ends_ns = max(end_ns, ready_ns) + dense[node][rows]
                    moved.append((ends_ns, total + last * ends_ns))
        states.clear()
    return int(best) - sum(arrivals_ns)


def _moves(state: tuple[int, ...], rows_max: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(node, rows, state after) for every choice of some rows that stand at one node."""
    for node, standing in enumerate(state[:-1]):
        for rows in range(1, min(standing, rows_max) + 1):
            after = list(state)
            after[node] -= rows
            after[node + 1] += rows
            yield node, rows, tuple(after)


def _pareto(labels: list[Label]) -> list[Label]:
    """The labels that no other one beats in both parts."""
    front: list[Label] = []
    for label in sorted(labels):
        if not front or label[1] < front[-1][1]:
            front.append(label)
    return front


def _check_order(arrivals_ns: Sequence[int]) -> None:
    for position, (earlier, later) in enumerate(pairwise(arrivals_ns), start=2):
        if later < earlier:
            raise InvalidInput(f"arrival {position} is out of order: {later} ns after {earlier} ns")
