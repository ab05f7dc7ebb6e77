"""The paper's evaluation: cells, reductions, and the script end to end on a few runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import paper
from bench.common import Report
from bench.paper_cells import GPU, Cell, Predicting, lane_of, policy_of, run, table
from bench.paper_claims import claims
from bench.paper_results import Results
from bench.paper_studies import STUDIES, Plan
from lazybatch.errors import InvalidInput


def test_a_cell_is_reproducible_and_bounded() -> None:
    """The same cell gives the same row, and no policy's mean is below the clairvoyant optimum or the bound."""
    (bound,) = run(Cell("s", ("resnet50",), "bounds", 800, 3, 80))
    for policy in ("serial", "graph", "graph:5", "lazy"):
        cell = Cell("s", ("resnet50",), policy, 800, 3, 80, cdf=True, judged_ms=(1.0, 100.0))
        (row,) = run(cell)
        assert run(cell) == [row]
        assert row["mean_all_ms"] >= bound["lower_bound_ms"]
        assert row["mean_all_ms"] >= bound["clairvoyant_ms"] or policy == "lazy"
        assert row["violations_at"] == {"1": 1.0, "100": row["violations"]}
        assert row["cdf_ms"] == sorted(row["cdf_ms"])
        assert row["policy_failures"] == 0


def test_several_models_have_a_row_each() -> None:
    """Four models: one row over all, one per model, and the requests are the models' together."""
    rows = run(Cell("s", ("mobilenet", "resnet50"), "graph", 200, 1, 30))
    assert [row["model"] for row in rows] == ["mobilenet+resnet50", "mobilenet", "resnet50"]


def test_profiles() -> None:
    """The GPU-like profile and unrolled lengths are made; anything else is refused by name."""
    assert table(GPU).whole_ns(1) == pytest.approx(7_490_000, rel=1e-3)
    assert table("transformer@24,18").whole_ns(1) > table("transformer").whole_ns(1)
    with pytest.raises(InvalidInput, match="unknown profile 'nothing'"):
        table("nothing")


def test_predicted_lengths() -> None:
    """A longer guess leaves more predicted time at every cursor, the true one is exact, none falls below a step."""
    exact = table("transformer").remaining_ns(1)
    cells = [Cell("s", ("transformer",), "lazy", 1, 1, 1, dec_timesteps=steps) for steps in (10, 18, 32)]
    made = [policy_of(cell, [lane_of(cell, "transformer")]) for cell in cells]
    lefts = [policy._left_ns for policy in made if isinstance(policy, Predicting)]
    assert lefts[1] == exact
    assert all(a <= b < c for a, b, c in zip(*lefts, strict=True))
    assert all(low > 0 for low in lefts[0][:-1])


def _rows(policy: str, latency_ms: float) -> list[dict[str, Any]]:
    common = {"study": "fig12_13", "model": "resnet50", "policy": policy, "throughput_rps": 100.0}
    return [{**common, "rate_rps": rate, "seed": 1, "mean_ms": latency_ms} for rate in (16.0, 4000.0)]


def test_ratios_are_taken_run_by_run() -> None:
    """The best window over the policy, per rate; overload is left out of the average and decides throughput."""
    rows = [*_rows("graph", 1.5), *_rows("graph:5", 6.0), *_rows("graph:95", 90.0), *_rows("lazy", 2.0)]
    rows[-1] |= {"mean_ms": 60.0, "throughput_rps": 80.0}
    rows[:] = [{**row, "mean_all_ms": row["mean_ms"]} for row in rows]
    bound = {"node_capacity_rps": 11.0, "capacity_rps": 10.0, "lower_bound_ms": 1.25}
    rows += [{**row, **bound, "policy": "bounds"} for row in _rows("bounds", 0.0)]
    report = Report("test")
    found = claims(Results(rows, ("graph:5", "graph:95"), ("graph", "lazy")), report, ["fig12_13"])
    assert report.figures["latency_over_best_window/resnet50/lazy"]["value"] == pytest.approx(3.0)
    assert report.figures["throughput_over_best_window/resnet50/lazy"]["value"] == pytest.approx(0.8)
    latency, throughput = found[2].ours, found[4].ours
    assert latency == "lazy: 3.00 times the best window, 0.75 times GraphB(0); no policy can have more than 4.80"
    assert throughput.endswith("capacity at node level over graph level: 1.10")


def test_overload_is_held_against_what_is_possible() -> None:
    """Late rows dropped at 1.5 times capacity: no policy serves more in time than the bound allows, graph batching not
    more than the clairvoyant schedule of its level, and the figures are ratios to those."""
    plan = Plan(("graph", "lazy"), windows_ms=(1,), seeds=(1, 2), requests=60, models=("resnet50",))
    rows = [row for cell in STUDIES["overload"](plan) for row in run(cell)]
    report = Report("test")
    (claim,) = claims(Results(rows, ("graph:1",), ("graph", "lazy")), report, ["overload"])[2:]
    for bound in [row for row in rows if row["policy"] == "bounds"]:
        assert bound["goodput_clairvoyant"] <= bound["goodput_bound"] <= 1
        same = {key: bound[key] for key in ("model", "target", "seed")}
        others = [row for row in rows if row["policy"] != "bounds" and {key: row[key] for key in same} == same]
        assert len(others) == 3
        for row in others:
            limit = "goodput_bound" if row["policy"] == "lazy" else "goodput_clairvoyant"
            assert row["goodput"] <= bound[limit]
    for target in ("tight", "loose"):
        assert 0 <= report.figures[f"goodput_over_clairvoyant/resnet50/{target}/lazy"]["value"] <= 1.2
    assert "resnet50 tight" in claim.ours


