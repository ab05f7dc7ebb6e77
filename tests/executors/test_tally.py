"""Tallies: positions of rows that move, join, end and stay."""

from __future__ import annotations

import numpy as np

from lazybatch.executors.tally import NEVER, Tally
from lazybatch.executors.tape import PAGE, Tape


def tally(*trips: int) -> Tally:
    """Rows that make so many iterations."""
    return Tally(np.array(trips, np.int64), Tape())


def test_positions_grow_until_rows_are_over() -> None:
    """A row that is over stays at its last iteration while its mates go on, and is not over twice."""
    rows = tally(2, 4, 4)
    rows.end()
    rows.end(rows.position >= rows.last)
    assert rows.position.tolist() == [1, 2, 2]
    assert rows.over.tolist() == [True, False, False]
    assert rows.any_over
    assert not rows.all_over
    rows.end(np.array([False, False, True]))
    assert rows.position.tolist() == [1, 3, 2]
    rows.end()
    assert rows.position.tolist() == [1, 4, 2]
    rows.end(np.array([False, True, False]))
    assert rows.position.tolist() == [1, 4, 2]
    assert rows.all_over


def test_spots_follow_positions() -> None:
    """Found once and counted on, anew on each page, also when rows move, join and are over."""
    rows = tally(*[3 * PAGE] * 4)
    for step in range(2 * PAGE + 3):
        assert rows.find_spots().tolist() == rows.tape.spots(rows.places, rows.position).tolist()
        if step == PAGE + 5:
            rows.keep([3, 2])
        if step == PAGE + 7:
            rows.append(Tally(np.array([PAGE, 2 * PAGE]), rows.tape))
            rows.find_spots()
            rows.end(np.array([False, False, True, False]))
            continue
        if step == PAGE + 9:
            rows.keep([0, 1])
        rows.end(np.array([True, False]) if step == 2 * PAGE else None)


def test_rows_that_are_gone_give_their_places_back() -> None:
    """The others keep theirs; the next row is given one that is free."""
    rows = tally(3, 3, 3)
    places = rows.places.tolist()
    rows.remove([1], [0, 2])
    assert rows.places.tolist() == [places[0], places[2]]
    assert rows.tape.rows == 2
    assert rows.tape.begin(1).tolist() == [places[1]]


def test_the_most_a_row_may_make() -> None:
    """Trips that are known, or the loop's maximum, whichever comes first."""
    assert Tally(np.array([2, 9, NEVER], np.int64), Tape(), 5).last.tolist() == [1, 4, 4]


def test_rows_move_with_all_that_is_known_of_them() -> None:
    """Appended behind others, thinned out and turned round, each keeps its numbers."""
    tape = Tape()
    old, new = Tally(np.array([5, 6], np.int64), tape), Tally(np.array([7], np.int64), tape)
    old.began()
    old.end(np.array([True, False]))
    assert new.all_fresh
    assert not old.any_fresh
    places = [*old.places.tolist(), *new.places.tolist()]
    old.append(new)
    assert old.any_fresh
    assert not old.all_fresh
    assert len(old) == 3
    old.keep([2, 1])
    assert old.trips.tolist() == [7, 6]
    assert old.position.tolist() == [0, 1]
    assert old.fresh.tolist() == [True, False]
    assert old.places.tolist() == [places[2], places[1]]
    assert not old.any_over
