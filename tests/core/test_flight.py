"""What is in flight: one stack over all models in step with their tables, and every request in its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lazybatch.core.flight import Flight
from lazybatch.core.lane import Lane
from lazybatch.core.task import Merge
from lazybatch.errors import InvariantError
from tests.core.kit import bare_spec, row
from tests.core.loop_kit import loop_spec


def lane_of(model: str, nodes: int = 3) -> Lane:
    """A lane of a chain."""
    return Lane(bare_spec(model, nodes))


def test_what_meets_is_merged_in_the_newer_ones_place() -> None:
    """Sub-batches of other models stay where they are, and the rows of both are found in what is left."""
    flight, a, b = Flight(), lane_of("a"), lane_of("b")
    first = flight.open(a, [row(0, model="a")], 0, 0)
    first.cursor = 1
    between = flight.open(b, [row(1, model="b")], 0, 5)
    second = flight.open(a, [row(2, model="a")], 0, 7)
    assert flight.merge(a) == (), "they stand at different nodes"
    second.cursor = 1
    assert flight.merge(a) == (Merge("a", first.id, second.id),)
    assert flight.stack == [between, first]
    assert set(flight.sub_batches) == {between.id, first.id}
    assert flight.located == {0: (a, first), 1: (b, between), 2: (a, first)}
    flight.validate((a, b))


def test_rows_that_another_loop_awaits_lie_below_those_they_left() -> None:
    """Whoever has left the last loop lies on top; who will wait for the others of the next one lies below these."""
    for spans, below in ((((0, 1), (2, 3)), True), (((0, 1),), False)):
        flight, lane = Flight(), Lane(loop_spec(4, *spans))
        loop = flight.open(lane, [row(0), row(1)], 0, 0)
        flight.evict(lane, loop, {1})
        left = flight.open(lane, [row(1)], 1, 0, loop)
        assert flight.stack == ([left, loop] if below else [loop, left])
        flight.validate((lane,))


def test_who_leaves_is_nowhere_any_more() -> None:
    """The last row evicted takes the sub-batch with it; rows of one that is over are the caller's to say."""
    flight, lane = Flight(), lane_of("m")
    entry = flight.open(lane, [row(id) for id in range(3)], 0, 0)
    assert flight.evict(lane, entry, {0, 2}) == (0, 2)
    assert flight.located == {1: (lane, entry)}
    assert flight.evict(lane, entry, {1}) == (1,)
    assert (flight.stack, flight.sub_batches, flight.located, len(lane.table)) == ([], {}, {}, 0)
    entry = flight.open(lane, [row(3)], 0, 0)
    flight.remove(lane, entry)
    assert (flight.stack, len(lane.table), set(flight.located)) == ([], 0, {3})
    flight.leave((3,))
    flight.validate((lane,))


def _swap(flight: Flight) -> None:
    flight.stack.reverse()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda flight: flight.stack.clear(), "stack \\[\\] but tables"),
        (_swap, "in another order than tables"),
        (lambda flight: flight.sub_batches.clear(), "but index {}"),
        (lambda flight: flight.located.pop(0), "in two places, or in none"),
        (lambda flight: flight.located.update({0: flight.located[1]}), "located in the wrong sub-batch"),
    ],
)
def test_validate_notices_damage(damage: Callable[[Flight], object], message: str) -> None:
    """Each invariant can fail: a check that never fires proves nothing."""
    flight, lane = Flight(), lane_of("m")
    flight.open(lane, [row(0)], 0, 0).cursor = 1
    flight.open(lane, [row(1)], 0, 0)
    flight.validate((lane,))
    damage(flight)
    with pytest.raises(InvariantError, match=message):
        flight.validate((lane,))
