"""Algorithm 1 on loops: static nodes once, encoder nodes by known trips, decoder nodes by covered ones."""

from __future__ import annotations

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec, Trips
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_latency import LoopLatency
from lazybatch.core.policies import LazyBatching
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.errors import InvalidInput
from tests.core.conftest import Core
from tests.core.kit import row
from tests.core.loop_kit import loop_spec

GUESS = LengthGuess.of(range(1, 11))
GRAPH = NodeGraph.chain("m", "abcdef", [Loop("encoder", 1, 2), Loop("decoder", 3, 5)])
SINGLE_NS = (1, 10, 100, 1000, 2000, 5)


def test_the_whole_run_of_a_row() -> None:
    """Static nodes, plus encoder nodes times 4 words, plus decoder nodes times the 9 steps that cover 90 %."""
    latency = LoopLatency(GRAPH, SINGLE_NS, (None, GUESS))
    assert latency.left_ns(Request(0, "m", 0, trips=(4, None))) == 1 + 4 * 10 + 100 + 9 * 3000 + 5


def test_progress_is_credited_and_corrects() -> None:
    """In the middle of a body, after any number of iterations, behind the loops."""
    latency = LoopLatency(GRAPH, SINGLE_NS, (None, GUESS))
    request = Request(0, "m", 0, trips=(4, None))
    assert latency.left_ns(request, 1, 3) == 10 + 100 + 9 * 3000 + 5
    assert latency.left_ns(request, 4, 2) == 2000 + 7 * 3000 + 5, "the third of what is now expected to be 10"
    assert latency.left_ns(request, 3, 9) == 3000 + 5, "longer than most: 10 is what is left"
    assert latency.left_ns(request, 5) == 5


def test_without_lengths_the_maximum_stands_for_them() -> None:
    """And where there is none, the iteration that runs is taken to be the last."""
    graph = NodeGraph.chain("m", "ab", [Loop("bounded", 0, 1, trips_max=7), Loop("endless", 1, 2)])
    latency = LoopLatency(graph, (1, 10), (None, None))
    assert latency.left_ns(row(0)) == 7 + 10
    assert latency.left_ns(row(0), 1, 30) == 10
    assert LoopLatency(graph, (1, 10), (GUESS, None)).charged_left([row(0)], 0, {}) == [7], (
        "what covers most is above the maximum"
    )


def test_a_lane_tells_times_of_whole_runs() -> None:
    """By mean trips what a batch takes, by covering ones what a row is charged, by the least ones what is hopeless."""
    table = LatencyTable("m", ("a", "b"), (1, 2), ((10, 20), (3, 4)), ((10, 20), (3, 4)))
    spec = loop_spec(2, (1, 2), table=table, lengths=(LengthGuess.of([2, 4, 9]),), max_batch_size=2, late="drop")
    assert spec.trips(0) == Trips(2, 5, 9)
    scheduler = Scheduler([spec], LazyBatching())
    lane = scheduler.lanes[0]
    assert lane.run_ns(2) == 20 + 5 * 4
    assert lane.single_left_ns == (10 + 9 * 3, 9 * 3, 0)
    assert lane.single_ns(Request(0, "m", 0, trips=(1,))) == 13
    scheduler.add(row(0, sla=10 + 2 * 3))
    assert scheduler.expire(0) == ()
    assert [gone.request for gone in scheduler.expire(1)] == [0]


def test_trips_known_of_a_loop() -> None:
    """Without lengths the maximum, or one; never more than the maximum."""
    assert loop_spec(1, (0, 1)).trips(0) == Trips(1, 1, 1)
    assert loop_spec(1, (0, 1), trips_max=6).trips(0) == Trips(1, 6, 6)
    assert loop_spec(1, (0, 1), trips_max=3, lengths=(LengthGuess.of([2, 9]),)).trips(0) == Trips(2, 3, 3)
    with pytest.raises(InvalidInput, match="'m': lengths of 2 loops, the graph has 1"):
        loop_spec(1, (0, 1), lengths=(None, None))


def test_a_table_without_a_model_of_loops_is_as_it_was(core: Core) -> None:
    """A static graph is not unrolled, and a lane without a table has nothing to unroll."""
    spec = loop_spec(2)
    assert spec.unrolled("mean") is spec.latency
    assert LaneSpec(spec.graph).unrolled("mean") is None


def test_lazy_batching_charges_rows_what_is_left_of_each() -> None:
    """A newcomer whose single run fits beside what is left of those in flight may join; a longer one may not."""
    table = LatencyTable.uniform("m", 1, 0, 10, (1, 4))
    for newcomer, joins in ((2, True), (3, False)):
        scheduler = Scheduler([loop_spec(1, (0, 1), table=table, lengths=(GUESS,))], LazyBatching())
        scheduler.add(Request(0, "m", 0, 70, trips=(5,)))
        now = 0
        for _ in range(2):
            task = scheduler.schedule(now)
            assert task is not None
            now += 10
            scheduler.complete(task, now)
        scheduler.add(Request(1, "m", now, 1000, trips=(newcomer,)))
        task = scheduler.schedule(now)
        assert task is not None
        assert (task.opened == (1,)) is joins, "50 ns until the deadline, 30 of them for what is in flight"


def test_lazy_batching_counts_rows_that_left_the_loop() -> None:
    """A sub-batch behind the loop is charged what lies before it."""
    table = LatencyTable.uniform("m", 2, 0, 20, (1, 4))
    scheduler = Scheduler([loop_spec(2, (0, 1), table=table)], LazyBatching())
    scheduler.add(Request(0, "m", 0, 1000, trips=(1,)))
    task = scheduler.schedule(0)
    assert task is not None
    scheduler.complete(task, 10)
    scheduler.add(Request(1, "m", 10, 39, trips=(1,)))
    task = scheduler.schedule(10)
    assert task is not None
    assert task.opened == (), "20 ns alone and 10 of the other come to 30, one more than it has"
    lost = Scheduler([loop_spec(1, (0, 1), table=table.__class__.uniform("m", 1, 0, 10, (1,)))], LazyBatching())
    lost.add(Request(0, "m", 0, 5, trips=(3,)))
    task = lost.schedule(0)
    assert task is not None
    assert task.reason == "start: already late, the largest batch"


def test_a_lost_row_in_a_loop_vetoes_nothing() -> None:
    """It runs on, and newcomers with time enough may join it."""
    table = LatencyTable.uniform("m", 1, 0, 10, (1, 4))
    scheduler = Scheduler([loop_spec(1, (0, 1), table=table)], LazyBatching())
    scheduler.add(Request(0, "m", 0, 20, trips=(9,)))
    task = scheduler.schedule(0)
    assert task is not None
    scheduler.complete(task, 10)
    scheduler.add(Request(1, "m", 10, 500, trips=(2,)))
    task = scheduler.schedule(10)
    assert task is not None
    assert task.opened == (1,)
