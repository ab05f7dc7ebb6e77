"""Solved control of a loop: when a running loop is to be interrupted for those who wait, as data.

Owns: `LoopControl`, the answer of a Markov decision problem per arrival rate: with n rows running in the loop, how many
must wait before they are let in.
Must not know: how it was solved (`lazybatch.loop_solver`, NumPy), queues, stacks.

Joining at every chance stops all running rows for each newcomer's way to the loop; waiting lets the newcomers wait and
the loop run emptier than it could. The best rule is a threshold on those who wait that grows with those who run.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import sqrt

NEVER = 1 << 30
"""A threshold that no queue reaches: with so many running nobody is let in."""


@dataclass(frozen=True, slots=True)
class LoopControl:
    """Thresholds over a grid of arrival rates, ascending, for one loop of a model.

    rates_per_ns: rows per nanosecond. thresholds: per rate, by rows running (0 to the maximum - 1), how many must wait.
    mean_latency_ns: per rate, what the solution predicts for the model of which it is the optimum.
    """

    model: str
    loop: str
    rates_per_ns: tuple[float, ...]
    thresholds: tuple[tuple[int, ...], ...]
    mean_latency_ns: tuple[float, ...]

    def needed(self, running: int, rate_per_ns: float) -> int:
        """How many must wait before a loop with so many running rows is interrupted (nearest rate, by ratio)."""
        rates = self.rates_per_ns
        i = bisect_right(rates, rate_per_ns)
        if i and (i == len(rates) or rate_per_ns < sqrt(rates[i - 1] * rates[i])):
            i -= 1
        thresholds = self.thresholds[i]
        return thresholds[running] if running < len(thresholds) else NEVER
