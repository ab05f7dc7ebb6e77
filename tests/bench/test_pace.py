"""The pace that was seen, its clocks, and requests simulated at it, each by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.pace import PIECE_NS, WAITED, Pace, Paced, WorkClock, steady
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.policies import Serial
from lazybatch.core.request import Request
from lazybatch.core.task import Reason, Task
from lazybatch.metrics import Outcome

NODES = LatencyTable("m", ("a", "b"), (1, 2), ((100, 150), (1000, 2000)), ((110, 160), (1100, 2100)))


def _task(node: int, rows: int) -> Task:
    return Task("m", 0, node, rows, rows, (), None, Reason.CONTINUE)


def _pace(table: LatencyTable = NODES) -> Pace:
    """One row came at 0."""
    pace = Pace(table, 2)
    pace.arrived(0, Request(0, "m", 0, 10**9))
    return pace


def test_the_pace_is_what_nodes_took_over_the_table() -> None:
    """Node a took twice its time with one row and with two, node b half: each follows its own; a failed node says
    nothing, and without any the table stands."""
    pace = _pace()
    assert pace.ratio == 1.0
    assert pace.table() == NODES
    pace.dispatched(0, 200, _task(0, 1))
    pace.dispatched(200, 500, _task(0, 2))
    pace.dispatched(500, 10**6, _task(0, 2), failed=True)
    pace.dispatched(10**6, 10**6 + 1000, _task(1, 2))
    assert pace.ratio == pytest.approx(1500 / 2250)
    then = pace.table()
    assert then.median_ns == ((200, 300), (500, 1000))
    assert then.high_ns == ((220, 320), (550, 1050))
    pace.restart()
    assert pace.table() == NODES


def test_the_engines_time_is_the_policys_own() -> None:
    """From the end of one node, or from a row that came when there was nothing to run, to the start of the next: by the
    table 12 and 4, really 24 and 8, while nodes were half as fast again. So the engine took 4/3 of its time for a
    machine of pace 1, and twice its time at that pace; a gap in which the policy waited does not count."""
    pace = Pace(replace(NODES, engine=EngineTime(10, 2, 4, 0, 7, 7)), 2)
    assert pace.seen([0], [None]).table.engine == EngineTime(10, 2, 4, 0), "nothing ran"
    pace.arrived(1010, Request(0, "m", 1000, 10**9))
    pace.dispatched(1024, 1174, _task(0, 1))
    pace.dispatched(1182, 2682, _task(1, 1))
    pace.arrived(9003, Request(1, "m", 9000, 10**9))
    pace.dispatched(9000 + 12 * WAITED + 1, 9000 + 12 * WAITED + 151, _task(0, 1))
    assert pace.ratio == 1.5
    seen = pace.seen([0], [None, None])
    assert seen.engine == EngineTime(13, 3, 5, 0)
    assert seen.table == replace(
        NODES, median_ns=((150, 225), (1500, 3000)), high_ns=((165, 240), (1650, 3150)), engine=EngineTime(20, 4, 8, 0)
    )
    slow = seen._replace(ratio=3.0, engine=EngineTime(1, 1, 1, 1))
    assert slow.under(seen).table.engine == EngineTime(39, 9, 15, 0), "its engine, at the other machine's pace"
    assert slow.under(seen).clock == slow.clock


def test_what_callers_wait_longer() -> None:
    """Of rows that ended both ways, the median of caller's latency less the engine's."""
    pace = Pace(NODES, 2)
    for number in range(4):
        pace.arrived(10, Request(number, "m", 10 * number, 10**9))
    for number in (2, 0, 1):
        pace.exited(100, Request(number, "m", 10 * number, 10**9), Outcome.COMPLETED, 50)
    assert pace.answer_ns([107, 94, 85, 400]) == 5
    assert pace.answer_ns([None, None, None, None]) == 0
    assert pace.answer_ns([107, 94, 85, 400, None]) == 0, "one was refused, and which one is not known"


def test_the_second_clock_stands_for_a_machine_of_constant_pace() -> None:
    """A node of 1000 ns takes 1000 in the first tenth of a second, and 3000 in the next: at the mean pace of 2 the
    first is twice as fast as the table then says, the second half as slow again; between nodes the pace goes on."""
    pace = _pace()
    half, last = PIECE_NS // 1000, PIECE_NS // 3000
    for number in range(half):
        pace.dispatched(1000 * number, 1000 * (number + 1), _task(1, 1))
    for number in range(last):
        pace.dispatched(PIECE_NS + 3000 * number, PIECE_NS + 3000 * (number + 1), _task(1, 1))
    assert pace.ratio == pytest.approx(2 * PIECE_NS / (half + last) / 1000, rel=1e-4)
    clock = pace.clock(0)
    assert clock.work_at(PIECE_NS // 2) == pytest.approx(PIECE_NS * 0.5 * pace.ratio, rel=1e-4)
    assert clock.work_at(PIECE_NS) == pytest.approx(PIECE_NS * pace.ratio, rel=1e-4)
    end_ns = PIECE_NS + 3000 * last
    assert clock.work_at(end_ns) == pytest.approx(end_ns, rel=1e-4)
    assert clock.work_at(end_ns + 500) == pytest.approx(end_ns + 500, rel=1e-4)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**8)), max_size=20), st.integers(0, 3 * 10**9))
def test_both_clocks_agree(nodes: list[tuple[int, int]], at_ns: int) -> None:
    """Whatever ran: there and back is the same moment, but for rounding."""
    pace, now = _pace(), 0
    for number, (idle_ns, took_ns) in enumerate(nodes, start=1):
        pace.arrived(now + idle_ns, Request(number, "m", now + idle_ns, 10**12))
        pace.dispatched(now + idle_ns, now + idle_ns + took_ns, _task(1, 1))
        now += idle_ns + took_ns
    clock = pace.clock(0)
    steepest = max([1.0, *(wall / work for wall, work in _slopes(clock) if work)])
    assert clock.wall_at(clock.work_at(at_ns)) == pytest.approx(at_ns, abs=1 + steepest)


def _slopes(clock: WorkClock) -> list[tuple[float, float]]:
    return [
        (wall[1] - wall[0], work[1] - work[0])
        for wall, work in zip(pairwise(clock.wall_ns), pairwise(clock.work_ns), strict=True)
    ]


def test_the_clocks_start_with_the_first_arrival() -> None:
    """Whoever submits has a clock of his own: it is his reading at the first row's arrival that ties them."""
    pace = Pace(NODES, 2)
    for number, arrival_ns in enumerate((70, 80)):
        pace.arrived(100, Request(number, "m", arrival_ns, 10**9))
    pace.dispatched(100, 1080, _task(1, 1))
    pace.dispatched(1080, 1180, _task(0, 1))
    clock = pace.clock(5)
    assert clock.wall_ns[-1] == 1180 - 70 + 5
    assert [clock.work_at(at_ns) for at_ns in (-3, 5, 1000, 1115, 2300)] == [-3, 5, 1000, 1115, 2300]


