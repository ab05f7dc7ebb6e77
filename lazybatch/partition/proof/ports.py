"""The inputs and outputs of a model, in the words every framework shares.

Owns: `Port`, and one line of text for whatever a runtime raises.
Must not know: any framework.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE_MAX = 400


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a model. dims: int, symbol, or None where anonymous; None as a whole: rank unknown."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None


def one_line(error: BaseException) -> str:
    """What was raised, without line breaks, not too long."""
    return " ".join(str(error).split())[:LINE_MAX] or type(error).__name__
