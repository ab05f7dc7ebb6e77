"""What live runs of loops are judged to say, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import loops_judgement
from bench.common import Report
from lazybatch.errors import InvalidInput


def _run(
    policy: str,
    load: tuple[str, float],
    seed: int,
    live_ms: float,
    simulated_ms: float = 1.0,
    at_pace: dict[str, float] | None = None,
) -> dict[str, Any]:
    return {
        "what": "run",
        "model": "m",
        "policy": policy,
        "load_of": load[0],
        "load": load[1],
        "seed": seed,
        "failed": 0,
        "pace": 1.1,
        "sla_met": 1.0,
        "mean_rows": 2.0,
        "latencies_ms": [live_ms] * 9 + [2 * live_ms],
        "predicted_mean_ms": simulated_ms,
        "simulated_mean_ms_at_pace_of": at_pace or {policy: 1.1 * live_ms},
    }


GRAPH_LOAD, CONTINUOUS_LOAD = ("graph", 0.9), ("continuous", 0.95)


def _report() -> Report:
    """Three seeds, the machine ten times slower in the second; ours is 6 times better than whole batches in all but
    the last, 2 times better than joining at every step."""
    report = Report("x")
    report.rows.append({"what": "capacity", "policy": "graph:0", "rps": 10.0})
    report.rows.append({"what": "capacity", "policy": "continuous", "rps": 20.0})
    for seed, ms in ((3, 30.0), (1, 10.0), (2, 100.0)):
        graph_ms = 6 * ms if seed < 3 else 1.0
        ours = {"lookahead": 1.1 * ms, "graph:0": 1.1 * ms, "continuous": 2.2 * ms}
        graph = {"lookahead": 2.2 * ms, "graph:0": 8.8 * ms}
        continuous = {"lookahead": 1.1 * ms, "continuous": 8.8 * ms}
        report.rows.append(_run("lookahead", GRAPH_LOAD, seed, ms, at_pace=ours))
        report.rows.append(_run("graph:0", GRAPH_LOAD, seed, graph_ms, at_pace=graph))
        report.rows.append(_run("continuous", CONTINUOUS_LOAD, seed, 2 * ms, at_pace=continuous))
        report.rows.append(_run("lookahead", CONTINUOUS_LOAD, seed, ms, at_pace=ours))
    report.rows.append({"what": "sustained", "rate_rps": 13.5, "sla_ms": 60.0, "met": [1.0, 0.2, 0.995]})
    return report


def test_figures_are_medians_of_the_seeds_ratios() -> None:
    """Runs of one seed are compared with each other, whatever the machine did between seeds."""
    report = _report()
    loops_judgement.judge(report)
    figures = {name: (entry["value"], entry["holds"]) for name, entry in report.figures.items()}
    assert figures["mean_graph_over_lookahead/0.9 of graph"] == (pytest.approx(6.0), True)
    assert figures["p99_over_graph/0.9 of graph"] == (pytest.approx(1 / 6), True)
    assert figures["mean_continuous_over_lookahead/0.95 of continuous"] == (pytest.approx(2.0), True)
    assert figures["mean_over_continuous/0.95 of continuous"] == (pytest.approx(0.5), True)
    # By the simulations the pace of whole batches' runs makes them 4 times slower and ours none: twice, in the mean.
    assert figures["mean_graph_over_lookahead, at one pace/0.9 of graph"] == (pytest.approx(6.0 / 2), False)
    assert figures["mean_over_continuous, at one pace/0.95 of continuous"][0] == pytest.approx(0.5 * 4)
    assert figures["predicted_mean_off/lookahead/0.9 of graph"] == (pytest.approx(1 - 1 / 33), False)
    assert figures["simulated_mean_off/lookahead/0.9 of graph"] == (pytest.approx(0.0), True)
    assert figures["met_at_1.5_times_the_rate"] == (0.995, True)
    assert figures["failed_calls"] == (0, True)


def test_runs_without_a_counterpart_are_left_out() -> None:
    """Only seeds that both policies ran are compared."""
    report = _report()
    report.rows = [row for row in report.rows if (row.get("policy"), row.get("seed")) != ("graph:0", 3)]
    cell = next(loops_judgement.cells(report.rows))
    assert cell.ratio("graph:0", "lookahead") == pytest.approx((6.0, 6.0, 6.0))


def test_without_simulations_at_one_pace_there_are_no_such_figures() -> None:
    """Each run simulated at its own pace alone says nothing of others."""
    report = _report()
    for row in report.rows:
        if row["what"] == "run":
            row["simulated_mean_ms_at_pace_of"] = {row["policy"]: 1.0}
    loops_judgement.judge(report)
    assert not any("one pace" in name for name in report.figures)
    assert loops_judgement.table(report.rows)


def test_p99_is_of_all_seeds_together() -> None:
    """It is the time that a sustained rate is held against."""
    assert loops_judgement.p99_ms(_report().rows, "lookahead", GRAPH_LOAD) == pytest.approx(200.0, rel=0.02)


def test_the_page_has_a_section_per_model_and_all_figures() -> None:
    """Command, capacities, a line per load and policy, and a missed figure says so."""
    report = _report()
    loops_judgement.judge(report)
    document = {"rows": report.rows, "provenance": report.provenance(), "figures": report.figures}
    text = loops_judgement.page([document])
    assert "## m\n" in text
    assert "3 seeds. Whole batches serve 10 rows/s, joining at every step 20." in text
    line = (
        "| 0.9 of graph | graph:0 | 1.10 | 66 | 120 | 100 % | 2.0 | 6.00 (0.03 to 6.00) | 6.00 (0.03 to 6.00) | 3.00 "
    )
    assert line in text
    assert "100 %, 20 %, 99.5 % of the rows (by seed) were within 60 ms" in text
    assert "| predicted_mean_off/lookahead/0.9 of graph | <= 0.15 | **0.97, missed** |" in text


def test_the_script_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given what the live script wrote; anything else is refused by its name."""
    report = _report()
    report.save(tmp_path / "m.json")
    chosen = loops_judgement.options().parse_args([str(tmp_path / "m.json")])
    assert loops_judgement.main(chosen) == 0
    assert "# Models with loops, live" in capsys.readouterr().out
    for name, text in (("gone.json", None), ("text.json", "{"), ("list.json", "[]"), ("empty.json", '{"rows": []}')):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidInput, match=name):
            loops_judgement.main(loops_judgement.options().parse_args([str(path)]))


def test_an_interrupted_run_is_judged_by_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written between seeds has no figures yet; the page has."""
    report = _report()
    report.rows = [row for row in report.rows if row["what"] != "sustained"]
    report.save(tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["figures"] == {}
    loops_judgement.main(loops_judgement.options().parse_args([str(tmp_path / "m.json")]))
    out = capsys.readouterr().out
    assert out.count("| 0.9 of graph | ") == 1
    assert "| mean_continuous_over_lookahead/0.95 of continuous | >= 1.5 | 2 |" in out
