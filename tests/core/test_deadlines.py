"""Order by deadline: the earliest of those still waiting, whatever came and left, in bounded memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.deadlines import DeadlineOrder
from lazybatch.core.request import Request
from lazybatch.errors import InvariantError
from tests.core.kit import row


def following(*requests: Request) -> tuple[dict[int, Request], DeadlineOrder]:
    """Live requests, and their order."""
    live = {request.id: request for request in requests}
    order = DeadlineOrder(live)
    for request in requests:
        order.add(request)
    return live, order


def test_the_earliest_deadline_comes_first_whatever_the_order_of_arrival() -> None:
    """Those that left are passed over; one without a deadline is never found."""
    live, order = following(row(0, sla=30), row(1, sla=10), row(2), row(3, sla=20))
    found = []
    while (request := order.earliest()) is not None:
        found.append(request.id)
        del live[request.id]
    assert found == [1, 3, 0]
    assert set(live) == {2}


def test_a_row_that_changed_its_priority_is_still_the_same() -> None:
    """What is found is the request as it is now."""
    live, order = following(row(0, sla=30))
    live[0] = replace(live[0], priority=-1)
    assert order.earliest() is live[0]


def test_a_row_that_came_back_under_its_id_is_another_one() -> None:
    """With another signature or deadline it is not what was followed, until it is added itself."""
    live, order = following(row(0, sla=30))
    live[0] = row(0, sla=30, signature="other")
    assert order.earliest() is None
    live[0] = row(0, sla=40)
    order.add(live[0])
    order.add(live[0])
    assert order.earliest() is live[0]
    del live[0]
    assert order.earliest() is None


def test_memory_is_bounded_by_what_lives() -> None:
    """Ten thousand rows that are served long before their deadlines leave no more than a constant behind."""
    live, order = following(row(0, sla=1 << 40))
    for id in range(1, 10_000):
        live[id] = row(id, sla=1 << 30)
        order.add(live[id])
        assert len(order) <= 64 + 2 * len(live) + 1
        del live[id]
    assert order.earliest() is live[0]
    order.validate(live.values())


@given(slas=st.lists(st.integers(0, 20), max_size=200), leave=st.sets(st.integers(0, 199)))
def test_any_rows_in_any_order(slas: list[int], leave: set[int]) -> None:
    """After any departures the earliest of the living is found, and the order is whole."""
    live, order = following(*(row(id, sla=sla) for id, sla in enumerate(slas)))
    for id in leave & set(live):
        del live[id]
    order.validate(live.values())
    expected = min((request.deadline_ns for request in live.values()), default=None)
    found = order.earliest()
    assert (None if found is None else found.deadline_ns) == expected


def test_validate_notices_damage() -> None:
    """A row that would never be found, and a heap that is none."""
    live, order = following(row(0, sla=10), row(1, sla=20))
    order._heap.pop()
    with pytest.raises(InvariantError, match=r"requests \[1\] would never be found"):
        order.validate(live.values())
    live, order = following(row(0, sla=10), row(1, sla=20))
    order._heap.reverse()
    with pytest.raises(InvariantError, match="place 1 of the heap is out of order"):
        order.validate(live.values())
