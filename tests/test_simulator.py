"""The virtual-time driver: exact tiny traces, bad traces, conservation, determinism, and queueing theory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime
from lazybatch.core.policies import Choice, GraphBatching, LazyBatching, Policy, Serial, View, Wait, by_name
from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Reason, Task
from lazybatch.errors import InvalidInput, TableMismatch
from lazybatch.metrics import Observer, Outcome
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson
from tests.core.kit import Asked, bare_spec, lane_spec, linear

TWO_NODES = linear(nodes=2, fixed=10, per_row=10)
"""Each node: 20 ns at 1 row, 30 at 2, 40 at 3."""


def run(policy: Policy, arrivals: list[int], *, sla: int | None = None, **options: Any) -> SimulationResult:
    """One model of two nodes; checks that the simulator left nothing behind."""
    result = simulate([lane_spec(TWO_NODES, **options)], policy, requests_from(arrivals, "m", sla_ns=sla))
    result.scheduler.validate()
    assert result.scheduler.idle
    return result


def test_serial_to_the_nanosecond() -> None:
    """0-40, then 40-80 for the row of 5, then a gap and 100-140."""
    result = run(Serial(), [0, 5, 100])
    assert result.latencies_ns == {0: 40, 1: 75, 2: 40}
    assert (result.dispatches, result.batches, result.rows_run) == (6, 3, 6)
    assert (result.preemptions, result.merges) == (0, 0)
    assert (result.start_ns, result.end_ns) == (0, 140)
    assert result.mean_batch == 1.0
    assert result.throughput_rps == pytest.approx(3e9 / 140)


def test_graphb_zero_to_the_nanosecond() -> None:
    """The first row runs 0-40 alone; the two that came meanwhile run 40-100 together."""
    result = run(GraphBatching(), [0, 5, 6])
    assert result.latencies_ns == {0: 40, 1: 95, 2: 94}
    assert (result.dispatches, result.batches, result.rows_run) == (4, 2, 6)
    assert result.mean_batch == 1.5


def test_a_window_to_the_nanosecond() -> None:
    """Window 10: rows of 0 and 5 run 10-70; the row of 30 runs 70-110; the last, with none to come, 200-240."""
    result = run(GraphBatching(window_ns=10), [0, 5, 30, 200])
    assert result.latencies_ns == {0: 70, 1: 65, 2: 80, 3: 40}
    reasons = [decision.task.reason for decision in result.scheduler.decisions if decision.task.opened]
    assert reasons == [Reason.START_WINDOW, Reason.START_WINDOW, Reason.START_DRAIN]


def test_lazy_to_the_nanosecond() -> None:
    """Row 0 is preempted at 20, row 1 catches up 20-40, both run the second node 40-70."""
    result = run(LazyBatching(), [0, 5])
    assert result.latencies_ns == {0: 70, 1: 65}
    assert (result.dispatches, result.batches, result.rows_run) == (3, 2, 4)
    assert (result.preemptions, result.merges) == (1, 1)


def test_lazy_without_slack_is_serial() -> None:
    """At 20, with 20 to go and the newcomer's 40, a target of 79 is in danger: 0-40, 40-80."""
    assert run(LazyBatching(), [0, 5], sla=79).latencies_ns == {0: 40, 1: 75}
    assert run(LazyBatching(), [0, 5], sla=80).latencies_ns == {0: 70, 1: 65}


def test_figure_ten_in_virtual_time() -> None:
    """The paper's example, one time-unit being 10 ns: Req2 and Req3 arrive inside nodes, all three end at t=13."""
    net = linear("net", nodes=8, fixed=10, per_row=0)
    requests = [
        Request(0, "other", 0),
        *(Request(id, "net", at, at + 300) for id, at in ((1, 0), (2, 35), (3, 45))),
    ]
    result = simulate([lane_spec(net), lane_spec(linear("other", 1, 20, 0))], LazyBatching(), requests)
    assert result.latencies_ns == {0: 20, 1: 130, 2: 95, 3: 85}
    assert (result.dispatches, result.preemptions, result.merges, result.late) == (1 + 11, 2, 2, ())


def test_at_one_instant_the_node_ends_then_arrivals_join_then_the_scheduler_decides() -> None:
    """A row that arrives exactly when a batch ends is in the next one, and one at its start is in it."""
    result = run(GraphBatching(), [0, 0, 60, 60])
    assert result.latencies_ns == {0: 60, 1: 60, 2: 60, 3: 60}
    assert result.batches == 2


def test_padding_costs_the_time_of_the_executed_size() -> None:
    """Two rows run as four: 50 ns a node, though two are live."""
    result = run(GraphBatching(), [0, 0], max_batch_size=4, allowed_sizes=(1, 4))
    assert result.latencies_ns == {0: 100, 1: 100}
    assert result.rows_run == 4


