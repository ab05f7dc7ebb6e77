"""Words of sentences: one thing, several, and columns."""

from __future__ import annotations

import pytest

from lazybatch.words import aligned, counted


@pytest.mark.parametrize(
    ("number", "thing", "said"),
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
def test_one_and_several(number: int, thing: str, said: str) -> None:
    """One is singular, all others plural."""
    assert counted(number, thing) == said


def test_columns() -> None:
    """The second column begins at one place; without lines there is nothing."""
    assert aligned([("a", "1"), ("long", "2")]) == ["a     1", "long  2"]
    assert aligned([]) == []
