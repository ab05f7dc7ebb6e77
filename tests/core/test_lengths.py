"""Guesses of how often a loop runs: coverage, correction by progress, input sizes."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.lengths import GROUP_LEAST, GROUPS_MAX, LengthGuess
from lazybatch.errors import InvalidInput


def test_nine_of_ten_lengths_are_covered() -> None:
    """The paper's choice: 90 % of what was seen lies within the number that every row is charged for."""
    guess = LengthGuess.of(range(1, 101))
    assert guess.covering(1) == 90
    assert guess.mean_trips == guess.groups[0].mean[0] == 50.5
    assert guess.groups[0].shortest == 1
    assert LengthGuess.of(range(1, 101), coverage=0.16).covering(1) == 16


def test_progress_corrects_the_guess() -> None:
    """A row that did not end with the short ones is one of the long ones; one longer than all ends with the next."""
    guess = LengthGuess.of([5] * 9 + [30])
    mean = guess.groups[0].mean
    assert (guess.covering(1), mean[0]) == (5, 7.5)
    assert (guess.covering(1, 5), mean[5]) == (30, 30.0)
    assert (guess.covering(1, 30), len(mean)) == (31, 30)


def test_longer_inputs_have_longer_outputs() -> None:
    """Lengths are kept by input size; sizes never seen are judged by the nearest group above, or the last."""
    sizes = [10] * 60 + [20] * 60
    guess = LengthGuess.of([5] * 60 + [50] * 60, sizes)
    assert [guess.covering(size) for size in (1, 10, 11, 20, 99)] == [5, 5, 50, 50, 50]
    assert [group.shortest for group in guess.groups] == [5, 50]
    assert guess.mean_trips == 27.5


def test_the_longest_seen_is_that_of_the_group() -> None:
    """Of short inputs and of long ones, whatever the others made."""
    guess = LengthGuess.of([3] * 50 + [9] * 50, [1] * 50 + [2] * 50)
    assert [guess.longest(size) for size in (1, 2, 7)] == [3, 9, 9]


def test_groups_are_large_enough_to_say_something() -> None:
    """A few lengths of one size are put with their neighbours, at the end too."""
    many = GROUP_LEAST
    guess = LengthGuess.of([1] * 3 + [2] * many + [3] * many + [4], [1] * 3 + [2] * many + [3] * many + [9])
    assert [(group.size_max, group.rows) for group in guess.groups] == [(2, many + 3), (9, many + 1)]
    assert guess.covering(9) == 3
    assert len(LengthGuess.of([1] * 2000, range(2000)).groups) <= GROUPS_MAX


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60), behind=st.integers(0, 45))
def test_what_is_left_is_judged_among_those_still_possible(lengths: list[int], behind: int) -> None:
    """At any progress: at least the share of the longer rows is covered, not by more than needed, and the mean fits."""
    guess = LengthGuess.of(lengths, coverage=0.8)
    longer = sorted(length for length in lengths if length > behind)
    if not longer:
        assert guess.covering(7, behind) == behind + 1
        return
    assert guess.covering(7, behind) == longer[ceil(0.8 * len(longer)) - 1]
    assert guess.groups[0].mean[behind] == pytest.approx(sum(longer) / len(longer))


@pytest.mark.parametrize(
    ("lengths", "sizes", "coverage", "message"),
    [
        ([], [], 0.9, "at least one is needed"),
        ([3, 0], [], 0.9, "each must be at least 1"),
        ([3, 1_000_001], [], 0.9, "at most 1000000 iterations can be characterised, got 1000001"),
        ([3, 2], [1], 0.9, "1 input sizes for 2 lengths"),
        ([3], [], 0.0, "coverage must be above 0"),
        ([3], [], 1.1, "coverage must be above 0"),
    ],
)
def test_what_says_nothing_is_refused(lengths: list[int], sizes: list[int], coverage: float, message: str) -> None:
    """The error says what was expected."""
    with pytest.raises(InvalidInput, match=message):
        LengthGuess.of(lengths, sizes, coverage=coverage)
