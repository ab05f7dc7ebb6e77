"""Prediction: what a stack still takes, by hand on small stacks and against the scheduler on any.

Unless said otherwise a model has 4 nodes that take 20 + 5 b ns each: 25 alone, 30 for two rows, 35 for three.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.lane import Lane
from lazybatch.core.policies import Choice, Start, View
from lazybatch.core.policies.prediction import Drain, Running, drain
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason
from tests.core.kit import lane_spec, linear, row, run_node

FAR_NS = {"a": 1e9, "b": 1e9}


def lane(model: str = "a", *, rows_max: int = 16, nodes: int = 4) -> Lane:
    """A lane of the module's table."""
    return Lane(lane_spec(linear(model, nodes, 20, 5), max_batch_size=rows_max))


def at(of: Lane, cursor: int, rows: int, *, signature: Hashable = None, deadlines_ns: tuple[int, ...] = ()) -> Running:
    """A sub-batch at a node, without requests whose tail would count."""
    return Running(of, cursor, rows, signature, (list(deadlines_ns),), ())


def test_nothing_in_flight_takes_nothing() -> None:
    """An empty stack is done."""
    assert drain([], 50, {}, {}) == Drain(0, 0, 0, 0.0, 0.0)


def test_one_sub_batch_runs_to_its_end() -> None:
    """Two rows with two nodes to go: 60, for each of them."""
    drained = drain([at(lane(), 2, 2)], 1_000, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (60, 120)


def test_newcomers_catch_up_and_merge() -> None:
    """One row at node 2, one at node 0: 50 to catch up, then two nodes of 30 together, both rows in the system."""
    a = lane()
    drained = drain([at(a, 2, 1), at(a, 0, 1)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (110, 220)


def test_merging_goes_on_down_the_stack() -> None:
    """Three sub-batches of a row: 25 to the second, 30 to the first, and a last node of 35."""
    a = lane()
    drained = drain([at(a, 3, 1), at(a, 2, 1), at(a, 1, 1)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (90, 270)


def test_sub_batches_at_one_node_merge_at_once() -> None:
    """Nothing is run to meet what is met already."""
    a = lane()
    drained = drain([at(a, 3, 1), at(a, 3, 1)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (30, 60)


def test_another_model_on_top_runs_first_and_everyone_waits() -> None:
    """b takes 100 to its end, then a its 50: two rows for 100, one for 50."""
    drained = drain([at(lane("a"), 2, 1), at(lane("b"), 0, 1)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (150, 250)


def test_merging_reaches_across_another_models_sub_batch() -> None:
    """a, b, a: the upper a meets the lower one and both finish, in 50 and 60, before b gets its 25."""
    a, b = lane("a"), lane("b")
    drained = drain([at(a, 2, 1), at(b, 3, 1), at(a, 0, 1)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (135, 3 * 110 + 25)


def test_only_allowed_numbers_of_rows_merge() -> None:
    """Three rows may not run: the upper one runs to its end in 100, then the lower two in 60."""
    a = Lane(lane_spec(linear("a", 4, 20, 5), max_batch_size=4, allowed_sizes=(1, 2, 4)))
    assert drain([at(a, 2, 2), at(a, 0, 1)], 0, {}, FAR_NS).time_ns == 100 + 60


def test_more_or_less_may_be_left_than_the_table_has() -> None:
    """Of rows in a loop: the lower one, with 500 more, keeps them when the upper one has caught up; alone it would
    have taken 50 and the 500, and with 20 less 30."""
    a = lane()
    assert drain([at(a, 2, 1)._replace(more_ns=500)], 0, {}, FAR_NS).time_ns == 550
    assert drain([at(a, 2, 1)._replace(more_ns=-20)], 0, {}, FAR_NS).time_ns == 30
    assert drain([at(a, 2, 1)._replace(more_ns=500), at(a, 0, 1)], 0, {}, FAR_NS).time_ns == 50 + 60 + 500


def test_other_signatures_do_not_merge() -> None:
    """The upper one runs to its end in 100, then the lower one in 50."""
    a = lane()
    drained = drain([at(a, 2, 1, signature="x"), at(a, 0, 1, signature="y")], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (150, 250)


def test_a_signature_in_between_keeps_others_apart() -> None:
    """x, y, x: only neighbours of a model's stack merge, so each runs for itself."""
    a = lane()
    stack = [at(a, 3, 1, signature="x"), at(a, 2, 1, signature="y"), at(a, 1, 1, signature="x")]
    assert drain(stack, 0, {}, FAR_NS).time_ns == 75 + 50 + 25


def test_without_room_nothing_merges() -> None:
    """Two and two rows where three may run together."""
    a = lane(rows_max=3)
    drained = drain([at(a, 2, 2), at(a, 0, 2)], 0, {}, FAR_NS)
    assert (drained.time_ns, drained.row_time_ns) == (120 + 60, 4 * 120 + 2 * 60)


def test_an_upper_one_that_is_ahead_is_not_met() -> None:
    """After another signature finished between them, the upper one may stand further on: both run for themselves."""
    a = lane()
    assert drain([at(a, 1, 1), at(a, 2, 1)], 0, {}, FAR_NS).time_ns == 50 + 75


@pytest.mark.parametrize(("now", "late"), [(0, 0), (1, 1), (5, 1), (6, 2), (20, 2), (21, 3), (36, 4)])
def test_rows_past_their_deadline_are_late_and_cost_their_models_price(now: int, late: int) -> None:
    """Four rows merge and end together 40 from now; on time to the nanosecond is no miss, in either of the lists."""
    a = lane()
    stack = [at(a, 3, 1, deadlines_ns=(75,)), at(a, 3, 3, deadlines_ns=(40, 45, 60))]
    assert drain(stack, now, {"a": 7.0}, FAR_NS) == Drain(40, 160, late, 7.0 * late, 0.0)


def test_a_model_without_price_has_no_deadlines() -> None:
    """Its rows are never counted as late; the other model's are, at its own price."""
    stack = [at(lane("a"), 3, 1, deadlines_ns=(1,)), at(lane("b"), 3, 1, deadlines_ns=(1,))]
    drained = drain(stack, 0, {"b": 3.0}, FAR_NS)
    assert (drained.late, drained.late_ns) == (1, 3.0)


def test_the_tail_is_what_exceeds_the_bound() -> None:
    """Two nodes of 35 from 1,000 on end at 1,070: rows of age 70, 170 and 370 by then, with a bound of 100."""
    a = lane()
    requests = [row(0, 700, model="a"), row(1, 900, model="a"), row(2, 1_000, model="a")]
    drained = drain([Running(a, 2, 3, None, ([],), requests)], 1_000, {}, {"a": 100.0})
    assert drained.tail_ns == 270 + 70


def test_the_tail_of_merged_rows_counts_at_their_common_end() -> None:
    """Both sub-batches' requests count, in whichever of them they came."""
    a = lane()
    stack = [
        Running(a, 3, 1, None, ([],), [row(0, 100, model="a")]),
        Running(a, 2, 1, None, ([],), [row(1, 150, model="a")]),
    ]
    assert drain(stack, 200, {}, {"a": 60.0}).tail_ns == (255 - 100 - 60) + (255 - 150 - 60)


class Scripted:
    """Starts rows where a script says so, as often as there is room; then only what is needed to go on."""

    needs_table = True

    def __init__(self, script: list[tuple[int, int]]) -> None:
        self.script = script

    def decide(self, view: View, now: int) -> Choice:
        """The next line of the script, if it can be done."""
        number, rows = self.script.pop(0) if self.script else (0, 0)
        lane = view.lanes[number]
        room = min(rows, lane.rows_max - lane.table.rows)
        if len(lane.queue) and room > 0:
            return Start(lane, room, Reason.PREEMPT_CHEAPER)
        if view.active is not None:
            return None
        return Start(next(lane for lane in view.lanes if len(lane.queue)), 1, Reason.START_IDLE)


@settings(max_examples=100, deadline=None)
@given(
    script=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=14),
    slas=st.lists(st.none() | st.integers(0, 500), min_size=16, max_size=16),
    signatures=st.lists(st.sampled_from("xxxy"), min_size=16, max_size=16),
    rows_max=st.integers(1, 6),
    tail_from_ns=st.integers(0, 300),
)
def test_the_prediction_comes_true(
    script: list[tuple[int, int]],
    slas: list[int | None],
    signatures: list[str],
    rows_max: int,
    tail_from_ns: int,
) -> None:
    """Any stack of two models that the scheduler can get into, run to its end without newcomers: its time, the time of
    its rows, the late ones with their price, and the tail are exactly as predicted."""
    specs = [lane_spec(linear(model, 3 + number, 5, 3), max_batch_size=rows_max) for number, model in enumerate("ab")]
    scheduler = Scheduler(specs, Scripted(script))
    for id, (sla, signature) in enumerate(zip(slas, signatures, strict=True)):
        scheduler.add(row(id, id, model="ab"[id % 2], sla=sla, signature=signature))
    requests = {request.id: request for lane in scheduler.lanes for request in lane.queue}
    now = 16
    while not scheduler.idle and (script or scheduler.active is None):
        now, _ = run_node(scheduler, now)
    price_ns, bound_ns = {"a": 3.0}, {"a": float(tail_from_ns), "b": 2.0 * tail_from_ns}
    stack = [
        Running(
            scheduler.lane_of(entry.model),
            entry.cursor,
            len(entry),
            entry.signature,
            (entry.deadlines_ns,),
            entry.requests,
        )
        for entry in scheduler.stack
    ]
    predicted = drain(stack, now, price_ns, bound_ns)
    begun_ns, row_time_ns, late, tail_ns = now, 0, 0, 0.0
    while scheduler.active is not None:
        now, finished = run_node(scheduler, now)
        for request in map(requests.__getitem__, finished):
            row_time_ns += now - begun_ns
            late += request.model == "a" and now > request.deadline_ns
            tail_ns += max(0.0, now - request.arrival_ns - bound_ns[request.model])
    assert predicted == Drain(now - begun_ns, row_time_ns, late, 3.0 * late, pytest.approx(tail_ns))
