"""What the benchmark scripts share: figures and exit status, the file, interleaving."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench import common
from bench.common import Report, fill_in, interleave, parser, ratio, run_script
from lazybatch.errors import InvalidInput


@pytest.mark.parametrize(("words", "seeds"), [([], 3), (["--quick"], 1), (["--quick", "--seeds", "2"], 2)])
def test_what_was_not_given_is_filled_in(words: list[str], seeds: int) -> None:
    """The usual value, or the small one with --quick; what was given stays."""
    made = parser("x", "")
    made.add_argument("--seeds", type=int)
    chosen = made.parse_args(words)
    fill_in(chosen, ("seeds", 3, 1))
    assert chosen.seeds == seeds


def test_figures_and_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure that does not hold makes the status 1; one that was not measured does not; all are in the file."""
    report = Report("x", rows=[{"a": 1}])
    report.at_most("small", 1.0, 2.0)
    report.at_least("large", None, 5.0)
    assert report.finish(tmp_path / "deep" / "x.json") == 0
    report.at_least("large", 4.0, 5.0)
    assert report.finish(tmp_path / "deep" / "x.json") == 1
    document = json.loads((tmp_path / "deep" / "x.json").read_text())
    assert document["rows"] == [{"a": 1}]
    assert document["figures"] == {
        "small": {"value": 1.0, "target": "<= 2", "holds": True},
        "large": {"value": 4.0, "target": ">= 5", "holds": False},
    }
    assert {"command", "date", "machine", "versions", "commit"} <= set(document["provenance"])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x.json"]
    assert "FAILS" in capsys.readouterr().out


def test_interleave_rotates_and_pairs() -> None:
    """Every variant runs once per round, the first of a round changes, and warm-up is not counted."""
    order: list[str] = []
    times = interleave({name: (lambda name=name: order.append(name)) for name in "abc"}, 4, warm_up=1)
    assert order == list("abc") + list("abc") + list("bca") + list("cab") + list("abc")
    assert {len(values) for values in times.values()} == {4}


def test_interleave_stops_in_time_but_not_before_three_rounds() -> None:
    """A time limit ends the rounds, yet quotients always have three rounds to stand on."""
    times = interleave({"a": lambda: None, "b": lambda: None}, 1000, within_s=0.0)
    assert {len(values) for values in times.values()} == {3}


def test_ratio_is_taken_round_by_round() -> None:
    """One slow round slows both variants and leaves the quotient alone."""
    assert ratio([2, 200, 2], [1, 100, 1]) == 2


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that is given nonsense says so in one line and ends with 2."""

    def main(chosen: argparse.Namespace) -> int:
        raise InvalidInput("model 'x' is nowhere")

    assert run_script(main, parser("d", "e").parse_args([])) == 2
    assert capsys.readouterr().err.strip().endswith("model 'x' is nowhere")


def test_an_interrupted_script_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line instead of a traceback, and the status that shells use for it."""

    def main(chosen: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert run_script(main, parser("d", "e").parse_args([])) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in the first half minute, then a line per half minute with the time gone by; the end begins anew."""
    now_s = 100.0
    monkeypatch.setattr(common.time, "monotonic", lambda: now_s)
    common.progress_end()
    for number in range(8):
        common.progress_bar(number, 160, "cells")
        now_s += 12.0
    common.progress("")
    common.progress_end()
    common.progress_bar(8, 160, "cells")
    assert capsys.readouterr().err == "3 of 160: cells, 0.6 min\n6 of 160: cells, 1.2 min\n"


def test_on_a_terminal_progress_stays_in_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar that overwrites itself, and nothing of it in the end."""
    monkeypatch.setattr(common.sys.stderr, "isatty", lambda: True, raising=False)
    common.progress_bar(1, 2, "cells")
    common.progress_end()
    said = capsys.readouterr().err
    assert "[############............] 1/2 cells" in said
    assert said.endswith("\r\033[K")
