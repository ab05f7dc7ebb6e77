"""Dominance: runs are what they claim, comparisons are taken as stated, and the script end to end on a tiny grid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import dominance
from bench import dominance_runs as runs
from bench.common import Report, run_script
from bench.dominance_cells import Cell, add_figures, cells_of, markdown, worst
from bench.dominance_runs import (
    FAST,
    MISJUDGED,
    OURS,
    SLOWED,
    SPED,
    Job,
    Misjudged,
    Row,
    Spot,
    names_for,
    never_preempts,
    run_all,
)
from bench.laboratory import profile
from lazybatch.core.arrival_rate import ArrivalRate
from lazybatch.errors import InvalidInput


@pytest.mark.parametrize("name", [name for name in names_for(32) if never_preempts(name)])
def test_one_node_stands_for_all(name: str) -> None:
    """A policy that never preempts gives every request the same latency on the whole and on the cut model."""
    made = profile("half")
    traces = [runs.arrivals_of(Spot("half", load, "bursty", (1,), 150), 1) for load in (0.3, 0.9)]
    whole = runs._Outcome.of(made, made.whole, name, traces, made.tight_ns)
    cut = runs._Outcome.of(made, made.nodes, name, traces, made.tight_ns)
    for a, b in zip(whole.latencies_ns, cut.latencies_ns, strict=True):
        assert np.array_equal(a, b)
    assert whole.preemptions == cut.preemptions == 0
    assert len(made.nodes.nodes) * whole.dispatches == cut.dispatches


def test_a_spot_has_a_row_per_policy_and_target() -> None:
    """All policies, ours, and ours told what is wrong; repeated runs agree; equal shares of late rows mean one run."""
    spot = Spot("half", 0.5, "poisson", (1, 2), 120, misjudging=True)
    rows = runs.run(spot)
    names = [*names_for(32), OURS, *MISJUDGED]
    assert [(row["policy"], row["target"]) for row in rows] == [(n, t) for n in names for t in ("tight", "loose")]
    assert runs.run(spot) == rows
    assert all(row["requests"] == 2 * 108 and len(row["seed_means_ms"]) == 2 for row in rows)
    assert all(row["policy_failures"] == 0 for row in rows)
    by_name = {(row["policy"], row["target"]): row for row in rows}
    assert by_name["serial", "tight"]["mean_ms"] == by_name["serial", "loose"]["mean_ms"]
    assert by_name["serial", "tight"]["violations"] >= by_name["serial", "loose"]["violations"]
    assert by_name["cap:2", "tight"]["mean_batch"] <= 2
    with pytest.raises(InvalidInput):
        runs.policy_of("unheard-of", profile("half"))


def test_a_table_of_another_machine_is_only_told() -> None:
    """The policy is told half or twice the times; nodes take what they take, and all others are told the truth."""
    made = profile("half").nodes
    assert runs.told(OURS, made) is made
    for name, factor in ((SLOWED, 0.5), (SPED, 2.0)):
        assert runs.told(name, made).median_ns[0] == tuple(round(factor * ns) for ns in made.median_ns[0])
    spot = Spot("half", 0.3, "poisson", (1,), 120, ("loose",), ("serial",), misjudging=True)
    rows = {row["policy"]: row for row in runs.run(spot)}
    assert rows[SPED]["p50_ms"] < 1.5 * rows["serial"]["p50_ms"], "not twice: it is the machine that it was"


def test_a_misjudged_rate_is_off_by_the_factor() -> None:
    """Twice what an honest estimate says, of the mean and of the last few arrivals; nothing where that is nothing."""
    exact, wrong = ArrivalRate(), Misjudged(2.0)
    assert (wrong.per_ns(0), wrong.recent_per_ns(0)) == (None, None)
    for at_ns in (0, 100, 300):
        exact.arrived(at_ns)
        wrong.arrived(at_ns)
    assert wrong.per_ns(300) == 2 * (exact.per_ns(300) or 0.0) == 2 / 150
    assert wrong.recent_per_ns(300) == 2 * (exact.recent_per_ns(300) or 0.0) == 2 / 150


def _row(policy: str, means: list[float], p99: float, late: float, **cell: Any) -> dict[str, Any]:
    at = {"profile": "gpu", "load": 0.1, "arrivals": "poisson", "target": "tight"} | cell
    return {**at, "policy": policy, "seed_means_ms": means, "p99_ms": p99, "violations": late, "policy_failures": 0}


ROWS = [
    _row("graph:0", [10.0, 20.0, 30.0], 50.0, 0.02),
    _row("serial", [40.0, 10.0, 40.0], 40.0, 0.5),
    _row(OURS, [9.0, 19.0, 30.0], 44.0, 0.021),
    _row(FAST, [11.0, 22.0, 33.0], 44.0, 0.0),
    _row("graph:0", [1.0], 1.0, 0.0, load=0.9),
    _row(OURS, [2.0], 0.5, 0.0, load=0.9),
    _row("graph:0", [1.0], 1.0, 0.0, profile="half"),
]


def test_comparisons() -> None:
    """Means by the median seed against each other policy, tails and shares against the best; where ours did not run, no
    cell."""
    cells = cells_of(ROWS)
    assert [(cell.profile, cell.load) for cell in cells] == [("gpu", 0.1), ("gpu", 0.9)]
    first = cells[0]
    assert first.mean_ratio("serial") == pytest.approx(0.75)
    assert (first.mean().value, first.mean().best) == (pytest.approx(0.95), "graph:0")
    assert first.mean(FAST).value == pytest.approx(1.1)
    assert (first.p99().value, first.p99().best) == (pytest.approx(1.1), "serial")
    assert (first.violations().value, first.violations().best) == (pytest.approx(0.1), "graph:0")
    found, where = worst(cells, "mean")
    assert (found.value, str(where)) == (2.0, "gpu at 0.9, poisson, tight")


def test_figures() -> None:
    """Each limit is held against the worst cell; what did not run is not measured."""
    report = Report("test")
    add_figures(report, cells_of(ROWS))
    value = {name: figure["value"] for name, figure in report.figures.items()}
    holds = {name: figure["holds"] for name, figure in report.figures.items()}
    assert value["mean_over_best/poisson"] == 2.0
    assert holds["mean_over_best/poisson"] is False
    assert holds["mean_over_best/bursty"] is None
    assert value["mean_over_best/rate_taken_double"] == pytest.approx(1.1)
    assert value["mean_over_best/rate_taken_half"] is None
    assert value["mean_over_graphb0/gpu/best_load"] == pytest.approx(0.95)
    assert holds["mean_over_serial/nogain"] is None
    nogain = Cell("nogain", 0.1, "poisson", "tight", {OURS: _row(OURS, [1.004], 1, 0), "serial": _row("s", [1], 1, 0)})
    add_figures(report, [nogain])
    assert report.figures["mean_over_serial/nogain"]["holds"] is True


def test_summary() -> None:
    """Per profile and over all: the worst cell, where, against whom, and how often ours is better than everyone."""
    text = markdown(cells_of(ROWS), "python bench/dominance.py", ["a note"])
    assert "| gpu | 2 | 2.000 | 0.9, poisson, tight | graph:0 | 1.475 | 0.950 | 50 % |" in text
    assert text.count("| all | 2 |") == 3
    assert "* a note" in text


def test_the_script_end_to_end(tmp_path: Path) -> None:
    """A tiny grid: rows, figures, summary and pictures, and a status that says whether all figures hold."""
    file = tmp_path / "dominance.json"
    arguments = ["--profiles", "half", "--loads", "0.5", "--seeds", "1", "--requests", "60", "--workers", "1"]
    asked = [*arguments, "--no-optimum", "-o", str(tmp_path), "--json", str(file), "--policies", "serial", "graph:0"]
    status = dominance.main(dominance.options().parse_args(asked))
    document = json.loads(file.read_text())
    assert {row["policy"] for row in document["rows"]} == {"serial", "graph:0", OURS, *MISJUDGED}
    assert status == int(any(figure["holds"] is False for figure in document["figures"].values()))
    assert document["provenance"]["settings"]["simulated"] is True
    assert "| half | 4 |" in (tmp_path / "dominance.md").read_text()
    assert all((tmp_path / f"dominance_{m}.png").stat().st_size > 1000 for m in ("mean", "p99", "violations"))


def test_an_interrupted_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its second cell is interrupted. Run again, only that one is run, and everything is as if nothing had happened."""
    arguments = ["--profiles", "half", "--loads", "0.5", "--seeds", "1", "--requests", "60", "--workers", "1"]
    arguments += ["--no-optimum", "--no-plots", "--policies", "serial"]
    ran: list[str] = []

    def interrupted(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Row]]]:
        for number, (job, rows) in enumerate(run_all(jobs, workers)):
            if number and not ran:
                raise KeyboardInterrupt
            yield job, rows

    def watched(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Row]]]:
        ran.extend(job.arrivals for job in jobs if isinstance(job, Spot))
        yield from run_all(jobs, workers)

    def ended(name: str) -> int:
        file = ["-o", str(tmp_path / name), "--json", str(tmp_path / f"{name}.json")]
        return run_script(dominance.main, dominance.options().parse_args([*arguments, *file]))

    status = ended("at once")
    monkeypatch.setattr(dominance, "run_all", interrupted)
    assert ended("again") == 130
    assert capsys.readouterr().err.endswith("interrupted\n")
    assert (tmp_path / "again" / dominance.JOURNAL).exists()
    monkeypatch.setattr(dominance, "run_all", watched)
    assert ended("again") == status
    assert ran == ["bursty"]
    assert "1 cells of an interrupted run are taken from" in capsys.readouterr().err
    assert not (tmp_path / "again" / dominance.JOURNAL).exists()
    found = [json.loads((tmp_path / f"{name}.json").read_text())["rows"] for name in ("at once", "again")]
    assert found[0] == found[1]


def test_joined_nodes_are_stated() -> None:
    """A shortened table is named in the notes, one that was left as it is is not."""
    spots = dominance.spots_of(dominance.options().parse_args(["--profiles", "half", "npu-128x128/gnmt"]))
    (note,) = [note for note in dominance.notes_of(spots) if "joined" in note]
    assert "gnmt (97 to 20)" in note
    assert "half" not in note


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--profiles", "tpu"], "unknown profile 'tpu'"),
        (["--loads", "1.5"], "--loads must lie between 0 and 1, got 1.5"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--requests", "3"], "--requests must be at least 20"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--policies", "magic"], "unknown policy 'magic'"),
    ],
)
def test_bad_options(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear line, status 2."""
    assert dominance.run_script(dominance.main, dominance.options().parse_args(arguments)) == 2
    error = capsys.readouterr().err
    assert culprit in error
    assert len(error.strip().splitlines()) == 1
