"""Rows of the paper's evaluation, and ratios taken from them.

Owns: `Results`, `best`.
Must not know: the paper's statements.

Every ratio is taken run by run on the same arrivals (same seed), then the median over the seeds. The best window is
chosen anew at every rate, with hindsight, among the windows that ran: stricter to a policy than the paper, which does
not say how it chose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Row = Mapping[str, Any]


def best(values: Sequence[float]) -> float:
    """The smallest: the best window's latency or violations."""
    return min(values)


@dataclass(frozen=True)
class Results:
    """Rows, and which policy stands for the paper's and which for ours."""

    rows: Sequence[Row]
    windowed: tuple[str, ...]
    policies: tuple[str, ...]

    @cached_property
    def _index(self) -> dict[tuple[str, str | None], list[Row]]:
        """Rows by study, and by study and policy."""
        index: dict[tuple[str, str | None], list[Row]] = {}
        for row in self.rows:
            for policy in (None, row["policy"]):
                index.setdefault((row["study"], policy), []).append(row)
        return index

    def of(self, study: str, policy: str | None = None, **where: Any) -> list[Row]:
        """Rows of a study with these values."""
        rows = self._index.get((study, policy), [])
        return [row for row in rows if all(row.get(key) == value for key, value in where.items())]

    def points(self, study: str, **where: Any) -> list[tuple[float, int]]:
        """(rate, seed) of a study."""
        return sorted({(row["rate_rps"], row["seed"]) for row in self.of(study, **where)})

    def value(self, metric: str, policy: str, point: tuple[float, int], study: str, **where: Any) -> float:
        """One run's figure."""
        (row,) = self.of(study, policy=policy, rate_rps=point[0], seed=point[1], **where)
        return float(row[metric])

    def ratio(
        self,
        study: str,
        policy: str,
        metric: str = "mean_ms",
        pool: Sequence[str] | None = None,
        choose: Callable[[Sequence[float]], float] = best,
        **where: Any,
    ) -> dict[float, float]:
        """Per rate, the chosen figure of the pool over the policy's."""
        found: dict[float, list[float]] = {}
        for point in self.points(study, policy=policy, **where):
            others = [self.value(metric, other, point, study, **where) for other in pool or self.windowed]
            mine = self.value(metric, policy, point, study, **where)
            found.setdefault(point[0], []).append(choose(others) / mine if mine > 0 else float("nan"))
        return {rate: statistics.median(values) for rate, values in found.items()}

    def limit(self, bound: str, model: str) -> dict[float, float]:
        """Per rate, the best window's mean latency over a bound of the same arrivals: no policy's ratio is higher.

        Rates at which the bound was not computed are left out.
        """
        found: dict[float, list[float]] = {}
        for row in self.of("fig12_13", policy="bounds", model=model):
            if bound in row:
                point = (row["rate_rps"], row["seed"])
                windows = [
                    self.value("mean_all_ms", window, point, "fig12_13", model=model) for window in self.windowed
                ]
                found.setdefault(point[0], []).append(best(windows) / row[bound])
        return {rate: statistics.median(values) for rate, values in found.items()}

    def paired(self, metric: str, policy: str, bound: str, study: str, **where: Any) -> float:
        """Median over the runs of a policy's figure over a bound of the same arrivals; 1 where both are nothing."""
        ratios = []
        for point in self.points(study, policy=policy, **where):
            mine = self.value(metric, policy, point, study, **where)
            most = self.value(bound, "bounds", point, study, **where)
            ratios.append(mine / most if most else 1.0)
        return statistics.median(ratios)

    def mean(self, metric: str, study: str, **where: Any) -> float:
        """Mean of a figure over the rows."""
        return statistics.fmean(row[metric] for row in self.of(study, **where))

    @property
    def ours(self) -> str:
        """The policy that is held to the targets: the default one, or the paper's where it does not exist."""
        return "lookahead" if "lookahead" in self.policies else "lazy"
