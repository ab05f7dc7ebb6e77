"""Small words of sentences: numbers of things, columns, and what went wrong.

Owns: `counted`, `aligned`, `said`.
Must not know: what is counted, laid out or raised.
"""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, thing: str) -> str:
    """So many things: "1 row", "2 rows", "1 sub-batch", "2 sub-batches"."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith(('s', 'ch', 'sh', 'x')) else 's'}"


def aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns, a line per pair."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name:<{width}}  {value}" for name, value in pairs]


def said(error: BaseException) -> str:
    """An exception in words; also of one whose text cannot be made, as that is its class's own code."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return f"{type(error).__name__} (it cannot be printed)"