def test_past_saturation() -> None:
    """All rows are served where the queue only grows; graph batching keeps the best batch's throughput, serial does not
    and is held to nothing."""
    plan = Plan(("serial", "graph", "lazy"), seeds=(1, 2), requests=60, models=("resnet50",))
    cells = [cell for cell in STUDIES["past_saturation"](plan) if cell.profiles == ("resnet50",)]
    report = Report("test")
    claims(Results([row for cell in cells for row in run(cell)], (), ("graph", "lazy")), report, ["past_saturation"])
    assert set(report.figures) == {"throughput_past_saturation/graph", "throughput_past_saturation/lazy"}
    assert report.figures["throughput_past_saturation/graph"]["holds"] is True


def test_sharing_is_judged_load_by_load() -> None:
    """Four models with targets of their own: a figure per load for the shortest one's tail and the longest's mean."""
    plan = Plan(("graph", "lazy"), windows_ms=(5,), loads=(0.1, 0.6), seeds=(1,), requests=60)
    rows = [row for cell in STUDIES["colocation"](plan) for row in run(cell)]
    report = Report("test")
    claims(Results(rows, ("graph:5",), ("graph", "lazy")), report, ["colocation"])
    assert set(report.figures) == {
        f"{name}/load {load}/lazy"
        for name in ("colocation_short_p99", "colocation_long_mean")
        for load in ("0.1", "0.6")
    }
    mean = report.figures["colocation_long_mean/load 0.1/lazy"]["value"]
    of_long = {row["policy"]: row["mean_ms"] for row in rows if row["model"] == "gnmt" and row["load"] == 0.1}
    assert mean == pytest.approx(of_long["lazy"] / of_long["graph"])


def test_one_node_tables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that never preempt give the same rows on tables of one node as on all nodes, several models included.

    Only rows per dispatch differ there: models weigh by their batches, not by their nodes.
    """
    for policy in ("serial", "graph", "graph:5", "cellular", "aimd"):
        cell = Cell("s", ("mobilenet", "transformer"), policy, 300, 2, 40, sla_runs=5, late="drop")
        short = [row | {"mean_batch": None} for row in run(cell)]
        with monkeypatch.context() as patch:
            patch.setattr("bench.paper_cells.never_preempts", lambda policy: False)
            assert [row | {"mean_batch": None} for row in run(cell)] == short


def test_every_study_names_runnable_cells() -> None:
    """All profiles and policies of all studies exist, GraphB(0) is in each, and seeds are the plan's."""
    plan = Plan(("serial", "graph", "lazy"), rates=(16,), loads=(0.5,), windows_ms=(5,), seeds=(1, 2), requests=10)
    for study, make in STUDIES.items():
        cells = list(make(plan))
        assert {cell.study for cell in cells} == {study}
        assert {cell.seed for cell in cells} == ({1} if study == "past_saturation" else {1, 2})
        assert any(cell.policy == "graph" for cell in cells) or study == "dec_timesteps"
        for cell in cells:
            assert all(table(profile).nodes for profile in cell.profiles)


def test_the_script_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One study at its quick size: rows, provenance and figures, a table, and a file and a picture per study."""
    monkeypatch.setattr(paper, "run_all", lambda cells: [row for cell in cells for row in run(cell)])
    file = tmp_path / "paper.json"
    studies = ["fig14", "dec_timesteps", "colocation", "overload"]
    arguments = ["--quick", "--studies", *studies, "--json", str(file), "-o", str(tmp_path / "out")]
    status = paper.main(paper.options().parse_args([*arguments, "--policies", "graph", "lazy"]))
    document = json.loads(file.read_text())
    assert status == int(any(figure["holds"] is False for figure in document["figures"].values()))
    assert set(document) == {"rows", "provenance", "figures"}
    assert {row["study"] for row in document["rows"]} == set(studies)
    assert document["provenance"]["settings"]["simulated"] is True
    assert (tmp_path / "out" / "paper.md").read_text().count("\n| ") >= 4
    for picture in ("fig14", "colocation", "overload"):
        assert (tmp_path / "out" / f"{picture}.png").stat().st_size > 1000
    assert json.loads((tmp_path / "out" / "dec_timesteps.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--studies", "fig99"], "unknown study 'fig99'"),
        (["--policies", "graph", "lazy", "magic"], "unknown policy 'magic'"),
        (["--policies", "serial"], "must include"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--requests", "-5"], "--requests must be at least 1"),
    ],
)
def test_bad_options(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown names end with one clear line and status 2."""
    chosen = paper.options().parse_args(arguments)
    assert paper.run_script(paper.main, chosen) == 2
    error = capsys.readouterr().err
    assert culprit in error
    assert len(error.strip().splitlines()) == 1
