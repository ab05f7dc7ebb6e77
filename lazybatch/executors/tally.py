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


_POSITION, _SPOTS, _PACE, _TRIPS, _LAST, _PLACES = range(6)
"""Which row of the table holds what; those that go on with every iteration come first."""
_MOVING = 2


class Tally:
    """One table with a column per row, so that rows move with all their numbers at once.

    position: iterations the row has behind it; the number of its last one where it is over. trips: after so many it is
    done without saying so. last: the number of the last iteration it may make, done or not; `NEVER` where it is over.
    over: it made its last iteration, and is only run along. fresh: it did not begin its first; asked for where there
    are `news`. How many are: overs, news.
    places: where on the tape it keeps what it collects, and what it is given per iteration.

    What happens to no row for some iterations yet (its last one, a new page of the tape) is counted down for all of
    them together, and looked at only when it may be due. Nothing is kept that the table tells: right after a node of
    the model everything that is touched comes from far away in memory.
    """

    __slots__ = ("_ends_in", "_numbers", "_turns_in", "news", "overs", "tape")

    def __init__(self, trips: Ints, tape: Tape, most: int = NEVER) -> None:
        rows = len(trips)
        self._numbers = numbers = np.zeros((6, rows), np.int64)
        numbers[_PACE] = 1
        numbers[_TRIPS] = trips
        last = numbers[_LAST]
        np.minimum(trips, most, out=last)
        last -= 1
        numbers[_PLACES] = tape.begin(rows)
        self.tape = tape
        self.overs = 0
        self.news = rows
        self._ends_in = int(last[last.argmin()])
        self._turns_in = 0

    def __len__(self) -> int:
        return self._numbers.shape[1]

    @property
    def position(self) -> Ints:
        """Of each row."""
        return self._numbers[_POSITION]

    @property
    def trips(self) -> Ints:
        """Of each row."""
        return self._numbers[_TRIPS]

    @property
    def last(self) -> Ints:
        """Of each row."""
        return self._numbers[_LAST]

    @property
    def places(self) -> Ints:
        """Of each row."""
        return self._numbers[_PLACES]

    @property
    def over(self) -> Flags:
        """Whether each row made its last iteration."""
        return self._numbers[_PACE] == 0

    @property
    def fresh(self) -> Flags:
        """Whether each row did not begin its first iteration; before an iteration, and where there are such rows."""
        return (self.position == 0) & (self._numbers[_PACE] != 0)

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
        spots = self._numbers[_SPOTS]
        if self._turns_in <= 0:
            numbers = self._numbers
            pace = numbers[_PACE] if self.overs else None
            self._turns_in = self.tape.follow(numbers[_PLACES], numbers[_POSITION], spots, pace)
        return spots

    def ending(self, flags: Flags | None) -> NDArray[np.intp] | None:
        """Which rows make their last iteration now, those over apart: their flag says so, or they may make no more.
        None for nobody. Ask in every iteration, right before `end`."""
        if flags is not None and self.overs:
            flags = flags & ~self.over
        if self._ends_in > 0:
            self._ends_in -= 1
            if flags is None:
                return None
        else:
            left = self.last - self.position
            least = int(left[left.argmin()])
            if least <= 0:
                due = left <= 0
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
        self._turns_in -= 1
        if leaving is not None:
            numbers[_LAST][leaving] = NEVER
            numbers[_PACE][leaving] = 0
            self.overs += len(leaving)
        moving = numbers[:_MOVING]
        moving += numbers[_PACE] if self.overs else 1

    def append(self, other: Tally) -> None:
        """The rows of another sub-batch behind these."""
        self.overs += other.overs
        self.news += other.news
        self._ends_in = min(self._ends_in, other._ends_in)
        self._turns_in = min(self._turns_in, other._turns_in)
        self._numbers = np.concatenate((self._numbers, other._numbers), 1)

    def remove(self, gone: Sequence[int], order: Sequence[int]) -> None:
        """Those rows are gone, and with them what they kept on the tape; the others go on in this order."""
        places = self.places[gone]
        self.keep(order)
        self.tape.end(places)

    def keep(self, order: Sequence[int]) -> None:
        """These rows, in this order."""
        news = self.fresh if self.news else None
        index = np.asarray(order)
        self._numbers = numbers = self._numbers.take(index, 1)
        if self.overs:
            self.overs = len(order) - int(np.count_nonzero(numbers[_PACE]))
        if news is not None:
            self.news = int(np.count_nonzero(news[index]))
