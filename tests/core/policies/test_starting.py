"""Starting: the control's advice alone where nobody can be late, and what may start together.

A model has 2 nodes that take 45 + 5 b ns each, at most 4 rows: 100 alone, 130 for four.
"""

from __future__ import annotations

from functools import cache

import pytest

from lazybatch.core.control import Control
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Start
from lazybatch.core.policies.prospect import Prospect
from lazybatch.core.policies.starting import Starting, crowded_rows, is_alone, startable
from lazybatch.core.task import Reason
from lazybatch.solver import solve
from tests.core.kit import lane_spec, linear, row


@cache
def control(model: str) -> Control:
    """The solved control of the module's table."""
    return solve(linear(model, 2, 45, 5, 4), 4)


def made(slas: list[int | None], *, model: str = "m", late: str = "serve") -> Lane:
    """A lane in which rows of these targets wait since 0."""
    lane = Lane(lane_spec(linear(model, 2, 45, 5, 4), max_batch_size=4, late=late))
    for k, sla in enumerate(slas):
        lane.queue.push(row(k, model=model, sla=sla))
    return lane


def looking(*lanes: Lane, sla: int | None = 1_000) -> Prospect:
    """A prospect that has seen requests at a low load, and looks at these lanes at 0."""
    prospect = Prospect({lane.model: control(lane.model) for lane in lanes})
    for lane in lanes:
        for k in range(20, 0, -1):
            prospect.arrived(row(k, -1_000 * k, model=lane.model, sla=sla))
    prospect.look(lanes, 0)
    return prospect


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the starts that were weighed."""
    found, cost_ns = list[int](), Prospect.cost_ns

    def noted(self: Prospect, of: Lane, rows: int, *rest: int, passing: bool) -> tuple[float, int]:
        found.append(rows)
        return cost_ns(self, of, rows, *rest, passing=passing)

    monkeypatch.setattr(Prospect, "cost_ns", noted)
    return found


@pytest.mark.parametrize(("sla", "alternatives"), [(None, []), (260, []), (259, [4]), (130, [4]), (129, [4, 3, 2, 1])])
def test_nothing_is_weighed_where_nobody_can_be_late(
    sla: int | None, alternatives: list[int], weighed: list[int]
) -> None:
    """Four rows take 130. With a target of twice that, or none, the advised start is the choice without a word. With
    less it is weighed: as long as it makes nobody late, alone; else besides what is in time, half and one."""
    lane = made([sla] * 4)
    start = Starting(looking(lane)).start_or_wait(lane, 0, draining=False)
    assert type(start) is Start
    assert weighed == alternatives
    full = len(alternatives) < 2
    assert (start.rows == 4, start.reason == Reason.START_FULL) == (full, full)


def test_of_several_lanes_the_cheapest_start_is_taken(weighed: list[int]) -> None:
    """One row of one model against a full batch of another that takes little longer: one start of each is weighed."""
    first, second = made([None], model="a"), made([None] * 4, model="b")
    start = Starting(looking(first, second)).start([first, second], 0)
    assert (start.lane, start.rows, weighed) == (second, 4, [1, 4])


@pytest.mark.parametrize("draining", [True, False])
def test_at_a_low_load_the_only_lane_with_work_starts_at_once(draining: bool) -> None:
    """Whether or not somebody may still come."""
    lane = made([None])
    choice = Starting(looking(lane)).start_or_wait(lane, 0, draining=draining)
    assert choice == Start(lane, 1, Reason.START_IDLE)


def test_rows_that_cannot_join_start_alone() -> None:
    """A model whose rows never join, and a queue of two signatures."""
    lane = Lane(lane_spec(linear("m", 2, 45, 5, 4), joinable=False))
    lane.queue.push(row(0))
    assert (is_alone(lane, 0), startable(lane, 4, 0, alone=True)) == (True, 1)
    mixed = made([])
    assert not is_alone(mixed, 0), "nothing waits"
    for k, signature in enumerate("xyx"):
        mixed.queue.push(row(k, signature=signature))
    assert (is_alone(mixed, 0), startable(mixed, 4, 0, alone=False)) == (False, 2)


@pytest.mark.parametrize(("waiting", "sla", "rows"), [(4, 1_000, 0), (5, 1_000, 4), (5, 220, 2), (2, 120, 1)])
def test_where_some_will_be_dropped_batches_take_half_the_target(waiting: int, sla: int, rows: int) -> None:
    """Four rows take 130, two 110; only once more wait than are taken, and only where late rows are dropped."""
    lane = made([sla] * waiting, late="drop")
    assert crowded_rows(lane, looking(lane, sla=sla)) == rows
    assert crowded_rows(made([sla] * waiting), looking(lane, sla=sla)) == 0
