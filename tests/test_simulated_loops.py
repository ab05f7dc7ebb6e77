"""Loops without execution: rows are done when the trace says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.policies import Cellular, Continuous, GraphBatching, LazyBatching, Policy, Serial
from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Merge, Reason, Split, Task
from lazybatch.errors import InvalidInput
from lazybatch.executors.simulated_loops import TripCounter
from lazybatch.metrics import Observer, Outcome
from lazybatch.simulator import SimulationResult, simulate

TABLE = LatencyTable("m", ("encode", "step"), (1, 4), ((50, 80), (10, 16)), ((50, 80), (10, 16)))
GRAPH = NodeGraph.chain("m", TABLE.nodes, [Loop("decoder", 1, 2)])


def simulated(policy: Policy, arrivals: list[tuple[int, int]], *, known: bool = False) -> SimulationResult:
    """Rows as (arrival, trips) through the policy; known: the scheduler is told the trips."""
    requests = [Request(k, "m", at, trips=(n,) if known else ()) for k, (at, n) in enumerate(arrivals)]
    trips = None if known else {k: (n,) for k, (_, n) in enumerate(arrivals)}
    result = simulate([LaneSpec(GRAPH, TABLE, max_batch_size=4)], policy, requests, trips=trips)
    result.scheduler.validate()
    assert result.scheduler.counts.policy_failures == 0
    assert len(result.latencies_ns) == len(arrivals)
    return result


@pytest.mark.parametrize("known", [True, False])
def test_rows_leave_at_their_own_step(known: bool) -> None:
    """Two rows encode together (60 ns) and step (12 ns); the one with a single trip has its result before the other."""
    result = simulated(Continuous(), [(0, 1), (0, 3)], known=known)
    assert result.latencies_ns == {0: 60 + 12, 1: 60 + 12 + 10 + 10}


def test_observers_see_every_step() -> None:
    """The simulator tells iterations as the engine does: after the node, before the rows that end with it."""
    seen: list[str] = []

    class Steps(Observer):
        def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
            seen.append(f"ran {task.node}")

        def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
            seen.append(f"step of {task.rows}, finished {completion.finished}")

        def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
            seen.append(f"ended {request.id}")

    requests = [Request(0, "m", 0), Request(1, "m", 0)]
    lanes = [LaneSpec(GRAPH, TABLE, max_batch_size=4)]
    simulate(lanes, Continuous(), requests, trips={0: (1,), 1: (2,)}, observers=[Steps()])
    assert seen == [
        "ran 0",
        "ran 1",
        "step of 2, finished (0,)",
        "ended 0",
        "ran 1",
        "step of 1, finished (1,)",
        "ended 1",
    ]


def test_a_graph_batch_ends_as_a_whole() -> None:
    """Graph batching pays for all rows in every step, and gives all results at its end."""
    result = simulated(GraphBatching(), [(0, 1), (0, 3)])
    assert result.latencies_ns == {0: 60 + 3 * 12, 1: 60 + 3 * 12}


def test_a_newcomer_joins_the_running_loop() -> None:
    """It interrupts at the step's end, encodes alone, and both go on together."""
    result = simulated(Continuous(), [(0, 4), (55, 1)])
    assert result.preemptions == result.merges == 1
    assert result.latencies_ns == {0: 50 + 10 + 50 + 12 + 10 + 10, 1: 60 + 50 + 12 - 55}


def test_newcomers_to_a_loop_at_the_front_are_opened_and_joined_at_once() -> None:
    """A graph that is nothing but a loop: the newcomer takes part in the very next step."""
    table = LatencyTable("m", ("step",), (1, 4), ((10, 16),), ((10, 16),))
    spec = LaneSpec(NodeGraph.chain("m", ("step",), [Loop("all", 0, 1)]), table)
    result = simulate([spec], Cellular(), [Request(0, "m", 0, trips=(3,)), Request(1, "m", 5, trips=(1,))])
    assert result.latencies_ns == {0: 10 + 12 + 10, 1: 10 + 12 - 5}
    assert (result.batches, result.preemptions, result.merges) == (2, 0, 1)


