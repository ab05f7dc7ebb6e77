"""Control of a loop: when a running loop is to be interrupted for those who wait, as data.

Owns: `LoopControl`, the answer of a Markov decision problem per arrival rate: with n rows running in the loop, how many
must wait before they are let in; `rule_of_thumb`, one that needs no solving.
Must not know: how it is solved (`lazybatch.loop_solver`, NumPy), queues, stacks.

Joining at every chance stops all running rows for each newcomer's way to the loop; waiting lets the newcomers wait and
the loop run emptier than it could. The best rule is a threshold on those who wait that grows with those who run.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import sqrt

from lazybatch.core.loop_times import LoopTimes

NEVER = 1 << 30
"""A threshold that no queue reaches: with so many running nobody is let in."""
THUMB_LOADS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Loads that the rule of thumb tells apart."""


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


def rule_of_thumb(model: str, loop: str, times: LoopTimes) -> LoopControl:
    """What economic order quantities say: interrupting n rows costs n times what the way takes however few go it.

    While q rows gather, q^2 / 2 rate row-time passes; per row that costs least with q = sqrt(2 rate n E). Under load
    time is dearer than that, because everybody to come is held up, too: by one over the share of time that is spare.
    """
    before_ns, step_ns, trips = times
    rows_max = len(step_ns) - 1
    half = (rows_max + 1) // 2
    per_row_ns = min([trips * step_ns[n] / n for n in range(1, rows_max + 1)]) + before_ns[half] / half
    fixed_ns = before_ns[1] if rows_max == 1 else min(max(2 * before_ns[1] - before_ns[2], 0.0), before_ns[1])
    thresholds, means = [], []
    for load in THUMB_LOADS:
        dear_ns = 2 * load / per_row_ns * fixed_ns / (1 - load)
        thresholds.append(
            tuple([min(max(1, round(sqrt(dear_ns * running))), rows_max - running) for running in range(rows_max)])
        )
        means.append(before_ns[1] + trips * step_ns[1])
    rates = tuple([load / per_row_ns for load in THUMB_LOADS])
    return LoopControl(model, loop, rates, tuple(thresholds), tuple(means))
