"""Co-location live: both ways serve the same calls, and the comparison is what the calls say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import colocation
from bench.common import Report, run_script
from tests.onnx_models import save
from tests.partition.parts import text_model


def _run(way: str, seed: int, stream: str, latencies_ms: list[float], rate: float = 10.0) -> dict[str, Any]:
    return {
        "what": "run",
        "way": way,
        "seed": seed,
        "stream": stream,
        "failed": 0,
        "answered_rps": rate,
        "p99_ms": max(latencies_ms),
        "latencies_ms": latencies_ms,
    }


def test_the_comparison_pools_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """p99 over all seeds together, the gain seed by seed beside it, throughput as a ratio of both ways."""
    report = Report("test")
    for seed, slow in ((1, 500.0), (2, 300.0)):
        report.rows += [_run("whole", seed, "short", [1.0, slow]), _run("whole", seed, "long", [200.0])]
        report.rows += [_run("lookahead", seed, "short", [2.0, 50.0]), _run("lookahead", seed, "long", [240.0], 9.8)]
    colocation.judge(report, ["lookahead"])
    row = report.rows[-1]
    assert row["short_p99_gain"] == pytest.approx(10.0)
    assert row["short_p99_gain_by_seed"] == [10.0, 6.0]
    assert row["long_mean_ratio"] == pytest.approx(1.2)
    assert report.figures["short_p99_times_lower/lookahead"]["holds"]
    assert report.figures["long_throughput_off/lookahead"]["value"] == pytest.approx(0.02)
    colocation.show(report)
    assert "short p99 10.0 times lower (by seed 10.0, 6.0)" in capsys.readouterr().out


def test_the_script(tmp_path: Path) -> None:
    """Two models, split and whole, on the same arrivals: all calls are answered on both sides."""
    files = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in files:
        save(text_model("g (float[N,64] x) => (float[N,64] y) { a = Tanh(x) y = Neg(a) }"), path)
    file = tmp_path / "colocation.json"
    arguments = ["--long", str(files[0]), "--short", str(files[1]), "--seconds", "0.2", "--seeds", "1", "--quick"]
    arguments += ["--load-long", "0.005", "--load-short", "0.01", "--json", str(file)]
    colocation.main(colocation.options().parse_args(arguments))
    document = json.loads(file.read_text())
    models = {row["stream"]: row for row in document["rows"] if row["what"] == "model"}
    assert set(models) == {"long", "short"}
    runs = [row for row in document["rows"] if row["what"] == "run"]
    assert {(row["way"], row["stream"]) for row in runs} == {
        (way, stream) for way in ("whole", "lookahead") for stream in ("short", "long")
    }
    for row in runs:
        assert row["calls"] == next(other["calls"] for other in runs if other["stream"] == row["stream"])
    assert document["figures"]["failed_calls"] == {"value": 0, "target": "0", "holds": True}
    assert "short_p99_times_lower/lookahead" in document["figures"]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--long", "nothing"], "model 'nothing'"),
        (["--load-long", "0.7", "--load-short", "0.3"], "too much for one processor"),
        (["--seeds", "0"], "--seeds"),
        (["--long-batch", "0"], "--long-batch"),
        (["--sla-short-x", "-1"], "--sla-short-x"),
    ],
)
def test_bad_input(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and status 2, before a model is loaded."""
    assert run_script(colocation.main, colocation.options().parse_args(arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert culprit in error
    assert len(error.splitlines()) == 1
