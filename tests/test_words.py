"""Words of sentences: one thing, several, columns, and errors, those that cannot be printed among them."""

from __future__ import annotations

import pytest

from lazybatch.words import aligned, counted, said


@pytest.mark.parametrize(
    ("number", "thing", "words"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2, "row", "2 rows"),
        (1, "pass", "1 pass"),
        (3, "pass", "3 passes"),
        (2, "dispatch", "2 dispatches"),
        (2, "shorter one", "2 shorter ones"),
    ],
)
def test_one_and_several(number: int, thing: str, words: str) -> None:
    """One is singular, all others plural."""
    assert counted(number, thing) == words


def test_columns() -> None:
    """The second column begins at one place; without lines there is nothing."""
    assert aligned([("a", "1"), ("long", "2")]) == ["a     1", "long  2"]
    assert aligned([]) == []


def test_errors() -> None:
    """By class and text, whatever the text does."""

    class Odd(Exception):
        def __str__(self) -> str:
            return self.args[0]

    assert said(ValueError("seven")) == "ValueError: seven"
    assert said(Odd("word")) == "Odd: word"
    assert said(Odd(404)) == "Odd (it cannot be printed)"
