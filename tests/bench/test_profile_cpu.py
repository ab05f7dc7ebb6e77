"""Tables of real models: the script that makes them, and those that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

import lazybatch as lb
from bench import profile_cpu
from bench.common import ROOT, run_script
from bench.models import LARGE, LARGE_SIDE, subject

SHIPPED = sorted((ROOT / "profiles" / "cpu-2-cores").glob("*.json"))


def test_a_table_is_written(tmp_path: Path) -> None:
    """A trained model, measured briefly: the file loads, says how it was made, and names no place or kernel."""
    arguments = ["ppocr-cls", "--seconds", "0.1", "--max-batch-size", "2", "-o", str(tmp_path)]
    assert profile_cpu.main(profile_cpu.options().parse_args(arguments)) == 0
    table = lb.LatencyTable.load(tmp_path / "ppocr-cls.json")
    assert table.batch_sizes == (1, 2)
    assert table.provenance["command"] == "python bench/profile_cpu.py ppocr-cls"
    assert "release" not in dict(table.provenance["machine"])  # type: ignore[call-overload]
    assert str(tmp_path) not in (tmp_path / "ppocr-cls.json").read_text()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_tables(path: Path) -> None:
    """Every shipped table loads, reaches batches of 16, and tells machine, versions and date."""
    table = lb.LatencyTable.load(path)
    assert table.batch_sizes[-1] == 16
    assert {"fingerprint", "machine", "threads", "versions", "date", "samples", "joinable"} <= set(table.provenance)
    assert table.provenance["command"] == f"python bench/profile_cpu.py {path.stem}"


def test_all_models_have_a_table() -> None:
    """What the script measures by default is what is shipped."""
    assert {path.stem for path in SHIPPED} == set(profile_cpu.MODELS)


def test_the_large_detector_is_cut_at_a_smaller_size() -> None:
    """Its rows are large; what it is cut by is small, with the longest node scaled by the area."""
    target = subject(LARGE)
    assert target.rows(1)[0]["x"].shape == (3, LARGE_SIDE, LARGE_SIDE)
    assert target.cutting["example_inputs"][0]["x"].shape == (3, 320, 320)
    assert target.cutting["preempt_within"] == pytest.approx(0.010 / 9)


@pytest.mark.parametrize("arguments", [["nothing"], ["--seconds", "-1"], ["--max-batch-size", "0"]])
def test_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line and status 2, before anything is measured."""
    assert run_script(profile_cpu.main, profile_cpu.options().parse_args(arguments)) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
