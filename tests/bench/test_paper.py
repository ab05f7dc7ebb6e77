"""The paper's evaluation: cells, reductions, and the script end to end on a few runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import paper
from bench.common import Report
from bench.paper_cells import GPU, Cell, Predicting, policy_of, run, sla_blind, table
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
    made = [policy_of(Cell("s", ("transformer",), "lazy", 1, 1, 1, dec_timesteps=steps)) for steps in (10, 18, 32)]
    lefts = [policy._left_ns for policy in made if isinstance(policy, Predicting)]
    assert lefts[1] == exact
    assert all(a <= b < c for a, b, c in zip(*lefts, strict=True))
    assert all(low > 0 for low in lefts[0][:-1])
    assert sla_blind("graph:5")
    assert not sla_blind("lazy")


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


def test_every_study_names_runnable_cells() -> None:
    """All profiles and policies of all studies exist, GraphB(0) is in each, and seeds are the plan's."""
    plan = Plan(("serial", "graph", "lazy"), rates=(16,), loads=(0.5,), windows_ms=(5,), seeds=(1, 2), requests=10)
    for study, make in STUDIES.items():
        cells = list(make(plan))
        assert {cell.study for cell in cells} == {study}
        assert {cell.seed for cell in cells} == {1, 2}
        assert any(cell.policy == "graph" for cell in cells) or study == "dec_timesteps"
        for cell in cells:
            assert all(table(profile).nodes for profile in cell.profiles)


def test_the_script_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One study at its quick size: rows, provenance and figures, a table, and a file and a picture per study."""
    monkeypatch.setattr(paper, "run_all", lambda cells: [row for cell in cells for row in run(cell)])
    file = tmp_path / "paper.json"
    arguments = ["--quick", "--studies", "fig14", "dec_timesteps", "--json", str(file), "-o", str(tmp_path / "out")]
    status = paper.main(paper.options().parse_args([*arguments, "--policies", "graph", "lazy"]))
    document = json.loads(file.read_text())
    assert status == 0
    assert set(document) == {"rows", "provenance", "figures"}
    assert {row["study"] for row in document["rows"]} == {"fig14", "dec_timesteps"}
    assert document["provenance"]["settings"]["simulated"] is True
    assert (tmp_path / "out" / "paper.md").read_text().count("\n| ") >= 4
    assert (tmp_path / "out" / "fig14.png").stat().st_size > 1000
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
