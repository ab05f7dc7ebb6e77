"""Rows of finished jobs outlive an interruption, and nothing else does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.journal import Journal, digest


@dataclass(frozen=True)
class Job:
    """Something to do."""

    name: str
    seeds: tuple[int, ...] = (1, 2)


ROWS = [{"mean_ms": 0.1 + 0.2, "seed_means_ms": [1.5, 1e-9]}]


def test_what_is_done_is_found_again(tmp_path: Path) -> None:
    """The very same numbers, for the very same job; a job that was not done has none. Removed, nothing is left."""
    first = Journal(tmp_path / "j")
    first.keep(Job("a"), ROWS)
    first.close()
    again = Journal(tmp_path / "j")
    assert again.kept == 1
    assert again.rows_of(Job("a")) == ROWS
    assert again.rows_of(Job("a", (1,))) is None
    again.remove()
    new = Journal(tmp_path / "j")
    assert new.kept == 0
    new.close()


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    """The jobs before it are there, it is not; and what is kept after it is found by the next run."""
    first = Journal(tmp_path / "j")
    for name in "ab":
        first.keep(Job(name), ROWS)
    first.close()
    text = (tmp_path / "j").read_text()
    (tmp_path / "j").write_text(text[:-5])
    second = Journal(tmp_path / "j")
    assert second.rows_of(Job("b")) is None
    second.keep(Job("c"), ROWS)
    second.close()
    third = Journal(tmp_path / "j")
    assert [third.rows_of(Job(name)) for name in "abc"] == [ROWS, None, ROWS]
    third.remove()


def test_rows_of_other_code_are_not_used(tmp_path: Path) -> None:
    """The file is begun anew; so is one that is no text at all."""
    first = Journal(tmp_path / "j", code="one")
    first.keep(Job("a"), ROWS)
    first.close()
    other = Journal(tmp_path / "j", code="two")
    assert other.kept == 0
    other.close()
    (tmp_path / "j").write_bytes(b"\xff\xfe")
    unread = Journal(tmp_path / "j", code="two")
    assert unread.kept == 0
    unread.close()


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    """It changes with a file's text and with its name, not with files that rows do not depend on."""
    (tmp_path / "a.py").write_text("1")
    seen = [digest(tmp_path, ("*.py",))]
    (tmp_path / "a.txt").write_text("1")
    assert digest(tmp_path, ("*.py",)) == seen[0]
    (tmp_path / "a.py").write_text("2")
    seen.append(digest(tmp_path, ("*.py",)))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    seen.append(digest(tmp_path, ("*.py",)))
    assert len(set(seen)) == 3
