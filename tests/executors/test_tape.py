"""Tapes: rows of any length side by side, each at its own position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.tape import PAGE, Array, Tape


def sequence(tape: Tape, name: str, place: int, length: int) -> Array:
    """The first steps of one row."""
    ((steps,),) = tape.sequences((name,), np.array([place]), np.array([length]))
    return steps


@given(st.lists(st.integers(1, 3 * PAGE + 1), min_size=1, max_size=12), st.integers(0, 2**16))
def test_steps_are_kept_for_their_row(lengths: list[int], seed: int) -> None:
    """Rows start when they like, write at their own positions, end when they are done; what they wrote is theirs."""
    tape, rng = Tape(), np.random.default_rng(seed)
    waiting = list(enumerate(lengths))
    live: dict[int, tuple[int, int, int]] = {}
    while waiting or live:
        if waiting and (not live or rng.random() < 0.5):
            row, length = waiting.pop()
            live[row] = (int(tape.begin(1)[0]), 0, length)
        places = np.array([place for place, _, _ in live.values()])
        positions = np.array([position for _, position, _ in live.values()])
        values = np.array([(row, position) for row, (_, position, _) in live.items()], np.float32)
        spots = tape.claim(places, positions)
        tape.write("y", spots, values)
        assert np.array_equal(tape.read("y", tape.spots(places, positions)), values)
        for row, (place, position, length) in list(live.items()):
            live[row] = (place, position + 1, length)
            if position + 1 == length:
                kept = sequence(tape, "y", place, length)
                assert np.array_equal(kept, [(row, k) for k in range(length)])
                tape.end(np.array([place]))
                del live[row]
    assert tape.rows == 0


def test_what_is_given_at_once_is_read_step_by_step() -> None:
    """A recorded sequence and a collected one share a row's pages."""
    tape = Tape()
    first, second = tape.begin(2).tolist()
    given_steps = np.arange(2 * PAGE + 3)[:, None] * np.ones(2)
    tape.record("x", first, given_steps)
    tape.record("x", second, -given_steps[:5])
    for position in range(5):
        spots = tape.claim(np.array([first, second]), np.array([position, position]))
        assert tape.read("x", spots)[:, 0].tolist() == [position, -position]
        tape.write("y", spots, np.array([10 + position, 20 + position]))
    assert sequence(tape, "y", first, 5).tolist() == [10, 11, 12, 13, 14]
    assert sequence(tape, "x", first, len(given_steps)).tolist() == given_steps.tolist()
    assert tape.nbytes > 0


@given(st.lists(st.integers(1, 3 * PAGE + 1), min_size=1, max_size=5))
def test_rows_that_end_together_are_read_at_once(lengths: list[int]) -> None:
    """Each gets what it would get alone, of every track, in arrays that share no memory."""
    tape = Tape()
    places = tape.begin(len(lengths))
    for place, length in zip(places.tolist(), lengths, strict=True):
        tape.record("x", place, place * 1000.0 + np.arange(length))
        tape.record("y", place, np.full((length, 2), place))
    both = tape.sequences(("x", "y"), places, np.array(lengths))
    for name, kept in zip("xy", both, strict=True):
        for place, length, steps in zip(places.tolist(), lengths, kept, strict=True):
            assert np.array_equal(steps, sequence(tape, name, place, length))
            assert steps.base is None


def test_pages_serve_again() -> None:
    """Rows that come and go, one after the other, take no more memory than one."""
    tape = Tape()
    sizes = set()
    for _ in range(20):
        places = tape.begin(1)
        tape.record("x", int(places[0]), np.zeros((PAGE, 4)))
        sizes.add(tape.nbytes)
        tape.end(places)
    assert len(sizes) == 1


def test_a_step_of_another_shape_is_refused() -> None:
    """Steps of one track have one shape; NumPy would stretch one over the other."""
    tape = Tape()
    places = tape.begin(1)
    tape.write("y", tape.claim(places, np.array([0])), np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"\[1\], others have \[3\]"):
        tape.write("y", tape.claim(places, np.array([1])), np.zeros((1, 1)))
