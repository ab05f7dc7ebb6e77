"""The default policy on loops, in virtual time: against joining at every step and against whole batches."""

from __future__ import annotations

import random

import pytest

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Reason
from lazybatch.policies import make_policy
from lazybatch.simulator import SimulationResult, simulate
from lazybatch.workload import poisson, weighted_lengths

MS = 1_000_000
TABLE = LatencyTable(
    "decoder",
    ("encode", "step"),
    (1, 16),
    ((23 * MS, 68 * MS), (14 * MS, 28 * MS)),
    ((23 * MS, 68 * MS), (14 * MS, 28 * MS)),
)
LENGTHS = {5: 0.2, 15: 0.45, 25: 0.25, 35: 0.1}


def spec(name: str = "decoder", **options: object) -> LaneSpec:
    """An encoder and a decoder step that gains much from batching, up to 16 rows."""
    table = LatencyTable(name, TABLE.nodes, TABLE.batch_sizes, TABLE.median_ns, TABLE.high_ns)
    graph = NodeGraph.chain(name, table.nodes, [Loop("decoder", 1, 2)])
    lengths = (LengthGuess.of(weighted_lengths(LENGTHS, 1000)),)
    return LaneSpec(graph, table, max_batch_size=16, queue_capacity=10_000, lengths=lengths, **options)  # type: ignore[arg-type]


def served(policy: str, rate: float, *, sla_ms: int | None = None, seed: int = 0) -> SimulationResult:
    """1,500 rows at so many per second."""
    requests = [
        Request(k, "decoder", at, UNBOUNDED_NS if sla_ms is None else at + sla_ms * MS)
        for k, at in enumerate(poisson(rate, 1500, seed))
    ]
    trips = {k: (n,) for k, n in enumerate(weighted_lengths(LENGTHS, 1500, seed + 1))}
    lane = spec()
    result = simulate([lane], make_policy(policy, [lane]), requests, trips=trips)
    result.scheduler.validate()
    assert result.scheduler.counts.policy_failures == 0
    assert len(result.latencies_ns) == 1500
    return result


def mean_ms(result: SimulationResult) -> float:
    """Mean latency."""
    return sum(result.latencies_ns.values()) / len(result.latencies_ns) / MS


def test_better_than_joining_at_every_step_and_than_whole_batches() -> None:
    """Near saturation the solved threshold halves the mean of continuous batching; far below it is no worse."""
    light = {policy: mean_ms(served(policy, 8)) for policy in ("graph", "continuous", "lookahead")}
    assert light["lookahead"] < 1.02 * light["continuous"]
    assert light["lookahead"] < light["graph"] / 1.5
    heavy = {policy: mean_ms(served(policy, 22)) for policy in ("graph", "continuous", "lookahead")}
    assert heavy["lookahead"] < heavy["continuous"] / 1.5
    assert heavy["lookahead"] < heavy["graph"] / 4


def test_decisions_say_why() -> None:
    """Who was let in, and that others had to wait for company."""
    reasons = {decision.task.reason for decision in served("lookahead", 15).scheduler.decisions}
    assert {Reason.JOIN_LOOP, Reason.STAY_LOOP} <= reasons


def test_deadlines_are_kept_as_well_as_by_anybody() -> None:
    """With a target that half of all rows miss under continuous batching, fewer miss it."""
    late = {policy: len(served(policy, 20, sla_ms=1200).late) for policy in ("graph", "continuous", "lookahead")}
    assert late["lookahead"] < min(late["continuous"], late["graph"])