def test_the_engines_own_time_passes_as_well() -> None:
    """30 before the first node, 5 before the second, told or not; a table that leaves it out takes the nodes' time."""
    measured = replace(TWO_NODES, engine=EngineTime(30, 0, 5, 0))
    requests = requests_from([0, 5], "m")
    assert simulate([lane_spec(measured)], Serial(), requests).latencies_ns == {0: 75, 1: 145}
    plain, told = lane_spec(TWO_NODES), lane_spec(measured)
    assert simulate([plain], Serial(), requests, durations={"m": measured}).latencies_ns == {0: 75, 1: 145}
    assert simulate([told], Serial(), requests, durations={"m": TWO_NODES}).latencies_ns == {0: 40, 1: 75}


def test_what_nodes_take_may_differ_from_what_the_policy_is_told() -> None:
    """Twice the time per node: rows end later, and the policy decides by its own table all the same."""
    slow = linear(nodes=2, fixed=20, per_row=20)
    told: list[int] = []

    class Watching(Serial):
        def decide(self, view: View, now: int) -> Choice:
            told.append(view.lanes[0].sums_ns[1][-1])
            return super().decide(view, now)

    result = simulate([lane_spec(TWO_NODES)], Watching(), requests_from([0, 5], "m"), durations={"m": slow})
    assert result.latencies_ns == {0: 80, 1: 155}
    assert set(told) == {40}
    with pytest.raises(TableMismatch):
        simulate([lane_spec(TWO_NODES)], Serial(), [], durations={"m": linear(nodes=3, fixed=1, per_row=1)})


def test_late_rows_are_served_and_counted() -> None:
    """Deadlines are soft: the second row ends at 80, its target was 65; one exactly on time is not late."""
    result = run(Serial(), [0, 5, 100], sla=60)
    assert (result.late, result.dropped) == ((1,), ())
    assert result.violations == pytest.approx(1 / 3)
    assert run(Serial(), [0], sla=40).late == ()


def test_a_full_queue_drops_rows() -> None:
    """One runs, two wait, the fourth and fifth are refused; what is dropped is a violation."""
    result = run(Serial(), [0, 1, 2, 3, 4], queue_capacity=2)
    assert result.dropped == (3, 4)
    assert set(result.latencies_ns) == {0, 1, 2}
    assert result.violations == pytest.approx(2 / 5)


def test_queue_timeouts_drop_rows() -> None:
    """Behind a node graph of 40, a row that may wait 30 is rejected at the first node boundary past its limit."""
    result = run(Serial(), [0, 5], levels={0: PriorityLevel(30)})
    assert result.dropped == (1,)
    assert set(result.latencies_ns) == {0}


def test_an_idle_processor_wakes_for_a_timeout() -> None:
    """While a long window is waited for, the timeout of the row comes first, and the clock stops there on its way."""
    spec = lane_spec(TWO_NODES, levels={0: PriorityLevel(30)})
    result = simulate([spec], GraphBatching(window_ns=1000), requests_from([0, 2000], "m"))
    assert result.dropped == (0,)
    assert result.latencies_ns == {1: 40}


def test_an_empty_trace_runs_nothing() -> None:
    """No request, no dispatch, no division by zero."""
    result = run(Serial(), [])
    assert (result.dispatches, result.end_ns, result.mean_batch, result.violations) == (0, 0, 0.0, 0.0)
    assert result.throughput_rps == 0.0


def test_a_policy_that_waits_for_ever_is_overruled_when_none_will_come() -> None:
    """The run ends with every row served, and the failures are counted."""
    result = simulate([lane_spec(TWO_NODES)], Asked(Wait()), requests_from([0, 5], "m"))
    assert len(result.latencies_ns) == 2
    assert result.scheduler.counts.policy_failures == 1


@pytest.mark.parametrize(
    ("lanes", "requests", "message"),
    [
        ([bare_spec()], [], "'m': simulation needs a latency table"),
        ([lane_spec()], requests_from([5, 4], "m"), "trace out of order: request 1 arrives before request 0"),
        ([lane_spec()], requests_from([1], "m") + requests_from([2], "m"), "2 requests with 1 different ids"),
        ([lane_spec()], requests_from([1], "other"), "unknown model 'other'; known are m"),
    ],
    ids=["no table", "out of order", "id used twice", "unknown model"],
)
def test_bad_traces_are_refused(lanes: list[LaneSpec], requests: list[Request], message: str) -> None:
    """Each error names the model or request at fault."""
    with pytest.raises(InvalidInput, match=message):
        simulate(lanes, Serial(), requests)


