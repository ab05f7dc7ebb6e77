"""How often a loop will run: guesses from lengths that were seen.

Owns: `LengthGuess`, the characterisation of one loop: for any input size and any progress, how many iterations cover a
given share of rows, and how many are to be expected.
Must not know: where the lengths came from, latencies, requests.

The paper chooses one number, `dec_timesteps`, that covers N = 90 % of the output lengths seen. Two things make it
sharper. Longer inputs have longer outputs, so lengths are kept by groups of input sizes. And a row that has already
made 20 iterations is none of those that end after 10: what is left is judged among the lengths still possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import NamedTuple

from lazybatch.errors import InvalidInput

COVERAGE = 0.9
LENGTH_MAX = 1_000_000
"""The longest row that is taken for one: guesses are tabulated by iteration."""
GROUPS_MAX = 8
GROUP_LEAST = 50
"""Lengths that a group of input sizes must hold: with fewer a high quantile is chance."""


class Group(NamedTuple):
    """Lengths of rows of similar input size.

    size_max: the largest input size of the group. rows: how many it holds. shortest: the least length. covering, mean:
    by iterations behind a row, the trips in total that cover the share of rows, and those to be expected, among the
    rows that long. longer: by iterations, the share of rows that make more.
    """

    size_max: int
    rows: int
    shortest: int
    covering: tuple[int, ...]
    mean: tuple[float, ...]
    longer: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LengthGuess:
    """The characterisation of one loop. Make it with `of`.

    coverage: share of rows that `covering` covers. seen: how many lengths it rests on. groups: by input size.
    """

    coverage: float
    seen: int
    groups: tuple[Group, ...] = field(repr=False)

    @classmethod
    def of(cls, lengths: Sequence[int], sizes: Sequence[int] = (), *, coverage: float = COVERAGE) -> LengthGuess:
        """From the lengths of rows seen, and their input sizes where these are known.

        Raises `InvalidInput` for no lengths, lengths below 1 or above `LENGTH_MAX`, another number of sizes, a coverage
        not within (0, 1].
        """
        if not lengths or min(lengths) < 1:
            raise InvalidInput(f"lengths: at least one is needed, and each must be at least 1, got {lengths!r:.80}")
        if max(lengths) > LENGTH_MAX:
            raise InvalidInput(f"lengths: at most {LENGTH_MAX} iterations can be characterised, got {max(lengths)}")
        if sizes and len(sizes) != len(lengths):
            raise InvalidInput(f"lengths: {len(sizes)} input sizes for {len(lengths)} lengths")
        if not 0 < coverage <= 1:
            raise InvalidInput(f"lengths: the coverage must be above 0 and at most 1, got {coverage}")
        pairs = sorted(zip(sizes or [1] * len(lengths), lengths, strict=True))
        least = max(GROUP_LEAST, ceil(len(pairs) / GROUPS_MAX))
        groups: list[tuple[int, list[int]]] = []
        for size, of_size in groupby(pairs, key=lambda pair: pair[0]):
            found = [length for _, length in of_size]
            if groups and len(groups[-1][1]) < least:
                found = groups.pop()[1] + found
            groups.append((size, found))
        if len(groups) > 1 and len(groups[-1][1]) < GROUP_LEAST:
            size, few = groups.pop()
            groups[-1] = (size, groups[-1][1] + few)
        return cls(coverage, len(pairs), tuple(_group(size, sorted(found), coverage) for size, found in groups))

    def place(self, size: int) -> int:
        """Which of the groups rows of this input size belong to."""
        groups = self.groups
        if len(groups) == 1:
            return 0
        return min(bisect_left(groups, size, key=lambda group: group.size_max), len(groups) - 1)

    def covering(self, size: int, behind: int = 0) -> int:
        """Trips in total that cover the share of rows of this input size which have so many behind them.

        A row longer than all that were seen is taken to end with its next iteration.
        """
        covering = self.groups[self.place(size)].covering
        return covering[behind] if behind < len(covering) else behind + 1

    def longest(self, size: int) -> int:
        """The most trips seen of rows of this input size."""
        return len(self.groups[self.place(size)].covering)

    def longer(self) -> list[float]:
        """By iterations, the share of all rows seen that make more, up to the longest."""
        groups, most = self.groups, max(len(group.longer) for group in self.groups)
        return [sum(g.rows * g.longer[n] for g in groups if n < len(g.longer)) / self.seen for n in range(most)]

    @property
    def mean_trips(self) -> float:
        """The mean over all rows seen."""
        return sum(group.mean[0] * group.rows for group in self.groups) / self.seen


def _group(size: int, lengths: list[int], coverage: float) -> Group:
    """Tables by iterations behind, up to the longest: quantile and mean of the lengths beyond."""
    covering: list[int] = []
    mean: list[float] = []
    longer: list[float] = []
    first, total = 0, sum(lengths)
    for behind in range(lengths[-1]):
        while lengths[first] <= behind:
            total -= lengths[first]
            first += 1
        left = len(lengths) - first
        covering.append(lengths[first + ceil(coverage * left) - 1])
        mean.append(total / left)
        longer.append(left / len(lengths))
    return Group(size, len(lengths), lengths[0], tuple(covering), tuple(mean), tuple(longer))
