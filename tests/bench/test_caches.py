"""The benchmark of caches at its smallest: all ways give the same words."""

from __future__ import annotations

from pathlib import Path

from bench.cached_decoder import Decoder
from bench.caches import POLICIES, measure_served, measure_steps
from bench.common import Report

DECODER = Decoder(layers=1, slots=16)


def test_steps_side_by_side(tmp_path: Path) -> None:
    """One row per quarter of the positions; carried caches take twice the memory; the words are the same."""
    report = Report("caches")
    path = DECODER.write(tmp_path / "decoder.onnx")
    measure_steps(report, DECODER, path, 4)
    assert [row["positions"] for row in report.rows[:-1]] == ["0-4", "4-8", "8-12", "12-16"]
    assert all(row["in_place_ms"] > 0 for row in report.rows[:-1])
    memory = report.rows[-1]
    assert memory["cache_bytes"] == 4 * DECODER.cache_bytes == 4 * 2 * 2 * 16 * 16 * 4
    assert memory["carried"] - memory["in_place"] >= 2 * memory["cache_bytes"]
    assert report.figures["same_words"]["holds"]


def test_rows_that_come_at_random(tmp_path: Path) -> None:
    """Every row of either policy has the words of the loop by hand."""
    report = Report("caches")
    measure_served(report, DECODER, DECODER.write(tmp_path / "decoder.onnx"), 4, 10, seed=1)
    assert [row["policy"] for row in report.rows] == list(POLICIES)
    assert all(row["equal"] == row["of"] == 10 for row in report.rows)
