"""One scheduler, two drivers: the live engine and the simulator make the same decisions on the same trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.policies import Aimd, Cellular, GraphBatching, LazyBatching, Oracle, Policy, Serial
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Decision
from lazybatch.engine import Engine, RequestFuture, ServedModel, SteppedClock
from lazybatch.executors.base import Row
from lazybatch.executors.simulated import SimulatedModel
from lazybatch.policies import make_policy
from lazybatch.simulator import simulate
from lazybatch.solver import solve
from tests.engine.loop_kit import Given, Rounds, expected

TABLES = {
    "short": LatencyTable("short", ("a", "b"), (1, 4, 8), ((30, 50, 90), (20, 40, 60)), ((40, 60, 99), (30, 50, 70))),
    "long": LatencyTable.uniform("long", 7, 400, 90, (1, 8)),
}
SLA_NS = {"short": 400, "long": 3000}
CONTROLS = {name: solve(table, 5) for name, table in TABLES.items()}


@dataclass(frozen=True)
class Arrival:
    """One line of a trace."""

    at_ns: int
    model: str
    signature: str
    size: int
    priority: int


def specs(models: tuple[str, ...], capacity: int, late: Literal["serve", "drop"] = "serve") -> list[LaneSpec]:
    """Lanes with everything that can influence a decision."""
    return [
        LaneSpec(
            NodeGraph.chain(name, TABLES[name].nodes),
            TABLES[name],
            max_batch_size=5,
            queue_capacity=capacity,
            sla_ns=SLA_NS[name],
            levels={1: PriorityLevel(900, "reject"), 2: PriorityLevel(500, "demote")},
            ageing_ns=700,
            late=late,
        )
        for name in models
    ]


def simulated_decisions(trace: list[Arrival], policy: Policy, lanes: list[LaneSpec]) -> tuple[list[Decision], set[int]]:
    """The simulator's decision log, and the ids that were completed."""
    requests = [
        Request(k, a.model, a.at_ns, a.at_ns + SLA_NS[a.model], a.signature, a.size, a.priority)
        for k, a in enumerate(trace)
    ]
    result = simulate(lanes, policy, requests)
    return list(result.scheduler.decisions), set(result.latencies_ns)


def engine_decisions(trace: list[Arrival], policy: Policy, lanes: list[LaneSpec]) -> tuple[list[Decision], set[int]]:
    """The live engine's decision log on a stepped clock, with an executor that only lets time pass."""
    clock = SteppedClock(trace[0].at_ns if trace else 0)
    served = []
    for spec in lanes:
        model = SimulatedModel(TABLES[spec.graph.model], clock.advance)
        served.append(ServedModel(spec, model.executor(max_batch_size=spec.max_batch_size)))
    engine = Engine(served, policy, clock=clock, threaded=False)

    def submit(number: int) -> list[RequestFuture]:
        a = trace[number]
        row = Row(number, a.signature, a.size)
        return engine.submit(a.model, [row], priority=a.priority, arrival_ns=a.at_ns)

    futures = replay(engine, clock, [a.at_ns for a in trace], submit)
    completed = {k for k, future in enumerate(futures) if future.exception() is None}
    assert all(futures[k].result() == k for k in completed), "every row comes back as itself"
    return list(engine.scheduler.decisions), completed


def replay(
    engine: Engine, clock: SteppedClock, arrivals_ns: Sequence[int], submit: Callable[[int], list[RequestFuture]]
) -> list[RequestFuture]:
    """Run a trace to its end; the futures of its rows, all of them done."""
    futures: list[RequestFuture] = []
    arrived, closed = 0, False
    while True:
        while arrived < len(arrivals_ns) and arrivals_ns[arrived] <= clock.now_ns():
            futures += submit(arrived)
            arrived += 1
        if arrived == len(arrivals_ns) and not closed:
            engine.close(drain=True)
            closed = True
        if engine.step():
            continue
        times = [arrivals_ns[arrived]] if arrived < len(arrivals_ns) else []
        wakeup_ns = engine.next_wakeup_ns()
        if wakeup_ns is not None:
            times.append(wakeup_ns)
        if not times:
            break
        clock.advance_to(min(times))
    engine.shutdown()
    engine.scheduler.validate()
    assert all(future.done() for future in futures), "every future resolves"
    return futures