def _moving(policy: Policy, arrivals: list[tuple[int, int]], graph: NodeGraph, table: LatencyTable) -> dict[int, int]:
    """Latencies where moving takes 100 ns, and 1 for every row."""
    lane = LaneSpec(graph, replace(table, engine=EngineTime(move_ns=100, move_row_ns=1)), max_batch_size=4)
    requests = [Request(k, "m", at) for k, (at, _) in enumerate(arrivals)]
    return simulate([lane], policy, requests, trips={k: (n,) for k, (_, n) in enumerate(arrivals)}).latencies_ns


def test_rows_that_leave_others_take_the_engines_time() -> None:
    """The first of two leaves the other, which takes 101; in a batch that ends as a whole nobody leaves anybody."""
    assert _moving(Continuous(), [(0, 1), (0, 3)], GRAPH, TABLE) == {0: 72, 1: 72 + 101 + 10 + 10}
    assert set(_moving(GraphBatching(), [(0, 1), (0, 3)], GRAPH, TABLE).values()) == {60 + 3 * 12}


def test_rows_that_come_to_others_take_the_engines_time() -> None:
    """A newcomer's encoder, then 101 for the merge; where a loop comes first, 101 for a row that begins in it."""
    met = _moving(Continuous(), [(0, 5), (55, 5)], GRAPH, TABLE)
    assert met[0] == 50 + 10 + 50 + 101 + 4 * 12
    loop = LatencyTable("m", ("step",), (1, 4), ((10, 16),), ((10, 16),))
    front = _moving(Continuous(), [(0, 2), (5, 3)], NodeGraph.chain("m", ("step",), [Loop("decoder", 0, 1)]), loop)
    assert front == {0: 10 + 101 + 12, 1: (10 + 101 + 12) + 101 + 101 + 10 + 10 - 5}


def test_rows_that_meet_before_a_loop_move_nothing_in_it() -> None:
    """Two that become one on the chain before the loop are together when it begins, and end together."""
    names = ("read", "encode", "step")
    chain = LatencyTable("m", names, (1, 4), ((50, 80), (50, 80), (10, 16)), ((50, 80), (50, 80), (10, 16)))
    graph = NodeGraph.chain("m", names, [Loop("decoder", 2, 3)])
    lane = LaneSpec(graph, replace(chain, engine=EngineTime(move_ns=100, move_row_ns=1)), max_batch_size=4)
    requests = [Request(k, "m", at, deadline_ns=10**6) for k, at in enumerate((0, 5))]
    result = simulate([lane], LazyBatching(), requests, trips={0: (2,), 1: (2,)})
    assert result.merges == 1
    assert result.latencies_ns == {0: 50 + 50 + 60 + 2 * 12, 1: 50 + 50 + 60 + 2 * 12 - 5}


@pytest.mark.parametrize("trips", [None, {}, {0: (0,)}, {0: (1, 2)}])
def test_a_trace_without_trips_is_refused(trips: dict[int, tuple[int, ...]] | None) -> None:
    """Nobody else can say when a row is done; the error names row and loop."""
    with pytest.raises(
        InvalidInput, match=r"request 0: (the trace must say.* loop 'decoder'|2 numbers of trips for 1)"
    ):
        simulate([LaneSpec(GRAPH, TABLE)], Serial(), [Request(0, "m", 0)], trips=trips)


def test_the_counter_follows_splits_evictions_and_merges() -> None:
    """Rows are counted wherever they are moved to, and no longer once they are gone."""
    graph = NodeGraph.chain("m", "abc", [Loop("first", 0, 1), Loop("second", 1, 2)])
    requests = [Request(k, "m", 0) for k in range(4)]
    counter = TripCounter([graph], requests, {0: (1, 2), 1: (2, 1), 2: (9, 9), 3: (1, 1)})

    def task(sub_batch: int, node: int, opened: tuple[int, ...] = (), joined: int | None = None) -> Task:
        return Task("m", sub_batch, node, 1, 1, opened, None, Reason.CONTINUE, None, joined)

    first = task(0, 0, (0, 1, 2))
    counter.opened(first)
    assert counter.ran(first) == [0]
    counter.settled(first, Completion(evicted=(2,), split=Split("m", 0, 1, (0,))))
    assert counter.ran(task(1, 1)) == []
    counter.settled(task(1, 1), Completion())
    counter.opened(task(0, 0, (3,), joined=2))
    assert counter.ran(task(0, 0)) == [1, 3]
    counter.settled(task(0, 0), Completion(merges=(Merge("m", 1, 0),)))
    assert counter.ran(task(1, 1)) == [0, 1, 3]
    assert counter.ran(task(1, 2)) == []
