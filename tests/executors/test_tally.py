"""Tallies: positions of rows that move, join, end and stay."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.rows import Kept
from lazybatch.executors.tally import NEVER, Tally
from lazybatch.executors.tape import PAGE, Tape


def tally(*trips: int) -> Tally:
    """Rows that make so many iterations."""
    return Tally(np.array(trips, np.int64), Tape())


def test_positions_grow_until_rows_are_over() -> None:
    """A row that is over stays at its last iteration while its mates go on, and is not over twice."""
    rows = tally(2, 4, 4)
    rows.end()
    rows.end(np.array([0]))
    assert rows.position.tolist() == [1, 2, 2]
    assert rows.over.tolist() == [True, False, False]
    assert rows.overs == 1
    assert not rows.all_over
    rows.end(np.array([2]))
    assert rows.position.tolist() == [1, 3, 2]
    rows.end()
    assert rows.position.tolist() == [1, 4, 2]
    rows.end(np.array([1]))
    assert rows.position.tolist() == [1, 4, 2]
    assert rows.all_over


@given(st.data())
def test_who_ends_is_found_in_the_iteration_in_which_he_does(data: st.DataObject) -> None:
    """By flag or by number, once each, while rows come and go: as if every row were looked at in every iteration."""
    tape, flagged = Tape(), data.draw(st.booleans())
    counts = st.lists(st.integers(1, 7), min_size=1, max_size=4)
    rows = Tally(np.array(data.draw(counts), np.int64), tape, 6)
    for _ in range(12):
        if data.draw(st.booleans()):
            rows.append(Tally(np.array(data.draw(counts), np.int64), tape, 6))
        if len(rows) > 1 and data.draw(st.booleans()):
            rows.keep(Kept.of(range(data.draw(st.integers(1, len(rows))))))
        flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        due = rows.position + 1 >= np.minimum(rows.trips, 6)
        expected = np.flatnonzero(~rows.over & (due | flags if flagged else due)).tolist()
        leaving = rows.ending(flags if flagged else None)
        assert ([] if leaving is None else leaving.tolist()) == expected
        rows.end(leaving)
        assert rows.overs == rows.over.sum()


def test_spots_follow_positions() -> None:
    """Found once and counted on, anew on each page, also when rows move, join and are over."""
    rows = tally(*[3 * PAGE] * 4)
    for step in range(2 * PAGE + 3):
        assert rows.find_spots().tolist() == rows.tape.spots(rows.places, rows.position).tolist()
        if step == PAGE + 5:
            rows.keep(Kept.of([3, 2]))
        if step == PAGE + 7:
            rows.append(Tally(np.array([PAGE, 2 * PAGE]), rows.tape))
            rows.find_spots()
            rows.end(np.array([2]))
            continue
        if step == PAGE + 9:
            rows.keep(Kept.of([0, 1]))
        rows.end(np.array([0]) if step == 2 * PAGE else None)


def test_rows_that_are_gone_give_their_places_back() -> None:
    """The others keep theirs; the next row is given one that is free."""
    rows = tally(3, 3, 3)
    places = rows.places.tolist()
    rows.remove([1], Kept.of([0, 2]))
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
    old.end(np.array([0]))
    assert new.all_fresh
    assert not old.news
    places = [*old.places.tolist(), *new.places.tolist()]
    old.append(new)
    assert old.news == 1
    assert not old.all_fresh
    assert len(old) == 3
    old.keep(Kept.of([2, 1]))
    assert old.trips.tolist() == [7, 6]
    assert old.position.tolist() == [0, 1]
    assert old.fresh.tolist() == [True, False]
    assert old.places.tolist() == [places[2], places[1]]
    assert not old.overs
