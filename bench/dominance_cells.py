"""From the runs of `bench/dominance.py` to who wins where.

Owns: `Cell`, and taking cells out of rows; the worst of them, tables and figures.
Must not know: how rows were made, drawing.

A cell is a profile, a load, a kind of arrivals and an SLA target. Ours is compared with the best other policy of that
cell, chosen with hindsight for each of three measures. Mean latency: the median over the seeds of the ratio on the same
arrivals, and of these the worst over the other policies. 99th percentile: ratio to the smallest. Violations: difference
to the smallest, in percentage points.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.common import Report
from bench.dominance_runs import MISJUDGED, OURS

Row = dict[str, Any]
MEAN_LIMIT, BURSTY_LIMIT, P99_LIMIT, VIOLATION_LIMIT = 1.01, 1.03, 1.10, 0.1
GRAPHB0 = "graph:0"
MEASURES = {"mean": "mean latency", "p99": "99th percentile", "violations": "violations (points)"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against the best other: a ratio (for violations a difference in points), and which policy that was."""

    value: float
    best: str


@dataclass(slots=True)
class Cell:
    """The rows of one cell, by policy."""

    profile: str
    load: float
    arrivals: str
    target: str
    rows: dict[str, Row] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.profile} at {self.load:g}, {self.arrivals}, {self.target}"

    @property
    def complete(self) -> bool:
        """Whether ours and another one ran."""
        return OURS in self.rows and bool(self.others)

    @property
    def others(self) -> list[str]:
        """Every policy but ours."""
        return [name for name in self.rows if name != OURS and name not in MISJUDGED]

    def mean_ratio(self, other: str, ours: str = OURS) -> float:
        """Median over the seeds of our mean latency over another policy's."""
        mine, theirs = self.rows[ours]["seed_means_ms"], self.rows[other]["seed_means_ms"]
        return float(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)))

    def mean(self, ours: str = OURS) -> Comparison:
        """Mean latency against the best other's."""
        return max((Comparison(self.mean_ratio(other, ours), other) for other in self.others), key=_value)

    def p99(self) -> Comparison:
        """99th percentile against the best other's."""
        mine = self.rows[OURS]["p99_ms"]
        return max((Comparison(mine / self.rows[other]["p99_ms"], other) for other in self.others), key=_value)

    def violations(self) -> Comparison:
        """Violations less the best other's, in percentage points."""
        mine = self.rows[OURS]["violations"]
        return max(
            (Comparison(100 * (mine - self.rows[other]["violations"]), other) for other in self.others), key=_value
        )

    def compared(self, measure: str) -> Comparison:
        """One of `MEASURES`."""
        if measure == "mean":
            return self.mean()
        return self.p99() if measure == "p99" else self.violations()


def _value(comparison: Comparison) -> float:
    return comparison.value


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """The cells in which ours and another policy ran, in the order of their rows."""
    found: dict[tuple[str, float, str, str], Cell] = {}
    for row in rows:
        key = (row["profile"], row["load"], row["arrivals"], row["target"])
        found.setdefault(key, Cell(*key)).rows[row["policy"]] = row
    return [cell for cell in found.values() if cell.complete]


def worst(cells: Sequence[Cell], measure: str) -> tuple[Comparison, Cell]:
    """The cell where ours compares worst."""
    return max(((cell.compared(measure), cell) for cell in cells), key=lambda found: found[0].value)


def add_figures(report: Report, cells: Sequence[Cell]) -> None:
    """What dominance asks for; a figure whose runs were not chosen has no value."""
    for arrivals, limit in (("poisson", MEAN_LIMIT), ("bursty", BURSTY_LIMIT)):
        mine = [cell for cell in cells if cell.arrivals == arrivals]
        report.at_most(f"mean_over_best/{arrivals}", _worst(mine, "mean"), limit)
        report.at_most(f"p99_over_best/{arrivals}", _worst(mine, "p99"), P99_LIMIT)
        report.at_most(f"violations_above_best/{arrivals}", _worst(mine, "violations"), VIOLATION_LIMIT, " points")
    for ours, name in MISJUDGED.items():
        ratios = [cell.mean(ours).value for cell in cells if ours in cell.rows]
        report.at_most(f"mean_over_best/{name}", max(ratios, default=None), BURSTY_LIMIT)
    for profile in ("gpu", "launch"):
        ratios = [
            cell.mean_ratio(GRAPHB0)
            for cell in cells
            if (cell.profile, cell.arrivals) == (profile, "poisson")
            and 0.05 <= cell.load <= 0.4
            and GRAPHB0 in cell.rows
        ]
        report.at_most(f"mean_over_graphb0/{profile}/best_load", min(ratios, default=None), 0.92)
    ratios = [cell.mean_ratio("serial") for cell in cells if cell.profile == "nogain" and "serial" in cell.rows]
    value = max(ratios, default=None)
    report.figure("mean_over_serial/nogain", value, "<= 1.00", None if value is None else round(value, 2) <= 1.0)
    report.at_most("policy_failures", sum(row["policy_failures"] for cell in cells for row in cell.rows.values()), 0)


def _worst(cells: Sequence[Cell], measure: str) -> float | None:
    return worst(cells, measure)[0].value if cells else None


def markdown(cells: Sequence[Cell], command: str, notes: Sequence[str]) -> str:
    """The summary: per profile the worst cells, and how often ours is better than all others."""
    lines = ["# The default policy against the best of all others, simulated", "", f"Made by `{command}`.", ""]
    lines += [f"* {note}" for note in notes]
    for measure, title in MEASURES.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *_table(cells, measure)]
    return "\n".join(lines) + "\n"


def _table(cells: Sequence[Cell], measure: str) -> list[str]:
    compared = "Difference" if measure == "violations" else "Ratio"
    lines = [
        f"| Profile | Cells | Worst {compared.lower()} | Where | Best other there | Median | Best | Better than all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    even = 0.0 if measure == "violations" else 1.0
    groups = [
        (name, [cell for cell in cells if cell.profile == name]) for name in dict.fromkeys(c.profile for c in cells)
    ]
    for name, mine in [*groups, ("all", list(cells))]:
        found, where = worst(mine, measure)
        values = [cell.compared(measure).value for cell in mine]
        better = sum(value < even for value in values)
        lines.append(
            f"| {name} | {len(mine)} | {found.value:.3f} | {where.load:g}, {where.arrivals}, {where.target} "
            f"| {found.best} | {statistics.median(values):.3f} | {min(values):.3f} | {100 * better / len(mine):.0f} % |"
        )
    return lines
