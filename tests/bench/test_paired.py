"""Runs side by side: the pace that was seen, whose turn it is, and how sure a median is, each by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paired import Pace, in_turns, middle
from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.task import Reason, Task

TABLE = LatencyTable(
    "m", ("a", "b"), (1, 2), ((100, 150), (1000, 2000)), ((110, 160), (1100, 2100)), engine=EngineTime(10, 2, 4, 0)
)


def _task(node: int, rows: int) -> Task:
    return Task("m", 0, node, rows, rows, (), None, Reason.CONTINUE)


def test_the_pace_is_what_nodes_took_over_the_table() -> None:
    """Node a took twice its time with one row and with two, node b half: each node's times follow, the engine's follow
    all; a failed node says nothing, and without any the table stands."""
    pace = Pace(TABLE, 2)
    assert pace.ratio == 1.0
    assert pace.table() == TABLE
    pace.dispatched(0, 200, _task(0, 1))
    pace.dispatched(500, 800, _task(0, 2))
    pace.dispatched(0, 10**6, _task(0, 2), failed=True)
    pace.dispatched(0, 1000, _task(1, 2))
    assert pace.ratio == pytest.approx(1500 / 2250)
    then = pace.table()
    assert then.median_ns == ((200, 300), (500, 1000))
    assert then.high_ns == ((220, 320), (550, 1050))
    assert then.engine == EngineTime(7, 1, 3, 0)
    pace.restart()
    assert pace.table() == TABLE


def test_a_node_that_did_not_run_follows_the_others() -> None:
    """What is not known of it is best guessed from the rest."""
    pace = Pace(TABLE, 2)
    pace.dispatched(0, 300, _task(0, 1))
    assert pace.table().median_ns == ((300, 450), (3000, 6000))


def test_everyone_has_every_turn() -> None:
    """Over twice as many rounds as there are policies each has each place twice, and is as often before as behind each
    neighbour."""
    names = ["a", "b", "c", "d"]
    rounds = [in_turns(names, number) for number in range(8)]
    assert all(Counter(order[place] for order in rounds) == dict.fromkeys(names, 2) for place in range(4))
    follows = Counter(pair for order in rounds for pair in pairwise(order))
    assert all(follows[pair] == follows[pair[::-1]] for pair in follows)


@pytest.mark.parametrize(("count", "place"), [(1, 0), (4, 0), (5, 0), (7, 0), (8, 1), (12, 2), (20, 5)])
def test_the_interval_is_the_sign_tests(count: int, place: int) -> None:
    """Places by the tables of the sign test at 90 %: of eight values the second and seventh, of twenty the sixth."""
    found = middle(list(range(count, 0, -1)))
    assert (found.low, found.high) == (1 + place, count - place)
    assert found.median == (1 + count) / 2


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_a_median_lies_in_its_interval(values: list[float]) -> None:
    """Whatever the values are, and in whatever order."""
    found = middle(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
