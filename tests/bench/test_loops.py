"""The sweep over loops, at its smallest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import loops


def test_capacities_are_what_the_tables_allow() -> None:
    """Whole batches are bound by their longest row; leaving early lets a loop serve about half as many again."""
    model = loops.MODELS[0]
    graph, continuous = (loops.capacity_rps(model, policy, 1000) for policy in ("graph", "continuous"))
    whole_ms = 20 + 3 * 64 + 35 * (13 + 0.95 * 64)
    assert graph == pytest.approx(64e3 / whole_ms, rel=0.15)
    assert continuous > 1.4 * graph


def test_the_report_has_rows_and_figures(tmp_path: Path) -> None:
    """Every policy has a row in every cell, and every figure says whether it holds."""
    path = tmp_path / "loops.json"
    loops.main(loops.options().parse_args(["--quick", "--models", "decoder-gpu", "--json", str(path)]))
    found = json.loads(path.read_text())
    rows = [row for row in found["rows"] if row["what"] == "loop"]
    cells = sum(map(len, loops.LOADS.values()))
    assert len(rows) == cells * len(loops.POLICIES)
    assert all(0 < row["mean_ms"] <= row["p99_ms"] for row in rows)
    assert all(isinstance(figure["holds"], bool) for figure in found["figures"].values())
    assert found["provenance"]["settings"]["simulated"] is True
