"""The check of a GPU, on small models and a CPU: the same sections, and what they conclude."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import gpu_check, gpu_runs
from bench.common import Report
from lazybatch.errors import InvalidInput
from tests.torch_modules import fine, sound


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    """One command: answers hold, every section has rows, a plot and a file are there."""
    chosen = gpu_check.options().parse_args(["--device", "cpu", "--quick", "-o", str(tmp_path)])
    assert gpu_check.main(chosen) in (0, 1)
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {row["what"] for row in found["rows"]} >= {"decisions", "answers", "chain", "capacity", "load"}
    assert found["figures"]["deviation/bert-base"]["holds"]
    assert found["figures"]["equal_share/gnmt"]["value"] == 1.0
    assert {row["policy"] for row in found["rows"] if row["what"] == "load"} >= {"serial", "graph 0", "lookahead"}
    assert all(row["failed"] == 0 for row in found["rows"] if row["what"] == "load")
    assert (tmp_path / "gpu_check.png").stat().st_size > 0
    assert found["provenance"]["settings"]["device"] == "cpu"


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name it is an error; by default the CPU stands in."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.pick_device("auto") == "cpu"
    with pytest.raises(InvalidInput, match="no CUDA device can be used here"):
        gpu_check.pick_device("cuda")


def test_nothing_is_begun_when_time_is_over(tmp_path: Path) -> None:
    """Sections that do not fit any more are left out, and the report says so."""
    assert gpu_check.Clock(0).left_s() <= 0
    report = Report("bench/gpu_check.py")
    case = sound("tied")
    subject = gpu_runs.Subject(
        "tied", fine("tied"), lambda count, seed: list(case.rows(case.batch(count, seed=seed), count)), None, "cpu"
    )
    gpu_check.check_chain(report, subject, (1,), 1.0, gpu_check.Clock(0))
    assert report.rows == []
    gpu_check.sweep(report, subject, 2, 0.05, gpu_check.Clock(0))
    assert {row["what"] for row in report.rows} == {"capacity", "skipped"}
    assert gpu_check.draw(report, tmp_path) is None


def test_rows_without_an_answer_miss_every_target() -> None:
    """The warm-up is left out; of ten rows nine count, one failed and one came late for the tightest target."""
    found = gpu_runs.summary([99.0, *[1.0] * 7, 5.0, None], single_ms=1.0)
    assert found["failed"] == 1
    assert found["mean_ms"] == pytest.approx(12 / 8)
    assert found["missed_at_3x"] == pytest.approx(2 / 9)
    assert found["missed_at_12x"] == pytest.approx(1 / 9)
