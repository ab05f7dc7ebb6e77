"""The exact course of loops: by hand, and against the scheduler that runs them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Oracle, Start
from lazybatch.core.policies.course import Going, late_rows
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason
from tests.core.kit import Asked, lane_spec, linear
from tests.core.loop_kit import loop_spec

TABLE = LatencyTable(
    "m", ("encode", "step", "head"), (1, 5), ((50, 90), (10, 18), (4, 8)), ((50, 90), (10, 18), (4, 8))
)
"""40 + 10 b, 8 + 2 b and 3 + b ns."""


def going(lane: Lane, cursor: int, *rows: tuple[int, int], signature: str | None = None) -> Going:
    """Rows as (deadline, trips) that stand at a node."""
    requests = [Request(k, "m", 0, deadline, signature, trips=(n,)) for k, (deadline, n) in enumerate(rows)]
    entry = SubBatch(0, "m", requests)
    entry.cursor = cursor
    lane.table.push(entry)
    return Going.of(lane, entry)


def lane(**options: Any) -> Lane:
    """An encoder, a loop of one step, a head."""
    return Lane(loop_spec(3, (1, 2), table=TABLE, max_batch_size=4, **options))


def test_rows_leave_the_loop_and_finish_one_after_another() -> None:
    """Encode 60, step 12, head 4 for the first; 2 more steps of 10 and its head for the second."""
    one = lane()
    for deadline, late in ((76, 0), (75, 1)):
        assert late_rows([going(one, 0, (deadline, 1), (999, 3))], 0) == late
    for deadline, late in ((100, 0), (99, 1)):
        assert late_rows([going(one, 0, (999, 1), (deadline, 3))], 0) == late


def test_newcomers_meet_those_in_the_loop() -> None:
    """The newcomer encodes for 50 and steps with the other for 12; both have the head together, 5."""
    one = lane()
    for deadline, late in ((67, 0), (66, 2)):
        stack = [going(one, 1, (deadline, 1)), going(one, 0, (deadline, 1))]
        assert late_rows(stack, 0) == late


def test_where_they_may_not_meet_the_newcomer_goes_first() -> None:
    """Another signature, or equal iterations only: the newcomer runs to its end, then the other."""
    one = lane()
    for deadline, late in ((50 + 10 + 4 + 10 + 4, 0), (50 + 10 + 4 + 10 + 3, 1)):
        stack = [going(one, 1, (deadline, 1)), going(one, 0, (999, 1), signature="y")]
        assert late_rows(stack, 0) == late
    same = lane(same_iteration=True)
    assert late_rows([going(same, 1, (78, 1)), going(same, 0, (999, 1))], 0) == 0
    assert late_rows([going(same, 1, (77, 1)), going(same, 0, (999, 1))], 0) == 1


def test_a_body_of_several_nodes() -> None:
    """The newcomer meets the other in the middle of the body and goes on with it from there."""
    table = LatencyTable.uniform("m", 2, 20, 0, (1, 4))
    one = Lane(loop_spec(2, (0, 2), table=table, max_batch_size=4))
    for deadline, late in ((10 + 10 + 20, 0), (39, 2)):
        assert late_rows([going(one, 1, (deadline, 2)), going(one, 0, (deadline, 2))], 0) == late


def test_rows_that_another_loop_follows_wait_for_the_others() -> None:
    """Steps of 3, 2 and 1 rows, 16 + 14 + 12: who is done waits for the next, and all go on together for 16."""
    two = Lane(loop_spec(2, (0, 1), (1, 2), table=linear("m", nodes=2, fixed=10, per_row=2), max_batch_size=4))
    for deadline, late in ((58, 0), (57, 3)):
        requests = [Request(k, "m", 0, deadline, trips=(k + 1, 1)) for k in range(3)]
        assert late_rows([Going.newcomers(two, requests, [False] * 3)], 0) == late


def test_the_oracle_follows_loops_beside_static_models() -> None:
    """A static model's row is admitted while the rows in the loop can spare its 100 ns, and not a nanosecond later."""
    for deadline, joins in ((50 + 10 + 100 + 10 + 4, True), (50 + 10 + 100 + 10 + 3, False)):
        static = lane_spec(linear("static", nodes=1))
        scheduler = Scheduler([loop_spec(3, (1, 2), table=TABLE), static], Oracle())
        scheduler.add(Request(0, "m", 0, deadline, trips=(2,)))
        for now in (0, 50):
            task = scheduler.schedule(now)
            assert task is not None
            scheduler.complete(task, now + 10)
        scheduler.add(Request(1, "static", 60))
        task = scheduler.schedule(60)
        assert task is not None
        assert (task.model == "static") is joins


