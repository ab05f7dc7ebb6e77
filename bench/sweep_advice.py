"""What a sweep means: the highest rate that each policy sustains for a target, and words for it.

Owns: `Advice`, finding it in rows, narrowing it down by further runs, tables and sentences.
Must not know: how a run is made.

A rate is sustained when it, and every lower rate that was run, meets the target for the wanted share of the requests of
all seeds together. Refused and failed requests do not meet it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.variants import Variant

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Advice:
    """A policy's highest sustained rate for one target.

    rate_rps: None where no rate that was run meets it. fails_rps: the lowest rate above it that does not; None where
    even the highest does, and ``rate_rps`` is only what was tried.
    """

    sla_ms: float
    policy: str
    rate_rps: float | None
    fails_rps: float | None

    @property
    def shown(self) -> str:
        """For tables: "310", ">=310" or "-"."""
        if self.rate_rps is None:
            return "-"
        return f"{'>=' if self.fails_rps is None else ''}{_rate(self.rate_rps)}"


def _rate(rate_rps: float) -> str:
    return f"{rate_rps:.0f}" if rate_rps >= 100 else f"{rate_rps:.1f}" if rate_rps >= 10 else f"{rate_rps:.2f}"


def share_met(rows: Iterable[Row]) -> float:
    """Share of the judged requests that met their target, over all rows together."""
    kept = list(rows)
    return float(sum(row["met"] for row in kept) / sum(row["judged"] for row in kept))


def advice(rows: Sequence[Row], sla_ms: float, policy: str, wanted: float) -> Advice:
    """What rows say of one policy and target; wanted: share of the requests, for example 0.99."""
    by_rate: dict[float, list[Row]] = {}
    for row in rows:
        if row["policy"] == policy and row["sla_ms"] == sla_ms:
            by_rate.setdefault(row["rate_rps"], []).append(row)
    good: float | None = None
    for rate_rps in sorted(by_rate):
        if share_met(by_rate[rate_rps]) < wanted:
            return Advice(sla_ms, policy, good, rate_rps)
        good = rate_rps
    return Advice(sla_ms, policy, good, None)


def narrow(found: Advice, probe: Callable[[float], list[Row]], wanted: float, steps: int) -> tuple[Advice, list[Row]]:
    """Halve the gap between the sustained rate and the failing one ``steps`` times; also the rows that came of it."""
    made: list[Row] = []
    low, high = found.rate_rps, found.fails_rps
    for _ in range(steps if high is not None else 0):
        assert high is not None, "there is a rate that fails"
        middle = ((low or 0.0) + high) / 2
        rows = probe(middle)
        made += rows
        if share_met(rows) >= wanted:
            low = middle
        else:
            high = middle
    return Advice(found.sla_ms, found.policy, low, high), made


def sentences(found: Sequence[Advice], variants: Sequence[Variant], wanted: float) -> list[str]:
    """One line per target: who sustains most, lookahead, and the best setting of graph batching."""
    graphs = {one.title for one in variants if one.is_graph}
    lines = []
    for sla_ms in dict.fromkeys(one.sla_ms for one in found):
        mine = [one for one in found if one.sla_ms == sla_ms and one.rate_rps is not None]
        if not mine:
            lines.append(f"{sla_ms:g} ms: no policy meets it for {wanted:.1%} of the requests at any rate that was run")
            continue
        best = max(mine, key=lambda one: (one.rate_rps or 0.0, one.policy == "lookahead"))
        words = [f"{best.policy} sustains {best.shown}/s"]
        graph = max((one for one in mine if one.policy in graphs), key=lambda one: one.rate_rps or 0.0, default=None)
        if graph is not None and best.policy not in graphs:
            words.append(f"best graph setting ({graph.policy}) {graph.shown}/s")
        words += [f"{one.policy} {one.shown}/s" for one in mine if one.policy == "lookahead" and one is not best]
        lines.append(f"{sla_ms:g} ms: " + ", ".join(words))
    return lines


def table(found: Sequence[Advice], titles: Sequence[str]) -> list[str]:
    """Targets down, policies across; requests per second."""
    width = max(9, *(len(title) + 2 for title in titles))
    lines = [f"{'SLA ms':>10}" + "".join(f"{title:>{width}}" for title in titles)]
    by_cell = {(one.sla_ms, one.policy): one for one in found}
    for sla_ms in dict.fromkeys(one.sla_ms for one in found):
        cells = "".join(f"{by_cell[sla_ms, title].shown:>{width}}" for title in titles)
        lines.append(f"{sla_ms:>10.4g}" + cells)
    return lines


def as_json(found: Iterable[Advice]) -> list[Mapping[str, Any]]:
    """One object per policy and target."""
    return [asdict(one) for one in found]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All rows as a spreadsheet reads them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
