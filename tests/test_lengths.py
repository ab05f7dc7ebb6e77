"""Lengths that were seen: every form they are recorded in, the characterisation file, and what is wrong with either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lengths import LengthGuess
from lazybatch.errors import InvalidInput
from lazybatch.lengths import ANY, Lengths, guesses_for, load_lengths

GRAPH = NodeGraph.chain("m", ["a", "b", "c"], [Loop("first", 0, 1), Loop("second", 1, 2)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.txt", "# recorded on Monday\n\n5,9\n6,11\n"),
        ("header.csv", "id,target,source\na,9,5\nb,11,6\n"),
        ("pairs.json", "[[5, 9], [6, 11]]"),
        ("objects.json", '[{"input": 5, "output": 9}, {"in": 6, "length": 11}]'),
        ("by_loop.json", '{"*": [[5, 9], [6, 11]]}'),
        ("made.json", '{"lengths": 1, "coverage": 0.9, "loops": {"*": [[5, 9], [6, 11]]}}'),
    ],
)
def test_pairs_in_every_form(tmp_path: Path, name: str, text: str) -> None:
    """Lines, columns by their names, JSON: the same rows."""
    path = tmp_path / name
    path.write_text(text)
    assert load_lengths(path).pairs == {ANY: ((5, 9), (6, 11))}


@pytest.mark.parametrize(("name", "text"), [("p.txt", "9\n11\n"), ("p.csv", "output\n9\n11\n"), ("p.json", "[9, 11]")])
def test_outputs_alone(tmp_path: Path, name: str, text: str) -> None:
    """Where no input length was recorded, rows have the size of requests that have none."""
    path = tmp_path / name
    path.write_text(text)
    read = load_lengths(path, "decoder")
    assert read.pairs == {"decoder": ((1, 9), (1, 11))}
    assert not read.sized


def test_a_characterisation_is_kept(tmp_path: Path) -> None:
    """What is saved is loaded: the same rows, the same guesses."""
    pairs = [(size, 2 * size + extra) for size in range(1, 200) for extra in range(3)]
    made = Lengths({"decoder": pairs, "encoder": [(1, 4)]}, 0.8)
    made.save(tmp_path / "lengths.json")
    read = load_lengths(tmp_path / "lengths.json")
    assert (read.pairs, read.coverage) == (made.pairs, 0.8)
    assert dict(read) == dict(made)
    assert read["decoder"] == LengthGuess.of([out for _, out in pairs], [size for size, _ in pairs], coverage=0.8)
    assert read.sized
    assert len(read["decoder"].groups) > 1


def test_guesses_by_loop() -> None:
    """By name, or what is known of any; None where nothing is known."""
    named = Lengths({"second": [(1, 7)]})
    assert guesses_for(GRAPH, named) == (None, named["second"])
    anything = Lengths({ANY: [(1, 7)], "first": [(1, 3)]})
    assert guesses_for(GRAPH, anything) == (anything["first"], anything[ANY])
    assert anything.of("second") == ((1, 7),)
    assert named.of("first") is None


def test_lengths_of_an_unknown_loop() -> None:
    """The loop and those there are."""
    with pytest.raises(InvalidInput, match="loop 'third': model 'm' has 'first', 'second'"):
        guesses_for(GRAPH, Lengths({"third": [(1, 1)]}))
    with pytest.raises(InvalidInput, match="loop 'third': model 'chain' has no loops"):
        guesses_for(NodeGraph.chain("chain", ["a"]), Lengths({"third": [(1, 1)]}))


BAD: dict[str, tuple[str, str, str]] = {
    "nothing in it": ("x.txt", "# nothing\n", "at least one is needed"),
    "a word": ("x.txt", "5\nfive\n", "line 2: a length must be a positive whole number, got 'five'"),
    "thousands of digits": ("x.txt", "9" * 5_000, "line 1: a length must be a positive whole number, got '999"),
    "more than can be": ("x.txt", "1,100000000", "at most 1000000 iterations can be characterised, got 100000000"),
    "a line without end": ("x.txt", "5\n" + "12 " * 60_000, "line 2: field larger than field limit"),
    "zero": ("x.txt", "0\n", "line 1: a length must be"),
    "a fraction": ("x.json", "[1.5]", "entry 1: a length must be a positive whole number, got 1.5"),
    "a flag": ("x.json", "[true]", "entry 1: a length must be"),
    "three cells": ("x.txt", "1,2,3\n", "line 1: expected an output length, or input and output length, got 3 cells"),
    "too few cells": ("x.csv", "input,output\n5\n", "line 2: 1 cells, the first line names more columns"),
    "a triple": ("x.json", "[[1, 2, 3]]", "entry 1: expected an output length, or input and output"),
    "no output": ("x.json", '[{"input": 3}]', "entry 1: no output length"),
    "no list": ("x.json", "7", "expected a list with an entry per row, got 7"),
    "a loop twice": ("x.json", '{"a": [1], "b": [2], "a": [3]}', "'a' is given twice in one object"),
    "a made loop twice": ("x.json", '{"lengths": 1, "loops": {"a": [1], "a": [3]}}', "'a' is given twice"),
    "a version in words": ("x.json", '{"lengths": "1", "loops": {"a": [1]}}', "format version '1'"),
    "no JSON": ("x.json", "[1,", "damaged or not JSON"),
    "no rows of a loop": ("x.json", '{"decoder": []}', "loop 'decoder': .*at least one is needed"),
    "no loops": ("x.json", "{}", "no loop has any"),
    "a later version": ("x.json", '{"lengths": 2}', "format version 2, this lazybatch reads 1"),
    "a coverage of two": ("x.json", '{"lengths": 1, "coverage": 2, "loops": {"a": [1]}}', "coverage must be above 0"),
    "a coverage of text": ("x.json", '{"lengths": 1, "coverage": "1", "loops": {"a": [1]}}', "'coverage' must be a n"),
    "loops as a list": ("x.json", '{"lengths": 1, "loops": [1]}', "'loops' must be an object"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    """One line that names the file and the place."""
    name, text, words = BAD[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        load_lengths(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loop_called_lengths(tmp_path: Path) -> None:
    """Where a list stands behind the name, it is a loop; where a number stands, it is the format's version."""
    path = tmp_path / "raw.json"
    path.write_text(json.dumps({"lengths": [[5, 9]], "loops": [3]}))
    assert load_lengths(path).pairs == {"lengths": ((5, 9),), "loops": ((1, 3),)}
    load_lengths(path).save(path)
    assert load_lengths(path).pairs == {"lengths": ((5, 9),), "loops": ((1, 3),)}


def test_whose_coverage(tmp_path: Path) -> None:
    """A characterisation says it, wherever it is kept; whoever asks for another one gets that."""
    path = tmp_path / "made.txt"
    Lengths({"decoder": [(1, 3)]}, 0.5).save(path)
    assert (load_lengths(path).coverage, load_lengths(path, coverage=0.7).coverage) == (0.5, 0.7)
    path.write_text("3")
    assert (load_lengths(path).coverage, load_lengths(path, coverage=0.7).coverage) == (0.9, 0.7)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, or no text."""
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00\x80")
    for name in ("gone.txt", "x.txt"):
        with pytest.raises(InvalidInput, match=f"cannot read the lengths .*{name}"):
            load_lengths(tmp_path / name)