def test_a_steady_machine_does_what_the_table_says() -> None:
    """Its clocks agree and nothing is added."""
    table = replace(NODES, engine=EngineTime(10, 2, 4, 0, 7, 7))
    assert steady(table).table == table
    assert steady(NODES).table == replace(NODES, engine=EngineTime())


def test_a_node_that_did_not_run_follows_the_others() -> None:
    """What is not known of it is best guessed from the rest."""
    pace = _pace()
    pace.dispatched(0, 300, _task(0, 1))
    assert pace.table().median_ns == ((300, 450), (3000, 6000))


def test_requests_are_simulated_at_a_pace() -> None:
    """Two rows of 1100 each by the table, and 100 of the engine before each of two nodes, on a machine that is three
    times slower from 500 on. By the second clock they come at 500 and 667 and run until 1800 and 3100; what of that is
    beyond 500 takes three times as long, and callers wait 7 longer. Who finds the queue full has no latency."""
    clock = WorkClock([0.0, 500.0, 30_500.0], [0.0, 500.0, 10_500.0])
    lane = LaneSpec(NodeGraph.chain("m", NODES.nodes), NODES, 2)
    requests = [Request(0, "m", 500, 10**9), Request(1, "m", 1001, 10**9)]
    paced = Paced(clock, NODES, 1.0, EngineTime(100, 0, 100, 0), 7)
    assert paced.simulated_ns(lane, Serial(), requests) == [3 * 1300 + 7, 500 + 3 * 2600 - 1001 + 7]
    dropping = replace(lane, queue_capacity=1)
    crowd = [*requests, Request(2, "m", 1002, 10**9)]
    assert paced.simulated_ns(dropping, Serial(), crowd)[2] is None
