"""The sweep: its runs, what it concludes from them, and the script end to end, simulated and live."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import sla_sweep, sweep_advice, sweep_runs
from bench.common import run_script
from bench.sweep_options import check, compared, fill, options, rates, targets
from bench.sweep_runs import Run, Setting
from bench.variants import USUAL, USUAL_LOOPS, controls_for, variant, variants
from lazybatch import profiles
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput

TOY = LatencyTable.uniform("toy", 4, 4_000_000, 1_000_000, (1, 2, 4, 8))
SETTING = Setting(TOY, 8, 1000, 8e9 / 12e6)


def test_runs_of_one_point_stand_side_by_side() -> None:
    """A policy that is blind to the target runs once for all of them; the others once per target; the order rotates."""
    made = list(sweep_runs.runs(variants(["serial", "lazy"]), [(10.0, 50), (20.0, 50)], 2, [20.0, 40.0]))
    assert len(made) == 2 * 2 * 3
    first, second = made[:3], made[3:6]
    assert {(run.rate_rps, run.seed) for run in first} == {(10.0, 1)}
    assert {run.targets_ms for run in first} == {(20.0, 40.0), (20.0,), (40.0,)}
    orders = [[(run.variant.title, run.targets_ms) for run in three] for three in (first, second)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
@pytest.mark.parametrize("title", ["serial", "graph:5", "lazy", "lookahead"])
def test_a_simulated_run(title: str, kind: str) -> None:
    """Rows are reproducible, one per target; a looser target is met more often; the first tenth is not judged."""
    one = variant(title)
    setting = replace(SETTING, kind=kind, controls=controls_for([one], [SETTING.lane()]))
    run = Run(one, 100.0, 1, 200, (8.0, 60.0) if not one.sees_target else (60.0,))
    rows = sweep_runs.simulated(setting, run)
    assert rows == sweep_runs.simulated(setting, run)
    assert [row["sla_ms"] for row in rows] == list(run.targets_ms)
    for row in rows:
        assert row["judged"] == row["answered"] == 180
        assert row["violations"] == pytest.approx(1 - row["met"] / 180)
        assert row["mean_ms"] >= 5.0
        assert row["policy_failures"] == 0
    assert rows[0]["met"] <= rows[-1]["met"]


def test_refused_requests_miss_the_target() -> None:
    """A queue of one row in overload: what it turns away has no latency and counts as a violation."""
    setting = replace(SETTING, queue_capacity=1)
    (row,) = sweep_runs.simulated(setting, Run(variant("serial"), 400.0, 1, 200, (1000.0,)))
    assert row["refused"] > 20
    assert row["violations"] == pytest.approx(1 - row["answered"] / row["judged"])


def test_dropping_those_that_cannot_make_it() -> None:
    """Past saturation, dropping what is hopeless leaves more requests within their target than serving all late."""
    run = Run(variant("graph"), 1000.0, 1, 400, (30.0,))
    serve, drop = (sweep_runs.simulated(replace(SETTING, late=late), run)[0] for late in ("serve", "drop"))  # type: ignore[arg-type]
    assert serve["refused"] == 0 < drop["refused"]
    assert serve["met"] < drop["met"]


def _row(rate_rps: float, met: int, seed: int = 1, policy: str = "p") -> dict[str, Any]:
    return {"policy": policy, "sla_ms": 20.0, "rate_rps": rate_rps, "seed": seed, "judged": 100, "met": met}


def test_advice_needs_all_lower_rates() -> None:
    """Seeds count together; a rate above one that failed is not sustained; no rate met is None, none failed is open."""
    rows = [_row(10, 100), _row(10, 98, 2), _row(20, 97), _row(20, 100, 2), _row(30, 100), _row(30, 100, 2)]
    found = sweep_advice.advice(rows, 20.0, "p", 0.99)
    assert (found.rate_rps, found.fails_rps, found.shown) == (10, 20, "10.0")
    assert sweep_advice.advice(rows, 20.0, "p", 0.9).shown == ">=30.0"
    assert sweep_advice.advice(rows, 20.0, "p", 0.995).shown == "-"


def test_narrowing_finds_the_edge() -> None:
    """Each step halves the gap; a policy that meets nothing is tried below its lowest rate."""
    for start in (50.0, None):
        first = sweep_advice.Advice(20.0, "p", start, 100.0)
        found, rows = sweep_advice.narrow(first, lambda rate: [_row(rate, 100 if rate <= 70 else 0)], 0.99, 6)
        assert len(rows) == 6
        assert found.rate_rps is not None
        assert found.fails_rps is not None
        assert 70 - 100 / 32 <= found.rate_rps <= 70 < found.fails_rps
    open_end = sweep_advice.Advice(20.0, "p", 100.0, None)
    assert sweep_advice.narrow(open_end, lambda rate: [], 0.99, 6) == (open_end, [])


def test_sentences() -> None:
    """The best policy, the best graph setting and lookahead are named; a target nobody meets is said."""
    compared = variants(["graph:0", "graph:5", "lazy", "lookahead"])
    rates_of = {"graph:0": 200.0, "graph:5": 240.0, "lazy": None, "lookahead": 310.0}
    found = [sweep_advice.Advice(20.0, title, rate, 999.0) for title, rate in rates_of.items()]
    lost = [sweep_advice.Advice(5.0, title, None, 10.0) for title in rates_of]
    lines = sweep_advice.sentences(found + lost, compared, 0.99)
    assert lines[0] == "20 ms: lookahead sustains 310/s, best graph setting (graph:5) 240/s"
    assert lines[1].startswith("5 ms: no policy")
    table = sweep_advice.table(found + lost, list(rates_of))
    assert table[1].split() == ["20", "200", "240", "-", "310"]


def _chosen(*arguments: str) -> Any:
    chosen = options().parse_args(list(arguments))
    fill(chosen)
    return chosen


def test_defaults_and_what_overrides_them() -> None:
    """--quick shrinks only what was not given; targets are multiples of S(1), rates shares of capacity."""
    chosen = _chosen("--table", "t", "--quick", "--seeds", "7")
    assert (chosen.seeds, chosen.requests) == (7, 500)
    assert targets(chosen, "toy", 5.0, 5.0) == [10.0, 25.0, 50.0]
    assert rates(chosen, 100.0) == [(25.0, 500), (50.0, 500), (75.0, 500), (90.0, 500)]
    chosen = _chosen("--live", "m", "--rate", "30", "10", "--seconds", "4", "--sla-ms", "9", "6")
    assert rates(chosen, 1.0) == [(10.0, 40), (30.0, 120)]
    assert targets(chosen, "toy", 5.0, 5.0) == [6.0, 9.0]


def test_usual_policies() -> None:
    """Loops are compared with joining at every step; --quick --live with fewer; names given are taken."""
    assert [one.title for one in compared(_chosen("--table", "t"), loops=True)] == list(USUAL_LOOPS)
    assert [one.title for one in compared(_chosen("--table", "t"), loops=False)] == list(USUAL)
    assert len(compared(_chosen("--live", "m", "--quick"), loops=True)) == 4
    assert [one.title for one in compared(_chosen("--table", "t", "--policy", "lazy"), loops=True)] == ["lazy"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table in a file."""
    path = tmp_path / "toy.json"
    profiles.save(TOY, path)
    return path


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ([], "--table FILE"),
        (["--table", "{table}", "--seeds", "0"], "--seeds"),
        (["--table", "{table}", "--requests", "3"], "--requests"),
        (["--table", "{table}", "--load", "0"], "--load must be positive"),
        (["--table", "{table}", "--rate", "nan"], "--rate must be positive"),
        (["--table", "{table}", "--sla-ms", "4.9"], "one request alone takes 5.000 ms"),
        (["--table", "{table}", "--policy", "magic"], "unknown policy 'magic'"),
        (["--table", "{table}", "--meet", "101"], "--meet"),
        (["--table", "nowhere.json"], "nowhere.json"),
        (["--live", "nothing"], "model 'nothing' is neither"),
    ],
)
def test_bad_input(arguments: list[str], culprit: str, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear line and status 2, before anything is run."""
    chosen = options().parse_args([one.format(table=table) for one in arguments])
    assert run_script(sla_sweep.main, chosen) == 2
    error = capsys.readouterr().err.strip()
    assert culprit in error
    assert len(error.splitlines()) == 1


def test_a_table_with_holes(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged table is refused naming the file, with status 2."""
    document = json.loads(table.read_text())
    document["nodes"][1]["median_ns"][2] = None
    table.write_text(json.dumps(document))
    assert run_script(sla_sweep.main, options().parse_args(["--table", str(table)])) == 2
    assert "holes" in capsys.readouterr().err


def test_the_script_simulated(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON with rows, provenance, figures and advice; a CSV of the same rows; two pictures; a table of rates."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = ["--table", str(table), "--quick", "--requests", "60", "--seeds", "1", "--sla-ms", "12", "40"]
    arguments += ["--policy", "graph:0", "lookahead", "--load", "0.3", "1.5", "--refine", "2", "--jobs", "1"]
    status = sla_sweep.main(options().parse_args([*arguments, "-o", str(tmp_path / "out")]))
    document = json.loads((tmp_path / "out" / "sla_sweep.json").read_text())
    assert status == 0
    assert set(document) == {"rows", "provenance", "figures", "advice"}
    assert document["figures"]["policy_failures"] == {"value": 0, "target": "0", "holds": True}
    assert {(one["policy"], one["sla_ms"]) for one in document["advice"]} == {
        (policy, sla_ms) for policy in ("graph:0", "lookahead") for sla_ms in (12.0, 40.0)
    }
    grid = [row for row in document["rows"] if not row["refined"]]
    assert len(grid) == 2 * 2 * 2
    with (tmp_path / "out" / "sla_sweep.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(document["rows"])
    for name in ("sla_sweep-targets.png", "sla_sweep-rates.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    assert "SLA ms" in shown.out
    assert shown.err == ""


def test_the_script_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trained model served for real under two policies: all calls are answered; rows say how late clients were."""
    arguments = ["--live", "ppocr-cls", "--quick", "--seconds", "0.2", "--rate", "40", "--sla-ms", "1000"]
    arguments += ["--policy", "graph:0", "lazy", "--max-batch-size", "4", "--no-plots", "-o", str(tmp_path)]
    assert sla_sweep.main(options().parse_args(arguments)) == 0
    document = json.loads((tmp_path / "sla_sweep.json").read_text())
    assert {row["policy"] for row in document["rows"]} == {"graph:0", "lazy"}
    for row in document["rows"]:
        assert not row["simulated"]
        assert row["answered"] == row["judged"] > 0
        assert row["submit_lag_p99_ms"] >= 0.0
        assert isinstance(row["generator_late"], bool)
    assert "live runs, about" in capsys.readouterr().err


def test_late_clients_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs in which the load generator lagged are counted once each, and said."""
    row = {"policy": "p", "rate_rps": 1.0, "seed": 1, "submit_lag_p99_ms": 7.0, "generator_late": True}
    sla_sweep.note_lateness([row, row, {**row, "seed": 2, "generator_late": False}])
    assert "late in 1 of 2 runs" in capsys.readouterr().out
    sla_sweep.note_lateness([{**row, "generator_late": False}])
    assert capsys.readouterr().out == ""


def test_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--help begins with the one command a newcomer needs, and says what the exit status means."""
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(SystemExit):
        options().parse_args(["--help"])
    text = capsys.readouterr().out
    assert "python bench/sla_sweep.py --table table.json" in text
    assert "status: 0" in text


def test_checks_stand_alone() -> None:
    """A number of seconds that cannot be is refused before a model is loaded."""
    with pytest.raises(InvalidInput, match="--seconds"):
        check(_chosen("--live", "m", "--seconds", "-1"))
