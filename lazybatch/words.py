"""Small words of sentences: numbers of things, and columns.

Owns: `counted`, `aligned`.
Must not know: what is counted or laid out.
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
