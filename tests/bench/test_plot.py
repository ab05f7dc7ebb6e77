"""Plots are drawn from the scripts' JSON, and a file that is something else is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.plot import main

WHERE = {"machine": {"cpu": "some", "cores": 2}, "versions": {"onnxruntime": "1"}}


def _write(path: Path, script: str, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"rows": rows, "provenance": {"script": script, **WHERE}, "figures": {}}))
    return path


def test_both_kinds_are_drawn(tmp_path: Path) -> None:
    """Each file becomes a picture of its own name; percentiles of nothing (null) are gaps, not errors."""
    chain = [{"what": "chain", "model": "m", "batch": b, "chain_over_whole": 1.02} for b in (1, 8)]
    point = {"model": "m", "policy": "graph", "max_delay_ms": 0.0, "p50_ms": 1.0, "p99_ms": 2.0, "rows_per_s": 3.0}
    loads = [{**point, "load": 0.3}, {**point, "load": 0.9, "p50_ms": None, "p99_ms": None}]
    files = [
        _write(tmp_path / "overhead.json", "bench/overhead.py", chain),
        _write(tmp_path / "load.json", "bench/load.py", loads),
    ]
    assert main([*map(str, files), "-o", str(tmp_path / "plots")]) == 0
    for name in ("overhead.png", "load.png"):
        assert (tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "{}", '{"provenance": {"script": "other"}}'])
def test_other_files_are_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What no script wrote ends with status 2 and the file's name."""
    path = tmp_path / "strange.json"
    path.write_text(text)
    assert main([str(path), "-o", str(tmp_path)]) == 2
    assert "strange.json" in capsys.readouterr().err