@pytest.mark.parametrize("seed", range(3))
def test_several_models_priorities_and_signatures(seed: int) -> None:
    """Two models with loops and a static one, levels, signatures, deadlines: everybody is served, nothing fails."""
    rng = random.Random(seed)
    static = LatencyTable.uniform("static", 3, 3 * MS, MS, (1, 16))
    lanes = [spec("one"), spec("two"), LaneSpec(NodeGraph.chain("static", static.nodes), static, queue_capacity=10_000)]
    requests = []
    for k, at in enumerate(poisson(14, 500, seed)):
        model = rng.choice(("one", "two", "static"))
        deadline_ns = at + rng.choice((300, 900, 3000)) * MS if rng.random() < 0.5 else UNBOUNDED_NS
        signature, priority = rng.choice("xxxxy"), int(rng.random() < 0.1)
        requests.append(Request(k, model, at, deadline_ns, signature, priority=priority))
    trips = {k: (n,) for k, n in enumerate(weighted_lengths(LENGTHS, 500, seed + 1)) if requests[k].model != "static"}
    result = simulate(lanes, make_policy("lookahead", lanes), requests, trips=trips)
    result.scheduler.validate()
    assert result.scheduler.counts.policy_failures == 0, result.scheduler.policy_error
    assert len(result.latencies_ns) == 500
    assert max(result.latencies_ns.values()) < 20_000 * MS


def beside(policy: str, static_rate: float, loop_rate: float = 12.0) -> dict[str, list[int]]:
    """Latencies by model of a loop beside a small static model that takes 7 to 52 ms; 900 rows in all."""
    table = LatencyTable.uniform("static", 3, 4 * MS, 3 * MS, (1, 16))
    lanes = [spec(), LaneSpec(NodeGraph.chain("static", table.nodes), table, queue_capacity=10_000)]
    loops = round(900 * loop_rate / (loop_rate + static_rate))
    arrivals = [(at, "decoder") for at in poisson(loop_rate, loops, 1)]
    arrivals += [(at, "static") for at in poisson(static_rate, 900 - loops, 2)]
    requests = [Request(k, model, at) for k, (at, model) in enumerate(sorted(arrivals))]
    trips = {k: (n,) for k, n in enumerate(weighted_lengths(LENGTHS, 900, 3)) if requests[k].model == "decoder"}
    result = simulate(lanes, make_policy(policy, lanes), requests, trips=trips)
    assert result.scheduler.counts.policy_failures == 0, result.scheduler.policy_error
    found: dict[str, list[int]] = {"decoder": [], "static": []}
    for request in requests:
        found[request.model].append(result.latencies_ns[request.id])
    return found


def test_a_small_model_need_not_wait_for_a_loop_to_end() -> None:
    """It interrupts the loop at any iteration: far sooner answered than where it waits, and the loop hardly slower."""
    ours, theirs = beside("lookahead", 20), beside("continuous", 20)
    assert sum(ours["static"]) < sum(theirs["static"]) / 4
    assert sum(ours["decoder"]) < 1.1 * sum(theirs["decoder"])


def test_a_stream_of_small_rows_does_not_hold_up_a_loop_for_ever() -> None:
    """More static rows come than can be served: rows of the loop still end, each within a few seconds."""
    ours = beside("lookahead", 400, 8)
    assert max(ours["decoder"]) < 5_000 * MS


@pytest.mark.parametrize("at_ms", [0.5, 6.5, 70.5])
def test_what_is_left_of_a_loop_is_told_by_iterations(at_ms: float) -> None:
    """A row goes 20 times round a body of eight nodes of 1 ms, and one of 30 ms comes, of a model that has one every
    100: as much of the loop is left it goes first, whichever node of the body it comes at."""
    names = tuple(f"step{k}" for k in range(8))
    body = LatencyTable("loop", names, (1, 4), ((MS, MS),) * 8, ((MS, MS),) * 8)
    quick = LatencyTable("quick", ("all",), (1, 4), ((30 * MS, 40 * MS),), ((30 * MS, 40 * MS),))
    lanes = [
        LaneSpec(NodeGraph.chain("loop", names, [Loop("round", 0, 8)]), body, 4, lengths=(LengthGuess.of([20]),)),
        LaneSpec(NodeGraph.chain("quick", ("all",)), quick, 4),
    ]
    requests = [Request(k, "quick", round((100 * k + at_ms) * MS)) for k in range(41)]
    requests.insert(40, Request(41, "loop", 4_000 * MS))
    trips: dict[int, tuple[int, ...]] = {request.id: () for request in requests} | {41: (20,)}
    found = simulate(lanes, make_policy("lookahead", lanes), requests, trips=trips).latencies_ns
    assert found[40] <= 31 * MS
