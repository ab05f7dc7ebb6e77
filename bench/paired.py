"""Policies side by side, live, on a machine whose pace changes: whose turn it is, and ratios.

Owns: the order of runs; ratios of two of them, their median, and how sure it is.
Must not know: which policies are compared, what is wanted of them, how the pace is seen (`pace`).

A shared machine gets slower and faster within seconds, by more than policies differ. So runs are short and many, and
what is compared is two runs of one seed, one soon after the other: half of such ratios are too high and half too low,
whatever the machine did.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import comb
from typing import Any, NamedTuple, TypeVar

SURE = 0.9
"""How likely the interval around a median holds the true one."""

AT_PACE = "simulated_mean_ms_at_pace_of"
"""In a run's row: by policy, the mean as it would have been at the pace that the machine had in that policy's run."""
ONE_PACE = ", at one pace"
"""In a figure's name."""

T = TypeVar("T")


def in_turns(items: Sequence[T], number: int) -> list[T]:
    """The order of round ``number``: begins with another one each time, and runs backwards every second time, so that
    in the long run everyone is next to everyone else, as often before as behind."""
    shift = number // 2 % len(items)
    order = [*items[shift:], *items[:shift]]
    return order[::-1] if number % 2 else order


class Middle(NamedTuple):
    """A median, and between which values the true one lies with probability `SURE`, as far as so few values can say."""

    median: float
    low: float
    high: float

    def text(self) -> str:
        """For tables."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def middle(values: Sequence[float]) -> Middle:
    """Their median. The interval is the sign test's: how many of the values lie below the true median is a matter of
    tossing coins (Conover, Practical Nonparametric Statistics, 3.2); of fewer than five it is all there are."""
    ordered = sorted(values)
    count = len(ordered)
    outside = (1 - SURE) / 2 * 2**count
    cut, below = 0, 1
    while below + comb(count, cut + 1) <= outside:
        cut += 1
        below += comb(count, cut)
    return Middle(statistics.median(ordered), ordered[cut], ordered[count - 1 - cut])


def at_one_pace(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """A run's mean over another's, less what the machine's change of pace between the two did to it.

    The rows of two runs of the same arrivals. What the change did is what it does to simulated runs of the same two
    policies: each at the pace of its own run and at the other's (see `AT_PACE`).
    """
    mine, theirs = one["policy"], other["policy"]
    pace = statistics.geometric_mean(row[AT_PACE][mine] / row[AT_PACE][theirs] for row in (one, other))
    return float(one["mean_ms"] / other["mean_ms"] / pace)


def simulated_over_live(one: Mapping[str, Any]) -> float:
    """A run's mean, simulated at its own pace, over the real one."""
    return float(one[AT_PACE][one["policy"]] / one["mean_ms"])
