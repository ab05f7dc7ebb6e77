"""Shapes of watched values at one row, in every run that looks at them, and at sizes tried one by one.

Owns: `Sightings`.
Must not know: any framework, what the values prove, cuts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from lazybatch.partition.proof.inputs import accepts, resized
from lazybatch.partition.proof.probe import Runner
from lazybatch.partition.proof.rows import Array, Candidate, Feeds
from lazybatch.partition.proof.search import Verdict
from lazybatch.partition.proof.traits import Outcome

RESIZES_MAX = 64
RESIZE_SECONDS = 30.0


class Sightings:
    """Keeps shapes only: the values themselves, of all runs, would fill the memory.

    runs: how many were noted.
    """

    def __init__(self, names: Iterable[str], verdict: Verdict) -> None:
        self.names: Sequence[str] = tuple(names)
        self.runs = 0
        self._verdict = verdict
        self._seen: dict[tuple[tuple[int, ...], ...], None] = {}
        self._others = any(recipe.sizes != verdict.recipes[0].sizes for recipe in verdict.recipes)
        self._left = RESIZES_MAX
        self._deadline = time.monotonic() + RESIZE_SECONDS

    @property
    def varied(self) -> bool:
        """Whether sizes other than the first recipe's were run; False where there were too many to try each."""
        return self._others and self._left >= 0

    def note(self, values: Mapping[str, Array]) -> None:
        """Note a run of one row."""
        self.runs += 1
        self._seen.setdefault(tuple(values[name].shape for name in self.names))

    def noting(self, run: Runner) -> Runner:
        """The same run, noted whenever it is of one row."""
        candidate: Candidate = self._verdict.candidate

        def noted(feeds: Feeds) -> Outcome:
            values = run(feeds)
            if all(feeds[name].shape[axis] == 1 for name, axis in candidate.items()):
                self.note(values)
            return values

        return noted

    def resize(self, run: Runner) -> None:
        """Run with one size changed: sizes that examples have, or that were tried together, are equal by chance.

        run: one that is noted.
        """
        verdict = self._verdict
        for _, recipe in resized(verdict.ports, verdict.candidate, verdict.recipes[0]):
            self._left -= 1
            if self._left < 0 or time.monotonic() > self._deadline:
                self._left = -1
                return
            self._others |= accepts(verdict.ports, verdict.candidate, recipe, run)

    def shapes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """By name, the shapes in all runs, in the same order for each name; runs in which all were the same are one."""
        return {name: tuple(shapes[k] for shapes in self._seen) for k, name in enumerate(self.names)}