POLICIES: dict[str, Callable[[], Policy]] = {
    "serial": Serial,
    "graph(0)": GraphBatching,
    "graph(window)": lambda: GraphBatching(window_ns=150),
    "graph(budget)": lambda: GraphBatching(window_ns=90, max_batch_size=4, size_budget=6),
    "cellular": Cellular,
    "aimd": lambda: Aimd(step=2),
    "lazy": LazyBatching,
    "oracle": Oracle,
    "lookahead": lambda: Lookahead(CONTROLS),  # it remembers what it saw: a fresh one for each driver
}

arrivals = st.builds(
    lambda gap, model, signature, size, priority: (gap, model, signature, size, priority),
    st.integers(0, 400),
    st.sampled_from(("short", "long")),
    st.sampled_from(("s", "s", "s", "t")),
    st.integers(1, 4),
    st.sampled_from((0, 0, 0, 1, 2)),
)


def trace_of(lines: list[tuple[int, str, str, int, int]], models: tuple[str, ...]) -> list[Arrival]:
    """Gaps become times; models that are not served are replaced."""
    at_ns, trace = 0, []
    for gap_ns, model, signature, size, priority in lines:
        at_ns += gap_ns
        trace.append(Arrival(at_ns, model if model in models else models[0], signature, size, priority))
    return trace


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("models", [("long",), ("short", "long")])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lines=st.lists(arrivals, max_size=40),
    capacity=st.sampled_from((2, 5, 100)),
    late=st.sampled_from(("serve", "drop")),
)
def test_both_drivers_decide_alike(
    name: str,
    models: tuple[str, ...],
    lines: list[tuple[int, str, str, int, int]],
    capacity: int,
    late: Literal["serve", "drop"],
) -> None:
    """Any trace, any policy, one or two models, late rows served or dropped: equal decisions, equal completed rows."""
    trace = trace_of(lines, models)
    lanes = specs(models, max(capacity, 5), late)
    assert engine_decisions(trace, POLICIES[name](), lanes) == simulated_decisions(trace, POLICIES[name](), lanes)


def test_the_comparison_sees_dropping() -> None:
    """Of rows that come all at once, the first ones run and the others become hopeless behind them, in both drivers."""
    trace = [Arrival(0, "long", "s", 1, 0)] * 12
    lanes = specs(("long",), 100, "drop")
    decisions, completed = simulated_decisions(trace, Serial(), lanes)
    assert 0 < len(completed) < len(trace)
    assert engine_decisions(trace, Serial(), lanes) == (decisions, completed)


@pytest.mark.parametrize("name", ["lazy", "lookahead"])
def test_the_comparison_sees_preemption_and_merging(name: str) -> None:
    """The trace that is compared is not a trivial one: sub-batches are preempted and merged in it."""
    trace = [Arrival(at_ns, "long", "s", 1, 0) for at_ns in (0, 100, 150, 600, 601, 602, 1500)]
    graph = NodeGraph.chain("long", TABLES["long"].nodes)
    lanes = [LaneSpec(graph, TABLES["long"], max_batch_size=5, sla_ns=SLA_NS["long"])]
    requests = [Request(k, "long", a.at_ns, a.at_ns + SLA_NS["long"], "s") for k, a in enumerate(trace)]
    result = simulate(lanes, POLICIES[name](), requests)
    assert result.scheduler.counts.policy_failures == 0
    assert result.preemptions >= 2
    assert result.merges >= 2
    assert engine_decisions(trace, POLICIES[name](), lanes)[0] == list(result.scheduler.decisions)


# -- loops ---------------------------------------------------------------------------------------------------------

LOOP_SHAPES: dict[str, tuple[int, tuple[tuple[int, int], ...], int | None]] = {
    "loop first": (3, ((0, 2),), 4),
    "way to the loop": (4, ((1, 2),), None),
    "two loops": (5, ((1, 2), (3, 5)), 4),
}
LOOP_POLICIES = ("graph", "continuous", "cellular", "lazy", "oracle", "lookahead", "serial")


def loop_models(whole: bool) -> list[Rounds]:
    """Models with loops that really compute, and with that find out who is done."""
    return [
        Rounds(nodes, *spans, name=name, trips_max=most, whole=whole)
        for name, (nodes, spans, most) in LOOP_SHAPES.items()
    ]


