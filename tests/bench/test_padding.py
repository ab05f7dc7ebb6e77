"""The benchmark of padding, at its smallest: what it simulates, what it counts, what it reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import padding


def test_waste_and_latency_are_what_the_lengths_say() -> None:
    """Exact lengths waste nothing; one length for all wastes its share; at no load a row takes its own run."""
    machine = padding.MACHINES[1]
    ways = {way.name: way for way in padding.WAYS}
    exact = padding.simulated(machine, ways["exact lengths, graph"], 1.0, 200, 1)
    assert exact["waste"] == 1.0
    assert exact["mean_ms"] == pytest.approx(3.0 + 0.004 * 24, rel=0.05)
    one = padding.simulated(machine, ways["one length, lookahead"], 1.0, 200, 1)
    lengths = padding.lengths_of(200, 1)
    assert one["waste"] == pytest.approx(128 * 200 / sum(lengths))


def test_rows_ride_in_the_simulated_batches() -> None:
    """Where launches cost most, riders are padded further, and all rows are served sooner."""
    machine = padding.MACHINES[1]
    ways = {way.name: way for way in padding.WAYS}
    rate = 0.3 * padding.capacity_rps(machine)
    apart, riding = (
        padding.simulated(machine, ways[name], rate, 1000, 1)
        for name in ("buckets, graph", "buckets and riders, graph")
    )
    assert riding["waste"] > apart["waste"]
    assert riding["mean_ms"] < apart["mean_ms"]


def test_the_report_has_rows_and_figures(tmp_path: Path) -> None:
    """Every way has a row in every cell; figures are judged where batches gain."""
    report = padding.Report("bench/padding.py")
    padding.sweep(report, padding.MACHINES[:2], 300, (1,))
    padding.show(report)
    report.finish(tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["rows"]) == 2 * len(padding.LOADS) * len(padding.WAYS)
    assert all(0 < row["mean_ms"] <= row["p99_ms"] and row["waste"] >= 1 for row in found["rows"])
    assert not any(name.startswith("mean_over_exact/arithmetic") for name in found["figures"])
    assert padding.options().parse_args(["--live"]).live