@st.composite
def stories(draw: st.DrawFn) -> tuple[LaneSpec, list[tuple[int, int]], list[tuple[int, int]], int]:
    """A lane; rows that start first and rows that come later, as trips in each of two loops; how many turns before."""
    nodes = draw(st.integers(1, 5))
    cuts = sorted(draw(st.sets(st.integers(0, nodes), min_size=min(2, nodes), max_size=4)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    sizes = () if spans else draw(st.sampled_from([(), (1, 2, 6)]))
    spec = loop_spec(
        nodes,
        *spans,
        table=linear("m", nodes=nodes, fixed=draw(st.integers(1, 9)), per_row=draw(st.integers(1, 9))),
        max_batch_size=6,
        allowed_sizes=sizes,
    )
    rows = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)
    return spec, draw(rows), draw(rows), draw(st.integers(0, 12))


@settings(max_examples=150, deadline=None)
@given(story=stories(), deadline=st.integers(1, 400))
def test_the_course_is_what_the_scheduler_does(
    story: tuple[LaneSpec, list[tuple[int, int]], list[tuple[int, int]], int], deadline: int
) -> None:
    """With all trips known, as many rows are late as the prediction said when newcomers were sent after the others."""
    spec, first, later, turns = story
    choice: list[Any] = [None]
    scheduler = Scheduler([spec], Asked(lambda view, now: choice[0]))
    lane = scheduler.lanes[0]
    assert lane.times_ns is not None
    ends: dict[int, int] = {}
    now = 0

    def turn() -> None:
        nonlocal now
        task = scheduler.schedule(now)
        assert task is not None
        assert lane.times_ns is not None
        now += lane.times_ns[task.node][task.padded_rows]
        ends.update(dict.fromkeys(scheduler.complete(task, now).finished, now))

    for k, trips in enumerate(first):
        scheduler.add(Request(k, "m", 0, deadline, trips=trips[: len(lane.loops)]))
    choice[0] = Start(lane, len(first), Reason.START_IDLE)
    for _ in range(turns + 1):
        if not scheduler.idle:
            turn()
    gone = sum(end > deadline for end in ends.values())
    newcomers = [Request(9 + k, "m", now, deadline, trips=trips[: len(lane.loops)]) for k, trips in enumerate(later)]
    stack = [Going.of(lane, entry) for entry in scheduler.stack] if lane.loops else []
    predicted = late_rows([*stack, Going.newcomers(lane, newcomers, [False] * len(newcomers))], now)
    for request in newcomers:
        scheduler.add(request)
    choice[0] = Start(lane, len(newcomers), Reason.START_IDLE)
    turn()
    while not scheduler.idle:
        turn()
    if lane.loops:
        assert sum(end > deadline for end in ends.values()) == gone + predicted


@pytest.mark.parametrize("deadline", [40, 60])
def test_lost_newcomers_count_for_nothing(deadline: int) -> None:
    """The deadline of a row that cannot make it even alone is not one that is missed."""
    one = lane()
    rows = [Request(0, "m", 0, deadline, trips=(1,))]
    assert late_rows([Going.newcomers(one, rows, [True])], 0) == 0
    assert late_rows([Going.newcomers(one, rows, [False])], 0) == 1