def loop_lane(model: Rounds) -> LaneSpec:
    """Deadlines, and lengths that are only roughly right."""
    lengths = (LengthGuess.of([1, 2, 2, 4]),) * len(model.graph.loops)
    return LaneSpec(model.graph, model.table(100, 30), max_batch_size=4, sla_ns=4000, lengths=lengths)


def simulated_loops(trace: list[tuple[int, Rounds, Given]], policy: Policy, lanes: list[LaneSpec]) -> list[Decision]:
    """The simulator's decision log."""
    requests = []
    for k, (at_ns, model, one) in enumerate(trace):
        trips = model.admit(one).trips
        requests.append(Request(k, model.name, at_ns, at_ns + 4000, trips=trips))
    trips_of = {k: one.trips for k, (_, _, one) in enumerate(trace)}
    return list(simulate(lanes, policy, requests, trips=trips_of).scheduler.decisions)


def engine_loops(
    trace: list[tuple[int, Rounds, Given]], policy: Policy, lanes: list[LaneSpec], models: list[Rounds]
) -> list[Decision]:
    """The engine's, with executors that compute and let time pass as the table says; every answer must be right."""
    clock = SteppedClock(trace[0][0] if trace else 0)
    served = []
    for spec, model in zip(lanes, models, strict=True):
        assert spec.latency is not None
        times_ns = spec.latency.dense_ns(spec.max_batch_size)
        model.before = lambda node, rows, times_ns=times_ns: clock.advance(times_ns[node][rows])
        served.append(ServedModel(spec, model.executor(max_batch_size=spec.max_batch_size)))
    engine = Engine(served, policy, clock=clock, threaded=False)

    def submit(number: int) -> list[RequestFuture]:
        at_ns, model, one = trace[number]
        return engine.submit(model.name, [model.admit(one)], arrival_ns=at_ns)

    futures = replay(engine, clock, [at_ns for at_ns, _, _ in trace], submit)
    for (_, model, one), future in zip(trace, futures, strict=True):
        assert future.result() == expected(model, one)
    assert engine.stats().policy_failures == 0
    return list(engine.scheduler.decisions)


loop_rows = st.tuples(
    st.integers(0, 600),
    st.integers(0, 2),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.booleans(), st.booleans()),
)


@pytest.mark.parametrize("name", LOOP_POLICIES)
@pytest.mark.parametrize("several", [False, True])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(lines=st.lists(loop_rows, max_size=25), shape=st.integers(0, 2))
def test_both_drivers_decide_alike_in_loops(
    name: str, several: bool, lines: list[tuple[int, int, tuple[int, int], tuple[bool, bool]]], shape: int
) -> None:
    """Rows that join and leave at every step, trips known or found out, some truncated, one or three models."""
    models = loop_models(whole=name == "graph")
    if not several:
        models = [models[shape]]
    lanes = [loop_lane(model) for model in models]
    trace, at_ns = [], 0
    for gap_ns, which, trips, known in lines:
        model = models[which % len(models)]
        at_ns += gap_ns
        loops = model.graph.loops
        told = tuple(k and t <= (loop.trips_max or t) for k, t, loop in zip(known, trips, loops, strict=False))
        trace.append((at_ns, model, Given(len(trace), trips[: len(loops)], told)))
    simulated = simulated_loops(trace, make_policy(name, lanes), lanes)
    assert engine_loops(trace, make_policy(name, lanes), lanes, models) == simulated


@pytest.mark.parametrize("name", ["continuous", "lazy", "lookahead"])
def test_the_comparison_sees_joins_and_splits(name: str) -> None:
    """The traces that are compared are not trivial: rows join running loops, and leave them before others."""
    models = [loop_models(whole=False)[2]]
    lanes = [loop_lane(models[0])]
    trips = [(1, 2), (5, 1), (2, 2), (6, 3), (1, 1), (4, 4), (2, 1), (3, 3)]
    trace = [(k * 170, models[0], Given(k, counts)) for k, counts in enumerate(trips)]
    requests = [Request(k, models[0].name, at_ns, at_ns + 4000) for k, (at_ns, _, _) in enumerate(trace)]
    result = simulate(lanes, make_policy(name, lanes), requests, trips=dict(enumerate(trips)))
    assert result.merges >= 2
    assert result.dispatches > 20
    assert engine_loops(trace, make_policy(name, lanes), lanes, models) == list(result.scheduler.decisions)
