"""One line of the table "paper said / we get / why they differ", and the averages its figures are taken with.

Owns: `Claim`, averages over rates, the words for several figures.
Must not know: any particular statement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.paper_results import Results

RATE_HIGHEST = 1000
"""Averages of latency end here: the paper calls 500 queries/s and more a high load, and tells of no overload."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table."""

    what: str
    paper: str
    ours: str
    why: str


def average(ratios: Mapping[float, float]) -> float:
    """Mean over all rates."""
    return statistics.fmean(ratios.values())


def usual(ratios: Mapping[float, float]) -> float:
    """Mean without the rates of overload."""
    return statistics.fmean(ratio for rate, ratio in ratios.items() if rate <= RATE_HIGHEST)


def both(results: Results, line: Callable[[str], str]) -> str:
    """The paper's policy and ours, one after the other."""
    return "; ".join(f"{policy}: {line(policy)}" for policy in dict.fromkeys(("lazy", results.ours)))


def triple(values: Iterable[float], form: str = ".2f") -> str:
    """Figures with strokes between them."""
    return " / ".join(f"{value:{form}}" for value in values)
