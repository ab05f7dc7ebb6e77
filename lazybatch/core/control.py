"""Solved graph-level control: what the default policy consults, as data.

Owns: `Control`, the answer of a small Markov decision problem per model and arrival rate: how many of q waiting rows
to start when the processor is free, and what it is worth to leave q rows behind.
Must not know: how it was solved (`lazybatch.solver`, NumPy), queues, stacks.

The problem: rows arrive at a Poisson rate; whenever the processor is free, start b of the q waiting (taking S(b)) or
wait for one more. The cost is the rows in the system, integrated over time. For each rate the solution is a gain g
(mean rows in the system), a relative value h(q), and a best action b(q). All times are nanoseconds; values are
row-nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

DOUBT = 1.15
"""A rate may be so many times lower than mean latencies make it seem before they are believed more."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The control at one arrival rate.

    rate_per_ns: rows per nanosecond. gain_rows: mean rows in the system. value: h(q) for q = 0, 1, ...
    action: rows to start with q waiting (0: wait for one more). horizon_ns: times at which `ahead` is tabulated.
    ahead: ahead[i][q] = E[h(q + arrivals during horizon_ns[i])]. mean_latency_ns: mean time of a row in the system
    (Little's law).
    """

    rate_per_ns: float
    gain_rows: float
    value: tuple[float, ...]
    action: tuple[int, ...]
    horizon_ns: tuple[int, ...]
    ahead: tuple[tuple[float, ...], ...]
    mean_latency_ns: float = field(init=False, repr=False)
    _inner_ns: tuple[int, ...] = field(init=False, repr=False)
    _pieces: tuple[tuple[int, int, tuple[float, ...], tuple[float, ...]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        grid_ns = self.horizon_ns
        pieces = [
            (begin_ns, end_ns - begin_ns, begin, end)
            for (begin_ns, end_ns), (begin, end) in zip(pairwise(grid_ns), pairwise(self.ahead), strict=True)
        ]
        object.__setattr__(self, "mean_latency_ns", self.gain_rows / self.rate_per_ns)
        object.__setattr__(self, "_inner_ns", grid_ns[1:-1])
        object.__setattr__(self, "_pieces", tuple(pieces))

    def after(self, waiting: int, time_ns: float) -> float:
        """E[h(waiting + arrivals during time_ns)], interpolated in time; beyond the tables along their last slope."""
        begin_ns, piece_ns, begin, end = self._pieces[bisect_right(self._inner_ns, time_ns)]
        if waiting < len(begin):
            low, high = begin[waiting], end[waiting]
        else:
            low, high = _beyond(begin, waiting), _beyond(end, waiting)
        return low + (high - low) * ((time_ns - begin_ns) / piece_ns)

    def start(self, waiting: int) -> int:
        """Rows to start with this many waiting and a free processor; 0 means wait for one more."""
        action = self.action
        return action[waiting] if waiting < len(action) else action[-1]


def _beyond(values: Sequence[float], index: int) -> float:
    """Behind the last of the values, along their last slope."""
    last = len(values) - 1
    return values[last] + (values[last] - values[last - 1]) * (index - last)


@dataclass(frozen=True, slots=True)
class Control:
    """Solutions over a grid of rates, ascending, for one model.

    capacity_per_ns: rows per nanosecond at the best batch size, where the load is 1.
    """

    model: str
    rows_max: int
    capacity_per_ns: float
    solutions: tuple[Solution, ...]
    rates_per_ns: tuple[float, ...] = field(init=False, repr=False)
    _middles: tuple[float, ...] = field(init=False, repr=False)
    _latencies_ns: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rates_per_ns = tuple(solution.rate_per_ns for solution in self.solutions)
        object.__setattr__(self, "rates_per_ns", rates_per_ns)
        object.__setattr__(self, "_middles", tuple(low * high for low, high in pairwise(rates_per_ns)))
        # Where rows wait for company, a higher rate can mean less latency: what a lower rate exceeds is no evidence.
        latencies_ns = tuple(accumulate((solution.mean_latency_ns for solution in self.solutions), max))
        object.__setattr__(self, "_latencies_ns", latencies_ns)

    def at(self, rate_per_ns: float) -> Solution:
        """The solution of the nearest rate of the grid (by ratio)."""
        return self.solutions[bisect_left(self._middles, rate_per_ns * rate_per_ns)]

    def agreeing(self, solution: Solution, latency_ns: float) -> Solution:
        """What is left of an estimated rate once it is known how long rows take on average.

        Returns the solution nearest to the given one whose rate is not above the one at which they would take so long,
        and not more than `DOUBT` times below it.
        """
        rates_per_ns, latencies_ns = self.rates_per_ns, self._latencies_ns
        i = bisect_right(latencies_ns, latency_ns)
        likely_per_ns = rates_per_ns[min(i, len(rates_per_ns) - 1)]
        if 0 < i < len(rates_per_ns):
            share = (latency_ns - latencies_ns[i - 1]) / (latencies_ns[i] - latencies_ns[i - 1])
            likely_per_ns -= (likely_per_ns - rates_per_ns[i - 1]) * (1 - share)
        if solution.rate_per_ns > likely_per_ns:
            return self.at(likely_per_ns)
        return solution if solution.rate_per_ns * DOUBT >= likely_per_ns else self.at(likely_per_ns / DOUBT)
