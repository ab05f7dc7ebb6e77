"""How far each row of a sub-batch is in a loop, as arrays in the order of its rows.

Owns: `Tally`.
Must not know: tensors of the model, the scheduler's own account (`core.progress`), what ends a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lazybatch.executors.tape import Tape

NEVER = int(np.iinfo(np.int64).max)
"""A number of iterations that no row reaches."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Tally:
    """Arrays with one entry per row, kept as one table, so that rows move with all their numbers at once.

    position: iterations the row has behind it; the number of its last one where it is over. trips: after so many it is
    done without saying so. last: the number of the last iteration it may make, done or not.
    over: it made its last iteration, and is only run along. fresh: it did not begin its first.
    places: where on the tape it keeps what it collects, and what it is given per iteration.
    """

    __slots__ = (
        "_flags",
        "_found",
        "_numbers",
        "_spots",
        "any_fresh",
        "any_over",
        "fresh",
        "last",
        "over",
        "places",
        "position",
        "tape",
        "trips",
    )

    position: Ints
    trips: Ints
    last: Ints
    places: Ints
    _spots: Ints
    over: Flags
    fresh: Flags

    def __init__(self, trips: Ints, tape: Tape, most: int = NEVER) -> None:
        rows = len(trips)
        numbers = np.zeros((5, rows), np.int64)
        numbers[1] = trips
        np.minimum(trips, most, out=numbers[2])
        numbers[2] -= 1
        numbers[3] = tape.begin(rows)
        flags = np.zeros((2, rows), np.bool_)
        flags[1] = True
        self.tape = tape
        self.any_over = False
        self.any_fresh = True
        self._set(numbers, flags)

    def _set(self, numbers: Ints, flags: Flags) -> None:
        self._numbers, self._flags = numbers, flags
        self.position, self.trips, self.last, self.places, self._spots = numbers
        self.over, self.fresh = flags
        self._found = False

    def __len__(self) -> int:
        return len(self.position)

    @property
    def all_over(self) -> bool:
        """Whether every row made its last iteration."""
        return self.any_over and np.count_nonzero(self.over) == len(self.over)

    @property
    def all_fresh(self) -> bool:
        """Whether no row made its first iteration."""
        return self.any_fresh and np.count_nonzero(self.fresh) == len(self.fresh)

    def began(self) -> None:
        """All rows are in their first iteration, or behind it."""
        self.fresh[:] = False
        self.any_fresh = False

    def find_spots(self) -> Ints:
        """Where on the tape the present position of every row lies, until rows go on or move. Ask in every iteration,
        or never: spots are counted on with positions, and only rows that come to a new page are given one."""
        if not self._found:
            turned = self.tape.firsts(self.position)
            if len(turned):
                self._spots[turned] = self.tape.claim(self.places[turned], self.position[turned])
            self._found = True
        return self._spots

    def end(self, over: Flags | None = None) -> None:
        """One more iteration is behind all rows that are not over; ``over``: those whose last one it was."""
        self._found = False
        if over is None and not self.any_over:
            self.position += 1
            self._spots += 1
            return
        if over is not None:
            self.over |= over
            self.any_over = True
        going = ~self.over
        self.position += going
        self._spots += going

    def append(self, other: Tally) -> None:
        """The rows of another sub-batch behind these."""
        self.any_over |= other.any_over
        self.any_fresh |= other.any_fresh
        self._set(
            np.concatenate((self._numbers, other._numbers), 1),
            np.concatenate((self._flags, other._flags), 1),
        )

    def remove(self, gone: Sequence[int], order: Sequence[int]) -> None:
        """Those rows are gone, and with them what they kept on the tape; the others go on in this order."""
        places = self.places[gone]
        self.keep(order)
        self.tape.end(places)

    def keep(self, order: Sequence[int]) -> None:
        """These rows, in this order."""
        index = np.asarray(order)
        self._set(self._numbers.take(index, 1), self._flags.take(index, 1))
        self.any_over = self.any_over and bool(np.count_nonzero(self.over))
        self.any_fresh = self.any_fresh and bool(np.count_nonzero(self.fresh))
