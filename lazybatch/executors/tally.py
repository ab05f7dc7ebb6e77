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
    """Arrays with one entry per row.

    position: iterations the row has behind it; the number of its last one where it is over. trips: after so many it is
    done without saying so. last: the number of the last iteration it may make, done or not.
    over: it made its last iteration, and is only run along. fresh: it did not begin its first.
    places: where on the tape it keeps what it collects, and what it is given per iteration; spots: those of the present
    position, None where they have to be found first.
    """

    __slots__ = ("any_fresh", "any_over", "fresh", "last", "over", "places", "position", "spots", "tape", "trips")

    def __init__(self, trips: Ints, tape: Tape, most: int = NEVER) -> None:
        self.trips = trips
        self.last: Ints = np.minimum(trips, most) - 1
        self.tape = tape
        self.places: Ints = tape.begin(len(trips))
        self.spots: Ints | None = None
        self.position: Ints = np.zeros(len(trips), np.int64)
        self.over: Flags = np.zeros(len(trips), np.bool_)
        self.fresh: Flags = np.ones(len(trips), np.bool_)
        self.any_over = False
        self.any_fresh = True

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
        """Where on the tape the present position of every row lies; room is made where there is none yet."""
        if self.spots is None or self.tape.turns_page(self.position):
            self.spots = self.tape.claim(self.places, self.position)
        return self.spots

    def end(self, over: Flags | None = None) -> None:
        """One more iteration is behind all rows that are not over; ``over``: those whose last one it was."""
        if over is None and not self.any_over:
            self.position += 1
            if self.spots is not None:
                self.spots += 1
            return
        self.spots = None
        if over is not None:
            self.over = self.over | over
            self.any_over = True
        self.position += ~self.over

    def append(self, other: Tally) -> None:
        """The rows of another sub-batch behind these."""
        self.spots = None
        self.position = np.concatenate((self.position, other.position))
        self.trips = np.concatenate((self.trips, other.trips))
        self.last = np.concatenate((self.last, other.last))
        self.places = np.concatenate((self.places, other.places))
        self.over = np.concatenate((self.over, other.over))
        self.fresh = np.concatenate((self.fresh, other.fresh))
        self.any_over |= other.any_over
        self.any_fresh |= other.any_fresh

    def keep(self, order: Sequence[int]) -> None:
        """These rows, in this order."""
        index = np.asarray(order)
        self.spots = None
        self.position, self.trips, self.last = self.position[index], self.trips[index], self.last[index]
        self.places, self.over, self.fresh = self.places[index], self.over[index], self.fresh[index]
        self.any_over = bool(self.over.any())
        self.any_fresh = bool(self.fresh.any())