def test_requests_from_arrivals() -> None:
    """Deadlines are arrival plus SLA, or never; ids count from the first."""
    with_sla, plain = requests_from([3], "m", sla_ns=10, first_id=7), requests_from([3], "m")
    assert (with_sla[0].id, with_sla[0].deadline_ns) == (7, 13)
    assert (plain[0].id, plain[0].deadline_ns) == (0, Request(0, "m", 0).deadline_ns)


class Diary(Observer):
    """Writes down every hook."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def arrived(self, now_ns: int, request: Request) -> None:
        """Note it."""
        self.lines.append(("arrived", now_ns, request.id))

    def opened(self, now_ns: int, task: Task) -> None:
        """Note it."""
        self.lines.append(("opened", now_ns, *task.opened))

    def preempted(self, now_ns: int, task: Task) -> None:
        """Note it."""
        self.lines.append(("preempted", now_ns, task.preempted))

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note it."""
        self.lines.append(("dispatched", start_ns, end_ns, task.node, task.rows))

    def merged(self, now_ns: int, merge: Merge) -> None:
        """Note it."""
        self.lines.append(("merged", now_ns, merge.target, merge.source))

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Note it."""
        self.lines.append(("exited", now_ns, request.id, str(outcome), first_dispatch_ns))


def test_observers_see_the_run_in_order() -> None:
    """Arrival, opening, preemption, dispatches, merge and exits, each with its time."""
    diary = Diary()
    simulate([lane_spec(TWO_NODES)], LazyBatching(), requests_from([0, 5], "m"), observers=[diary])
    assert diary.lines == [
        ("arrived", 0, 0),
        ("opened", 0, 0),
        ("dispatched", 0, 20, 0, 1),
        ("arrived", 5, 1),
        ("preempted", 20, 0),
        ("opened", 20, 1),
        ("dispatched", 20, 40, 0, 1),
        ("merged", 40, 0, 1),
        ("dispatched", 40, 70, 1, 2),
        ("exited", 70, 0, "completed", 0),
        ("exited", 70, 1, "completed", 20),
    ]


def test_observers_see_refusals_and_timeouts() -> None:
    """A refused row is rejected without having arrived; one that waited too long expires unopened."""
    diary = Diary()
    spec = lane_spec(TWO_NODES, queue_capacity=1, levels={0: PriorityLevel(30)})
    simulate([spec], Serial(), requests_from([0, 1, 2], "m"), observers=[diary])
    exits = [line for line in diary.lines if line[0] == "exited"]
    assert [(line[2], *line[3:]) for line in exits] == [
        (2, "rejected", None),
        (0, "completed", 0),
        (1, "expired", None),
    ]


def test_hopeless_rows_are_dropped_where_that_is_chosen() -> None:
    """Behind a run of 40, a row that takes 40 alone and has until 65 goes at the boundary at 40; it is a violation."""
    diary = Diary()
    spec = lane_spec(TWO_NODES, late="drop")
    result = simulate([spec], Serial(), requests_from([0, 5, 100], "m", sla_ns=60), observers=[diary])
    assert (result.dropped, result.late, set(result.latencies_ns)) == ((1,), (), {0, 2})
    assert result.violations == pytest.approx(1 / 3)
    assert ("exited", 40, 1, "dropped", None) in diary.lines


def test_an_idle_processor_wakes_to_drop_what_became_hopeless() -> None:
    """While a window is waited for, the clock stops where the row has no chance left."""
    diary = Diary()
    spec = lane_spec(TWO_NODES, late="drop")
    requests = requests_from([0, 2000], "m", sla_ns=100)
    simulate([spec], GraphBatching(window_ns=1000), requests, observers=[diary])
    assert [line for line in diary.lines if line[0] == "exited"] == [
        ("exited", 61, 0, "dropped", None),
        ("exited", 2040, 1, "completed", 2000),
    ]


def mixed_lanes(**options: Any) -> list[LaneSpec]:
    """A long and a quick model."""
    return [
        lane_spec(linear("long", nodes=4, fixed=60, per_row=15), **options),
        lane_spec(linear("quick", nodes=2, fixed=10, per_row=2), **options),
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    """Up to 60 requests of both models, in order, with and without targets, of two shapes and two priorities."""
    gaps = draw(st.lists(st.integers(0, 120), max_size=60))
    at, requests = 0, []
    for id, gap in enumerate(gaps):
        at += gap
        sla = draw(st.sampled_from([100, 500, 10**6]))
        requests.append(
            Request(id, "long" if gap % 3 else "quick", at, at + sla, "xy"[gap % 7 == 0], 1 + gap % 4, gap % 2)
        )
    return requests


POLICIES = st.sampled_from(
    [("serial", {}), ("lazy", {}), ("graph", {}), ("graph", {"window_ns": 90, "size_budget": 9})]
)


@settings(max_examples=60)
@given(traces(), POLICIES, st.integers(1, 6), st.integers(1, 20), st.one_of(st.none(), st.integers(1, 300)))
def test_every_request_completes_or_is_dropped_once(
    trace: list[Request], policy: tuple[str, dict[str, int]], rows_max: int, capacity: int, timeout: int | None
) -> None:
    """Conservation for any trace: nobody is lost, nobody is faster than alone, and the clock only moves on."""
    levels = {} if timeout is None else {0: PriorityLevel(timeout), 1: PriorityLevel(timeout, "demote")}
    lanes = mixed_lanes(max_batch_size=rows_max, queue_capacity=capacity, levels=levels, ageing_ns=1000)
    result = simulate(lanes, by_name(policy[0], **policy[1]), trace)
    result.scheduler.validate()
    assert result.scheduler.idle
    assert sorted([*result.latencies_ns, *result.dropped]) == [request.id for request in trace]
    alone = {"long": 4 * 75, "quick": 2 * 12}
    by_id = {request.id: request for request in trace}
    for id, latency in result.latencies_ns.items():
        assert latency >= alone[by_id[id].model]
        assert (id in result.late) == (by_id[id].arrival_ns + latency > by_id[id].deadline_ns)
    times = [decision.now_ns for decision in result.scheduler.decisions]
    assert times == sorted(times)
    assert result.scheduler.counts.policy_failures == 0


@settings(max_examples=20)
@given(traces(), POLICIES)
def test_one_trace_gives_one_decision_log(trace: list[Request], policy: tuple[str, dict[str, int]]) -> None:
    """Run twice, watched once: the same decisions at the same times, whoever looks."""
    first = simulate(mixed_lanes(), by_name(policy[0], **policy[1]), trace)
    second = simulate(mixed_lanes(), by_name(policy[0], **policy[1]), trace, observers=[Diary()])
    assert list(first.scheduler.decisions) == list(second.scheduler.decisions)
    assert first.latencies_ns == second.latencies_ns


def test_one_seed_gives_one_run() -> None:
    """Seeded arrivals and virtual time: a simulation is a pure function of its arguments."""

    def once(seed: int) -> list[Any]:
        requests = requests_from(poisson(2e6, 500, seed=seed), "long", sla_ns=3_000)
        return list(simulate(mixed_lanes(), LazyBatching(), requests).scheduler.decisions)

    assert once(1) == once(1)
    assert once(1) != once(2)


def mean_latency(policy: Policy, spec: LaneSpec, rate_per_ns: float, requests: int, seed: int) -> float:
    """Mean latency in ns over a long Poisson trace, the first tenth left out."""
    arrivals = poisson(rate_per_ns * 1e9, requests, seed=seed)
    result = simulate([spec], policy, requests_from(arrivals, spec.graph.model))
    latencies = [result.latencies_ns[id] for id in range(requests // 10, requests)]
    return sum(latencies) / len(latencies)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_serial_is_an_md1_queue(load: float) -> None:
    """Mean latency of Poisson arrivals at a server of constant time S: S + load * S / (2 (1 - load)), within 5 %."""
    service = 100_000
    spec = lane_spec(linear(fixed=service, per_row=0), queue_capacity=100_000)
    expected = service + load * service / (2 * (1 - load))
    assert mean_latency(Serial(), spec, load / service, 25_000, seed=5) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_graphb_zero_keeps_the_closed_form_bound(load: float) -> None:
    """Batches of b take per_row * b + fixed: mean latency is at most min(phi0, phi1), and within 10 % of it.

    The bounds are those of Y. Inoue, "Queueing analysis of GPU-based inference servers with dynamic batching" (2021),
    for an unlimited batch size; load is arrival rate times per_row.
    """
    per_row, fixed = 40_000.0, 70_000.0
    rate = load / per_row
    phi0 = (per_row + fixed) / (2 * (1 - load)) * (1 + 2 * rate * fixed + (1 - rate * fixed) / (1 + load))
    phi1 = 3 * fixed / (2 * (1 - load)) + per_row / 2 * (load + 2) / (1 - load**2)
    bound = min(phi0, phi1)
    spec = lane_spec(
        linear(fixed=int(fixed), per_row=int(per_row), rows_max=256), max_batch_size=256, queue_capacity=100_000
    )
    measured = mean_latency(GraphBatching(), spec, rate, 25_000, seed=11)
    assert 0.9 * bound <= measured <= 1.02 * bound
