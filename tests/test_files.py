"""Files that people write: what can be read, and that errors name the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lazybatch.errors import InvalidInput
from lazybatch.files import cells, read_text, unrepeated


def test_a_mark_of_the_byte_order_is_no_text(tmp_path: Path) -> None:
    """Editors that write one are welcome."""
    file = tmp_path / "lengths.csv"
    file.write_bytes(b"\xef\xbb\xbf1,2")
    assert read_text(file, "lengths") == "1,2"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No such file, and bytes that are no text."""
    with pytest.raises(InvalidInput, match=r"cannot read the trace '.*none.csv': No such file"):
        read_text(tmp_path / "none.csv", "trace")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match=r"cannot read the trace '.*bytes': .*decode"):
        read_text(tmp_path / "bytes", "trace")


def test_cells_of_a_line() -> None:
    """Quoted or not, without blanks around; a cell that no reader of CSV takes is an error of ours."""
    assert cells("line 1", ' 5, "6,7" ,') == ["5", '"6', '7"', ""]
    assert cells("line 1", '5,"6,7"') == ["5", "6,7"]
    with pytest.raises(InvalidInput, match="line 9: field larger than field limit"):
        cells("line 9", "1" * 200_000)


def test_a_key_given_twice_is_refused() -> None:
    """At any depth; all else is read as ever."""
    assert json.loads('{"a": [{"b": 1}, {"b": 2}]}', object_pairs_hook=unrepeated) == {"a": [{"b": 1}, {"b": 2}]}
    with pytest.raises(InvalidInput, match="'b' is given twice in one object"):
        json.loads('{"a": {"b": 1, "b": 2}}', object_pairs_hook=unrepeated)
