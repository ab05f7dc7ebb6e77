"""Policies side by side, live, on a machine whose pace changes: whose turn it is, and ratios.

Owns: the order of runs; runs side by side, ratios of two of them, their median, and how sure it is.
Must not know: which policies are compared, what is wanted of them, how the pace is seen (`pace`).

A shared machine gets slower and faster within seconds, by more than policies differ. So runs are short and many, and
what is compared is two runs of one seed, one soon after the other: half of such ratios are too high and half too low,
whatever the machine did.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Policies at one load. runs: by policy, a row per seed, in the order of seeds."""

    runs: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)

    def median(self, policy: str, measure: str) -> float:
        """Of the seeds' values."""
        return float(statistics.median(row[measure] for row in self.runs[policy]))

    def pairs(self, one: str, other: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The runs of two policies that have a seed in common."""
        theirs = {row["seed"]: row for row in self.runs[other]}
        return [(row, theirs[row["seed"]]) for row in self.runs[one] if row["seed"] in theirs]

    def ratios(self, over: str, under: str, measure: str = "mean_ms") -> list[float]:
        """One policy's over another's, seed by seed."""
        return [one[measure] / other[measure] for one, other in self.pairs(over, under)]

    def ratio(self, over: str, under: str, measure: str = "mean_ms") -> Middle:
        """Their median."""
        return middle(self.ratios(over, under, measure))

    def ratios_at_one_pace(self, over: str, under: str) -> list[float]:
        """The same of the means, less what the change of pace between two runs did; empty where it was not
        simulated."""
        pairs = self.pairs(over, under)
        if any(owner not in row.get(AT_PACE, {}) for pair in pairs for row in pair for owner in (over, under)):
            return []
        return [at_one_pace(one, other) for one, other in pairs]

    def at_one_pace(self, over: str, under: str) -> Middle | None:
        """Their median; None likewise."""
        found = self.ratios_at_one_pace(over, under)
        return middle(found) if found else None
