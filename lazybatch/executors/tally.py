"""How far each row of a sub-batch is in a loop, as arrays in the order of its rows.

Owns: `Tally`.
Must not know: tensors of the model, the scheduler's own account (`core.progress`), what ends a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lazybatch.executors.rows import Kept
from lazybatch.executors.tape import Tape

NEVER = int(np.iinfo(np.int64).max)
"""A number of iterations that no row reaches."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_POSITION, _SPOTS, _PACE, _TRIPS, _LAST, _PLACES = range(6)
"""Which line of the table holds what."""
_OVER = np.array(NEVER), np.array(0)
"""What `_LAST` and `_PACE` are of rows that are over. Arrays: right behind a node of the model, with nothing at hand in
the processor's caches, NumPy takes several times as long for Python's own numbers."""


class Tally:
    """One table with a column per row, so that rows move with all their numbers at once.

    position: iterations the row has behind it; the number of its last one where it is over. trips: after so many it is
    done without saying so. last: the number of the last iteration it may make, done or not; `NEVER` where it is over.
    over: it made its last iteration, and is only run along. fresh: it did not begin its first; to be asked for
    before an iteration, where there are `news`. How many are: overs, news.
    places: where on the tape it keeps what it collects, and what it is given per iteration.

    due: whether any of those found to be `ending` may make no more; where not, all flags said so.

    What happens to no row for some iterations yet (its last one, a new page of the tape) is counted down for all of
    them together, and looked at only when it may be due.
    """

    __slots__ = ("_ends_in", "_numbers", "_table", "_turns_in", "due", "news", "overs", "tape")

    def __init__(self, trips: Ints, tape: Tape, most: int = NEVER) -> None:
        rows = len(trips)
        self._table = self._numbers = numbers = np.zeros((6, rows), np.int64)
        numbers[_PACE] = 1
        numbers[_TRIPS] = trips
        last = numbers[_LAST]
        np.minimum(trips, most, out=last)
        last -= 1
        numbers[_PLACES] = tape.begin(rows)
        self.tape = tape
        self.overs = 0
        self.news = rows
        self.due = False
        self._ends_in = int(last[last.argmin()])
        self._turns_in = 0

    def __len__(self) -> int:
        return self._numbers.shape[1]

    @property
    def position(self) -> Ints:
        """See the class."""
        position: Ints = self._numbers[_POSITION]
        return position

    @property
    def trips(self) -> Ints:
        """See the class."""
        trips: Ints = self._numbers[_TRIPS]
        return trips

    @property
    def last(self) -> Ints:
        """See the class."""
        last: Ints = self._numbers[_LAST]
        return last

    @property
    def places(self) -> Ints:
        """See the class."""
        places: Ints = self._numbers[_PLACES]
        return places

    @property
    def over(self) -> Flags:
        """See the class."""
        over: Flags = self._numbers[_PACE] == 0
        return over

    @property
    def fresh(self) -> Flags:
        """See the class."""
        fresh: Flags = (self.position == 0) & ~self.over
        return fresh

    @property
    def all_over(self) -> bool:
        """Whether every row made its last iteration."""
        return self.overs == len(self)

    @property
    def all_fresh(self) -> bool:
        """Whether no row made its first iteration."""
        return self.news == len(self)

    def began(self) -> None:
        """All rows are in their first iteration, or behind it."""
        self.news = 0

    def find_spots(self) -> Ints:
        """Where on the tape the present position of every row lies, until rows go on or move. Ask in every iteration,
        or never: spots are counted on with positions, and only rows that come to a new page are given one."""
        numbers = self._numbers
        spots: Ints = numbers[_SPOTS]
        if self._turns_in <= 0:
            pace = numbers[_PACE] if self.overs else None
            self._turns_in = self.tape.follow(numbers[_PLACES], numbers[_POSITION], spots, pace)
        return spots

    def ending(self, flags: Flags | None) -> NDArray[np.intp] | None:
        """Which rows make their last iteration now, those over apart: their flag says so, or they may make no more.
        None for nobody. Ask in every iteration, right before `end`."""
        if flags is not None and self.overs:
            flags = np.logical_and(flags, self._numbers[_PACE])
        self.due = False
        if self._ends_in > 0:
            self._ends_in -= 1
            if flags is None:
                return None
        else:
            left = self.last - self.position
            least = int(left[left.argmin()])
            if least <= 0:
                self.due, due = True, left <= 0
                flags = due if flags is None else flags | due
            elif flags is None:
                self._ends_in = least - 1
                return None
            else:
                self._ends_in = least - 1
        leaving: NDArray[np.intp] = flags.nonzero()[0]
        return leaving if len(leaving) else None

    def end(self, leaving: NDArray[np.intp] | None = None) -> None:
        """One more iteration is behind all rows that are not over; ``leaving``: those whose last one it was."""
        numbers = self._numbers
        pace = numbers[_PACE]
        self._turns_in -= 1
        if leaving is not None:
            numbers[_LAST][leaving], pace[leaving] = _OVER
            self.overs += len(leaving)
        for moving in (numbers[_POSITION], numbers[_SPOTS]):
            np.add(moving, pace, moving)

    def append(self, other: Tally) -> None:
        """The rows of another sub-batch behind these."""
        self.overs += other.overs
        self.news += other.news
        self._ends_in = min(self._ends_in, other._ends_in)
        self._turns_in = min(self._turns_in, other._turns_in)
        have, total = len(self), len(self) + len(other)
        if total > self._table.shape[1]:
            self._table = np.empty((6, 2 * total), np.int64)
            self._table[:, :have] = self._numbers
        self._table[:, have:total] = other._numbers
        self._numbers = self._table[:, :total]

    def remove(self, gone: Sequence[int], kept: Kept) -> None:
        """Those rows are gone, and with them what they kept on the tape; the others go on as they are kept."""
        places = self.places[gone]
        self.keep(kept)
        self.tape.end(places)

    def keep(self, kept: Kept) -> None:
        """These rows, in this order."""
        if kept.moved:
            for line in self._table:
                line[kept.into] = line[kept.out_of]
        self._numbers = self._table[:, : kept.rows]
        if self.overs:
            self.overs = kept.rows - int(np.count_nonzero(self._numbers[_PACE]))
        if self.news:
            self.news = int(np.count_nonzero(self.fresh))
