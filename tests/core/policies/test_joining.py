"""Who is let into a running loop: thresholds, places, deadlines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_control import NEVER, LoopControl
from lazybatch.core.policies import joining
from lazybatch.core.policies.base import Choice, Start, Stay
from lazybatch.core.policies.joining import Joining
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason
from tests.core.kit import row
from tests.core.loop_kit import loop_spec

TABLE = LatencyTable.uniform("m", 2, 200, 0, (1, 4))
"""100 ns for each node, however many rows."""
RATE = 1e-3


def thresholds(*needed: int) -> Joining:
    """A control of one loop with the same thresholds at every rate."""
    return Joining({"m": (LoopControl("m", "loop0", (RATE,), (needed,), (0.0,)),)})


def standing(*requests: Request, steps: int = 0, signature: str | None = None) -> tuple[Lane, SubBatch]:
    """A lane whose loop (node 1, behind node 0) runs these rows, after so many steps."""
    lane = Lane(loop_spec(2, (1, 2), table=TABLE, max_batch_size=4, lengths=(LengthGuess.of([4, 6]),)))
    top = SubBatch(0, "m", list(requests))
    top.cursor = 1
    lane.table.push(top)
    assert top.progress is not None
    for _ in range(steps):
        top.progress.step(())
    return lane, top


def decided(joining: Joining, lane: Lane, top: SubBatch, *waiting: Request, at_once: bool = False) -> Choice:
    """What is decided with these rows waiting, at time 0."""
    for request in waiting:
        lane.queue.push(request)
    return joining.decide(lane, top, RATE, 0, at_once=at_once)


def test_newcomers_come_in_once_enough_wait() -> None:
    """Two are needed with one running: one waits, two are let in together."""
    lane, top = standing(row(0))
    assert decided(thresholds(1, 2, 3), lane, top, row(1)) == Stay(Reason.STAY_LOOP)
    assert decided(thresholds(1, 2, 3), lane, top, row(2)) == Start(lane, 2, Reason.JOIN_LOOP)


def test_no_more_than_there_is_room_for() -> None:
    """Of five that wait only the three that fit beside the one running are let in."""
    lane, top = standing(row(0))
    assert decided(thresholds(1, 1), lane, top, *(row(id) for id in range(1, 6))) == Start(lane, 3, Reason.JOIN_LOOP)


def test_a_more_urgent_row_needs_no_company() -> None:
    """Where those who wait outrank those who run, the threshold is one."""
    lane, top = standing(row(0))
    assert decided(thresholds(1, NEVER), lane, top, row(1), at_once=True) == Start(lane, 1, Reason.JOIN_LOOP)


@pytest.mark.parametrize("why", ["nobody waits", "another signature", "no room", "another node", "no control"])
def test_where_nobody_can_come_in_nothing_is_said(why: str) -> None:
    """None: the decision is not about joining."""
    joining = thresholds(*[1] * 4)
    lane, top = standing(*(row(id) for id in range(4 if why == "no room" else 1)))
    waiting = [] if why == "nobody waits" else [row(9, signature="y" if why == "another signature" else None)]
    if why == "another node":
        top.cursor, top.progress = 0, None
    if why == "no control":
        joining = Joining({"m": (None,)})
    assert decided(joining, lane, top, *waiting) is None


def test_only_rows_of_the_heads_signature_count() -> None:
    """Two wait, one of which could not join: one is too few."""
    lane, top = standing(row(0))
    assert decided(thresholds(1, 2), lane, top, row(1), row(2, signature="y")) == Stay(Reason.STAY_LOOP)


def test_a_deadline_in_the_loop_keeps_newcomers_out() -> None:
    """After two iterations three more are expected (300 ns); newcomers would add 100 ns, too late for 350."""
    for deadline, choice in ((350, Stay), (400, Start), (250, Start)):
        lane, top = standing(Request(0, "m", 0, deadline), steps=2)
        assert type(decided(thresholds(1, 1), lane, top, row(1))) is choice, (
            "a row that is late in any case vetoes nothing"
        )


def test_a_deadline_in_the_queue_brings_newcomers_in() -> None:
    """A newcomer takes 100 + 5 x 100 ns. Waiting for a second one, expected in 1000 ns, would make it late."""
    for deadline, choice in ((600, Start), (5000, Stay), (500, Stay)):
        lane, top = standing(row(0))
        assert type(decided(thresholds(1, 2), lane, top, Request(1, "m", 0, deadline))) is choice


def test_nobody_waits_for_ever() -> None:
    """With one running nobody is let in; it is expected to be gone after 500 ns: what that makes late counts."""
    for deadline, choice in ((5000, Stay), (1000, Start), (500, Stay)):
        lane, top = standing(row(0))
        assert type(decided(thresholds(1, NEVER), lane, top, Request(1, "m", 0, deadline))) is choice


def test_rows_that_leave_lower_the_threshold() -> None:
    """Three run, four must wait. Once two are gone, after 300 ns, one is enough; that is sooner than others come."""
    running = [Request(k, "m", 0, UNBOUNDED_NS, trips=(trips,)) for k, trips in enumerate((2, 3, 9))]
    for deadline, choice in ((600, Start), (800, Start), (900, Stay)):
        lane, top = standing(*running)
        newcomer = Request(9, "m", 0, deadline, trips=(5,))
        assert type(decided(thresholds(1, 1, 3, 4), lane, top, newcomer)) is choice


def test_waiting_is_no_longer_than_for_all_of_them() -> None:
    """Beside the one that runs another is parked, and stays: after 500 ns is the best that can be said."""
    for deadline, choice in ((5000, Stay), (1000, Start)):
        lane, top = standing(row(0))
        lane.table.push(SubBatch(1, "m", [row(1)]))
        assert type(decided(thresholds(1, NEVER, NEVER), lane, top, Request(9, "m", 0, deadline))) is choice


def test_on_the_way_to_the_next_loop_its_rows_must_have_left_that() -> None:
    """Nobody is let in while one is in flight, which has 300 ns to go here and 500 in the loop that follows."""
    guess = LengthGuess.of([4, 6])
    for deadline, choice in ((1800, Stay), (1799, Start)):
        lane = Lane(loop_spec(2, (0, 1), (1, 2), table=TABLE, max_batch_size=4, lengths=(guess, guess)))
        top = SubBatch(0, "m", [row(0)])
        lane.table.push(top)
        assert top.progress is not None
        for _ in range(2):
            top.progress.step(())
        control = LoopControl("m", "loop1", (RATE,), ((1, NEVER),), (0.0,))
        joining = Joining({"m": (control, control)})
        assert type(decided(joining, lane, top, Request(9, "m", 0, deadline))) is choice


def test_trips_that_are_known_are_followed() -> None:
    """The newcomer is known to make a single trip: its deadline stands even if it waits."""
    lane, top = standing(row(0))
    assert type(decided(thresholds(1, 2), lane, top, Request(1, "m", 0, 1200, trips=(1,)))) is Stay


def two_loops(*running: Request, steps: int = 0) -> tuple[Lane, SubBatch]:
    """Rows in the first of two loops of one node each, 100 ns an iteration, after so many steps."""
    guess = LengthGuess.of([10])
    lane = Lane(loop_spec(2, (0, 1), (1, 2), table=TABLE, max_batch_size=4, lengths=(guess, guess)))
    top = SubBatch(0, "m", list(running))
    lane.table.push(top)
    assert top.progress is not None
    for _ in range(steps):
        top.progress.step(())
    return lane, top


@pytest.mark.parametrize(("steps", "needed"), [(1, 1), (3, 1), (4, 2), (7, 3), (9, 3)])
def test_in_a_loop_on_the_way_only_the_rest_counts(steps: int, needed: int) -> None:
    """Three are needed for the whole way of 10 iterations; newcomers who share some of it hold up others for less."""
    control = LoopControl("m", "loop1", (RATE,), ((1, 3),), (0.0,))
    for waiting in (1, 2, 3):
        lane, top = two_loops(row(0), steps=steps)
        found = decided(Joining({"m": (control, control)}), lane, top, *[row(k) for k in range(1, waiting + 1)])
        assert (type(found) is Start) == (waiting >= needed), waiting


def test_before_a_loop_that_cannot_be_joined_everybody_may_come_in() -> None:
    """Where the next loop takes rows at equal iterations only, the loop before it is the last chance to join them."""
    control = LoopControl("m", "loop0", (RATE,), ((1, NEVER),), (0.0,))
    lane, top = two_loops(row(0), steps=9)
    assert decided(Joining({"m": (control, None)}), lane, top, row(1)) == Start(lane, 1, Reason.JOIN_LOOP)


def test_a_model_without_a_control_is_served_by_the_rule_of_thumb() -> None:
    """Beside one running row one is enough; a loop of equal iterations lets nobody in."""
    lane, top = standing(row(0))
    assert decided(Joining({}), lane, top, row(1)) == Start(lane, 1, Reason.JOIN_LOOP)
    same = Lane(loop_spec(2, (1, 2), table=TABLE, max_batch_size=4, same_iteration=True))
    entry = SubBatch(0, "m", [row(0)])
    entry.cursor = 1
    same.table.push(entry)
    assert decided(Joining({}), same, entry, row(1)) is None


def test_where_deadlines_are_missed_anyway_thresholds_decide() -> None:
    """The newcomer would be saved by coming in now; but one of those who run is late already, so company is awaited."""
    for behind, choice in ((0, Start), (1, Stay)):
        lane, top = standing(Request(0, "m", 0, 10**6 if not behind else -1))
        assert type(decided(thresholds(1, 2), lane, top, Request(1, "m", 0, 600))) is choice


@pytest.mark.parametrize(("steps", "told", "joins"), [(5, None, False), (6, None, True), (0, 6, False), (0, 7, True)])
def test_rows_longer_than_all_seen_are_not_waited_for(steps: int, told: int | None, joins: bool) -> None:
    """Never beside a row by the threshold. But lengths of 4 and 6 were seen, and one that has 6 iterations behind it,
    or tells 7, is none of those: as long as it has more left than the way of 100 ns costs it, a newcomer comes in."""
    lane, top = standing(Request(0, "m", 0, UNBOUNDED_NS, trips=() if told is None else (told,)), steps=steps)
    assert type(decided(thresholds(1, NEVER), lane, top, row(1))) is (Start if joins else Stay)


@pytest.mark.parametrize(("running", "trips", "joins"), [(1, 1, True), (2, 1, False), (2, 2, True)])
def test_without_lengths_what_rows_tell_is_left(running: int, trips: int, joins: bool) -> None:
    """Way and iteration take 200. A newcomer who waits for the end loses 200 per iteration, each of those who run 200
    if it does not: two of them, with one iteration left, are not held up."""
    lane = Lane(loop_spec(2, (1, 2), table=LatencyTable.uniform("m", 2, 400, 0, (1, 4)), max_batch_size=4))
    top = SubBatch(0, "m", [Request(id, "m", 0, UNBOUNDED_NS, trips=(trips,)) for id in range(running)])
    top.cursor = 1
    lane.table.push(top)
    assert type(decided(thresholds(1, NEVER, NEVER), lane, top, row(9))) is (Start if joins else Stay)


def test_on_the_way_to_another_loop_nobody_outlasts() -> None:
    """Whoever is in flight waits behind the first loop for those who come in: there the next loop's threshold counts,
    however long the rows are."""
    table = LatencyTable.uniform("m", 3, 300, 0, (1, 4))
    lane = Lane(loop_spec(3, (1, 2), (2, 3), table=table, max_batch_size=4))
    top = SubBatch(0, "m", [Request(0, "m", 0, UNBOUNDED_NS, trips=(99, 2))])
    top.cursor = 1
    lane.table.push(top)
    never = (LoopControl("m", "loop", (RATE,), ((1, NEVER, NEVER),), (0.0,)),) * 2
    assert type(decided(Joining({"m": never}), lane, top, row(9))) is Stay


def test_there_is_room_for_all_rows_that_fit() -> None:
    """In whole batches two rows are better than four, as the way costs more than twice as much; in a running loop
    newcomers come in small groups, and may fill it."""
    times_ns = ((10, 10, 900), (100, 100, 100))
    table = LatencyTable("m", TABLE.nodes, (1, 2, 4), times_ns, times_ns)
    lane = Lane(loop_spec(2, (1, 2), table=table, max_batch_size=4, lengths=(LengthGuess.of([2]),)))
    assert lane.rows_best == 2
    top = SubBatch(0, "m", [row(0), row(1)])
    top.cursor = 1
    lane.table.push(top)
    assert decided(thresholds(1, 1, 1, 1), lane, top, row(2)) == Start(lane, 1, Reason.JOIN_LOOP)


def slow(*requests: Request) -> tuple[Lane, SubBatch]:
    """The same model at another scheduler, where what lies before the loop takes ten times as long."""
    times_ns = ((1000, 1000), (100, 100))
    table = LatencyTable("m", TABLE.nodes, (1, 4), times_ns, times_ns)
    lane = Lane(loop_spec(2, (1, 2), table=table, max_batch_size=4, lengths=(LengthGuess.of([4, 6]),)))
    top = SubBatch(0, "m", list(requests))
    top.cursor = 1
    lane.table.push(top)
    return lane, top


def test_two_schedulers_lanes_of_one_name_keep_their_own_times() -> None:
    """Coming in now saves a newcomer where the way takes 100 ns, not where it takes 1000; whichever was seen first."""
    for order in (((standing, Start), (slow, Stay)), ((slow, Stay), (standing, Start))):
        joining = thresholds(1, 2)
        for made, choice in order:
            lane, top = made(row(0))
            assert type(decided(joining, lane, top, Request(1, "m", 0, 600))) is choice


def test_two_schedulers_lanes_of_one_name_have_their_own_rule_of_thumb() -> None:
    """Beside two rows one is enough where the way takes 100 ns; where it takes 1000, two must wait."""
    joining = Joining({})
    for made, choice in ((standing, Start), (slow, Stay), (standing, Start)):
        lane, top = made(row(0), row(1))
        assert type(decided(joining, lane, top, row(2))) is choice


SPANS = st.integers(0, 3_000)
ROWS = st.tuples(SPANS, st.none() | st.integers(1, 9))


@given(
    times_ns=st.lists(st.integers(1, 300), min_size=2, max_size=2).map(tuple),
    running=st.lists(ROWS, min_size=1, max_size=3),
    waiting=st.lists(ROWS, min_size=1, max_size=4),
    steps=st.integers(0, 3),
    needed=st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_deadlines_that_nobody_can_miss_change_nothing(
    times_ns: tuple[int, int],
    running: list[tuple[int, int | None]],
    waiting: list[tuple[int, int | None]],
    steps: int,
    needed: list[int],
) -> None:
    """Whether all are in time anyway is asked to save time: with the question always denied, and every row followed,
    the decision is the same, also by tables on which more rows are faster."""

    def decision() -> tuple[type, int]:
        table = LatencyTable("m", ("a", "b"), (1, 4), (times_ns,) * 2, (times_ns,) * 2)
        lane = Lane(loop_spec(2, (1, 2), table=table, max_batch_size=4, lengths=(LengthGuess.of([4, 6]),)))
        there = [
            Request(id, "m", 0, sla, trips=() if trips is None else (trips + steps,))
            for id, (sla, trips) in enumerate(running)
        ]
        top = SubBatch(0, "m", there)
        top.cursor = 1
        lane.table.push(top)
        assert top.progress is not None
        for _ in range(steps):
            top.progress.step(())
        for id, (sla, trips) in enumerate(waiting, start=10):
            lane.queue.push(Request(id, "m", 0, sla, trips=() if trips is None else (trips,)))
        choice = thresholds(*needed).decide(lane, top, RATE, 0)
        return type(choice), choice.rows if isinstance(choice, Start) else 0

    quick = decision()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining._Flight, "in_time", lambda *_: False)
        assert decision() == quick
