"""The demo at its smallest: real models, every policy, answers checked, files written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Reason, Task
from lazybatch.demo import lines, models, report, run_demo, serving
from lazybatch.demo.serving import Moved, Run
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.metrics import Outcome


def test_demo_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer under every policy is the whole model's, and table, plot and trace are there.

    Lines are squeezed to a third of their width, which takes the reader a third of the time: what it makes of them is
    still what the whole model makes of them. That it reads them at their own width is `test_lines`'s to say.
    """
    monkeypatch.setattr(lines, "READER_WIDTH", lines.READER_WIDTH // 3 // 8 * 8)
    found = run_demo(tmp_path / "demo", seconds=0.7, loads=(0.5,), profile_s=0.3)
    assert found["answers_equal"]
    assert [row["title"] for row in found["rows"]] == [title for title, _, _ in serving.POLICIES]
    assert all(row["requests"] > 0 and row["failed"] == 0 for row in found["rows"])
    json.dumps(found)
    text = capsys.readouterr().out
    assert "graph 5 ms" in text
    assert "every one is what the whole model says" in text
    assert Path(found["files"]["plot"]).read_bytes().startswith(b"\x89PNG")
    events = json.loads(Path(found["files"]["trace"]).read_text())
    assert {event["name"] for event in events} >= {"process_name", "arrival", "exit"}


@pytest.mark.parametrize("options", [{"seconds": 0.0}, {"loads": ()}, {"loads": (0.5, -1.0)}])
def test_bad_options(tmp_path: Path, options: dict[str, object]) -> None:
    """Impossible options are refused before anything is loaded."""
    with pytest.raises(InvalidInput, match="must be positive"):
        run_demo(tmp_path, **options)  # type: ignore[arg-type]


def test_unwritable_folder(tmp_path: Path) -> None:
    """A folder that cannot be made is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file"):
        run_demo(tmp_path / "file" / "demo")


def test_missing_models_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the models' package the error gives the command that installs it."""
    monkeypatch.setattr(models, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match="pip install --no-deps rapidocr-onnxruntime"):
        models.find("reader")


def test_loads_count_what_the_engine_takes() -> None:
    """A row alone and the capacity are those of nodes and engine together, here 2 + 1 ms and 8 rows in 16 + 1 ms."""
    nodes = LatencyTable("m", ("n",), (1, 8), ((2_000_000, 16_000_000),), ((2_000_000, 16_000_000),))
    alone_ms, capacity_rps = serving.expected({"m": replace(nodes, engine=EngineTime(open_ns=1_000_000))})
    assert alone_ms == {"m": 3.0}
    assert capacity_rps == pytest.approx(8 / 0.017)
    assert serving.expected({"m": nodes})[1] == pytest.approx(500.0)


def _task(sub_batch: int, opened: tuple[int, ...], preempted: int | None = None) -> Task:
    return Task("m", sub_batch, 0, max(1, len(opened)), max(1, len(opened)), opened, preempted, Reason.CONTINUE)


def test_moved_rows_are_counted_once() -> None:
    """Parked rows and both sides of a merge count, each once; rows that ran undisturbed do not."""
    moved = Moved()
    moved.opened(0, _task(0, (1, 2)))
    moved.preempted(1, _task(1, (3,), preempted=0))
    moved.opened(1, _task(1, (3,), preempted=0))
    moved.merged(2, Merge("m", target=1, source=0))
    for request in (1, 2, 3):
        moved.exited(3, Request(request, "m", 0), Outcome.COMPLETED, 0)
    moved.opened(4, _task(2, (4,)))
    moved.exited(5, Request(4, "m", 0), Outcome.COMPLETED, 0)
    assert moved.rows == 3


def _run(title: str, goodput_rps: float, p99_ms: float) -> Run:
    figures = {"requests": 9, "in_time": 9, "late": 0.0, "p50_ms": 1.0, "p99_ms": p99_ms}
    per_model = dict.fromkeys(serving.MODELS, figures)
    return Run(title, 0.5, 10.0, 18, 0, goodput_rps, 0.0, per_model, 1.0, 0, 0, 0, 0, 0.0)


def test_verdicts_admit_defeat() -> None:
    """The closing lines name the winner whoever it is, and say "loses" where lookahead does."""
    line = report.verdicts([_run("serial", 9.0, 10.0), _run("lookahead", 5.0, 20.0)])[0]
    assert "most answers in time: serial (9.0/s)" in line
    assert "lookahead 20 ms loses against serial 10 ms" in line
    line = report.verdicts([_run("serial", 5.0, 20.0), _run("lookahead", 9.0, 10.0)])[0]
    assert "most answers in time: lookahead" in line
    assert "wins" in line


def test_wrong_answers_are_shouted() -> None:
    """A wrong answer is not lost among numbers."""
    assert "1 DIFFER" in report.answers([replace(_run("lazy", 1.0, 1.0), wrong=1)])
