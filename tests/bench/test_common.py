"""What the benchmark scripts share: figures and exit status, the file, interleaving."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

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
