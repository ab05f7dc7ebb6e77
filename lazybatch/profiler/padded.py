"""Measuring a model whose rows are padded to one of several lengths: a table for each.

Owns: `profile_lengths`. Must not know: how one length is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lazybatch.executors.base import Model
from lazybatch.profiles import LatencyTable


class Padded(Model, Protocol):
    """A model that pads. padded_lengths: to what, increasing."""

    padded_lengths: tuple[int, ...]

    def at(self, length: int) -> Model:
        """The model with made-up rows of this length."""


def profile_lengths(
    profile: Callable[..., LatencyTable],
    model: Padded,
    *,
    budget_s: float,
    inputs: Sequence[Any] | None,
    progress: Callable[[Any], None] | None,
    resume: str | Path | None,
    **options: Any,
) -> LatencyTable:
    """The table of the longest padded length, with those of the others in it. The budget is shared equally.

    inputs: rows of any lengths; a length of which there are none is measured with made-up rows.
    """
    lengths = model.padded_lengths
    rows = {length: [one for one in inputs or () if model.admit(one).length == length] for length in lengths}
    tables = {}
    for number, length in enumerate(lengths):

        def report(at: Any, done: int = number) -> None:
            if progress is not None:
                share, elapsed_s = (done + at.share) / len(lengths), at.elapsed_s + done * budget_s / len(lengths)
                progress(at._replace(share=share, elapsed_s=elapsed_s))

        tables[length] = profile(
            model.at(length),
            budget_s=budget_s / len(lengths),
            inputs=rows[length] or None,
            progress=report,
            resume=None if resume is None else f"{resume}.{length}",
            **options,
        )
    longest = tables.pop(lengths[-1])
    return replace(longest, shorter=tables, provenance={**longest.provenance, "padded_lengths": list(lengths)})
