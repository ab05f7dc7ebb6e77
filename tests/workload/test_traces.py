"""Recorded traces with lengths and models, in every accepted form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lazybatch.errors import InvalidInput
from lazybatch.workload import Trace, load_trace


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_forms_agree(tmp_path: Path) -> None:
    """CSV with other columns, JSON objects, give the same trace, in exact nanoseconds."""
    table = _file(tmp_path, "a.csv", "# made\nid,model, arrival_s,length\n1,m,0.1,5\n\n2,n,0.100000001,6\n")
    objects = _file(
        tmp_path,
        "b.json",
        '[{"arrival_s": 0.1, "length": 5, "model": "m"}, {"arrival_s": 0.100000001, "length": 6, "model": "n"}]',
    )
    assert load_trace(table) == load_trace(objects) == Trace((100_000_000, 100_000_001), (5, 6), ("m", "n"))


def test_times_alone(tmp_path: Path) -> None:
    """Plain lines and a JSON list of numbers are traces without lengths; an empty file is an empty trace."""
    assert load_trace(_file(tmp_path, "a.txt", "0\n1.5\n")) == Trace((0, 1_500_000_000))
    assert load_trace(_file(tmp_path, "a.json", "[0, 1.5]")) == Trace((0, 1_500_000_000))
    assert load_trace(_file(tmp_path, "b.csv", "arrival_s,length\n0,\n1,\n")) == Trace((0, 1_000_000_000))
    assert load_trace(_file(tmp_path, "empty.txt", "")) == Trace(())


@pytest.mark.parametrize(
    ("name", "text", "culprit"),
    [
        ("a.csv", "arrival_s,length\n1,5\n2,5\n1.5,5\n", "line 4: out of order"),
        ("a.csv", "arrival_s,length\n1,0\n", "line 2: a length must be"),
        ("a.csv", "arrival_s,length\n1,2.5\n", "line 2: a length must be"),
        ("a.csv", "arrival_s,length\n1,5\n2,\n", "line 3: no length"),
        ("a.csv", "arrival_s,length\n1\n", "line 2: 1 cells for the 2 columns"),
        ("a.csv", "arrival_s,length\n,3\n", "line 2: '' is not a time"),
        ("a.csv", "arrival_s\nnan\n", "line 2"),
        ("a.csv", "arrival_s\n" + "1" * 200_000, "line 2: field larger than field limit"),
        ("a.json", "[1, 0.5]", "entry 2: out of order"),
        ("a.json", '[{"length": 5}]', "entry 1: no arrival_s"),
        ("a.json", '[{"arrival_s": 1, "length": true}]', "entry 1: a length"),
        ("a.json", "[null]", "entry 1: 'None' is not a time|entry 1: None is not a time"),
        ("a.json", '{"arrival_s": 1}', "expected a list"),
        ("a.json", "[1,", "damaged or not JSON"),
    ],
)
def test_bad_traces_name_the_place(tmp_path: Path, name: str, text: str, culprit: str) -> None:
    """Whatever is wrong, the line or entry is named."""
    with pytest.raises(InvalidInput, match=culprit):
        load_trace(_file(tmp_path, name, text))


def test_unreadable(tmp_path: Path) -> None:
    """A missing file is refused by name."""
    with pytest.raises(InvalidInput, match=r"gone\.json"):
        load_trace(tmp_path / "gone.json")


def test_large_numbers_of_requests(tmp_path: Path) -> None:
    """Ten thousand entries survive the round trip through JSON."""
    times = [k / 1000 for k in range(10_000)]
    loaded = load_trace(_file(tmp_path, "a.json", json.dumps(times)))
    assert loaded.arrivals_ns == tuple(k * 1_000_000 for k in range(10_000))
