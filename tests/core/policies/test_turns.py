"""Nobody waits for ever under slack: rows in flight that no deadline protects, and models that are passed over.

Everything is simulated, on traces in which slack alone lets one of two models wait for as long as the other one's
stream lasts; each test shows that, too. All nodes take 3 + rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import LazyBatching, Oracle, turns
from lazybatch.core.request import Request
from lazybatch.simulator import simulate
from tests.core.kit import lane_spec, linear, row
from tests.core.loop_kit import loop_spec

both = pytest.mark.parametrize("policy", [LazyBatching(), Oracle()], ids=repr)

STREAM = 1_000
"""Rows of the model that never lets up."""
TRIPS = 10
RUN_NS = 4 + TRIPS * 4 + 4
"""A row of the model with a loop, alone: a node, so many iterations of the next, a node."""


def looping(id: int, at: int, sla: int | None = None) -> Request:
    """A row of that model."""
    return replace(row(id, at, sla=sla), trips=(TRIPS,))


def loops(rows_max: int = 8) -> LaneSpec:
    """That model."""
    return loop_spec(3, (1, 2), max_batch_size=rows_max, queue_capacity=10_000)


def latency_ns(policy: Any, specs: list[LaneSpec], requests: list[Request], id: int) -> int:
    """Of one row of a trace that is served to its end with nothing overruled."""
    result = simulate(specs, policy, sorted(requests, key=lambda request: request.arrival_ns))
    assert result.scheduler.policy_error is None
    assert len(result.latencies_ns) == len(requests)
    return result.latencies_ns[id]


@both
@pytest.mark.parametrize("sla", [None, RUN_NS - 1], ids=["no deadline", "lost"])
@pytest.mark.parametrize("trips", [TRIPS, 0], ids=["loop", "chain"])
def test_who_is_in_flight_without_slack_lends_a_few_runs_at_most(
    policy: Any, sla: int | None, trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of another model fills the processor: the row that was there first is done within its own time, what it
    lends, and one row more. Without that limit it waits until the stream ends."""
    spec = loops() if trips else lane_spec(linear(nodes=12, fixed=3, per_row=1))
    first = looping(0, 0, sla) if trips else row(0, 0, sla=sla)
    quick = lane_spec(linear("quick", fixed=3, per_row=1), max_batch_size=1, queue_capacity=10_000)
    stream = [row(1 + k, 1 + 4 * k, model="quick") for k in range(STREAM)]
    requests = [first, *stream]
    assert latency_ns(policy, [spec, quick], requests, 0) <= (1 + turns.LENDING) * RUN_NS + 4
    monkeypatch.setattr(turns, "LENDING", 1e9)
    assert latency_ns(policy, [spec, quick], requests, 0) > 4 * STREAM


@both
def test_slack_protects_who_has_a_deadline(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row in flight whose deadline is to come lends all the slack that it has, and is in time."""
    quick = lane_spec(linear("quick", fixed=3, per_row=1), max_batch_size=1, queue_capacity=10_000)
    requests = [looping(0, 0, 2_000), *[row(1 + k, 1 + 4 * k, model="quick") for k in range(STREAM)]]
    with_limit = latency_ns(policy, [loops(), quick], requests, 0)
    monkeypatch.setattr(turns, "LENDING", 0)
    assert 2_000 - 8 <= with_limit == latency_ns(policy, [loops(), quick], requests, 0) <= 2_000


@both
def test_a_loop_that_others_keep_alive_makes_room(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of tight deadlines join a loop one after the other, and a long row of another model never fits into their
    slack. It has its turn after some rounds; without that rule, when the stream ends."""
    long = lane_spec(linear("long", fixed=380, per_row=20))
    requests = [looping(k, 30 * k, 300) for k in range(STREAM)]
    requests.append(row(STREAM, 30, model="long"))
    round_ns = 400 + loops_round_ns()
    assert latency_ns(policy, [loops(), long], requests, STREAM) <= turns.ROUNDS * round_ns + 8 * RUN_NS + 400
    monkeypatch.setattr(turns, "ROUNDS", 1e9)
    assert latency_ns(policy, [loops(), long], requests, STREAM) > 30 * STREAM


def loops_round_ns() -> int:
    """Twice the longest run of the model with the loop: what is in flight, and what waits."""
    return 2 * (2 + TRIPS) * (3 + 8)


@both
def test_rows_that_stay_in_a_loop_are_counted_one_by_one(policy: Any) -> None:
    """Others that come and go in the same sub-batch do not make the long row's wait look shorter."""
    quick = lane_spec(linear("quick", fixed=3, per_row=1), max_batch_size=1, queue_capacity=10_000)
    requests = [looping(0, 0), *[row(1 + k, 1 + 4 * k, model="quick") for k in range(STREAM)]]
    requests += [replace(looping(5_000 + k, 10 + 30 * k), trips=(1,)) for k in range(STREAM // 8)]
    assert latency_ns(policy, [loops(), quick], requests, 0) <= 10 * RUN_NS
