"""Past saturation no policy collapses: simulated, at 1.5 times the capacity of the best batch size.

Where batching pays, where it pays nothing, and on unequal nodes; without targets, and with targets of 2 to 20 times a
full batch, late rows served or dropped.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import pytest

from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import by_name
from lazybatch.core.request import Request
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.workload import poisson
from tests.core.kit import lane_spec, linear

TABLES = {
    "pays": linear(nodes=4, fixed=90, per_row=10),
    "pays nothing": linear(nodes=3, fixed=0, per_row=100),
    "unequal": LatencyTable(
        "m", ("a", "b", "c"), (1, 4, 16), ((40, 70, 200), (300, 330, 360), (9, 30, 130)), ((1, 1, 1),) * 3
    ),
}
LOAD = 1.5
REQUESTS = 3_000
LATE: tuple[Literal["serve", "drop"], ...] = ("serve", "drop")


@cache
def offered(name: str, slack: float | None) -> list[Request]:
    """Seeded Poisson arrivals; slack: the target in full batches."""
    table = TABLES[name]
    best_ns = table.whole_ns(16)
    sla_ns = None if slack is None else round(slack * best_ns)
    return requests_from(poisson(LOAD * 16e9 / best_ns, REQUESTS, seed=7), "m", sla_ns=sla_ns)


def overloaded(name: str, policy: str, slack: float | None, late: Literal["serve", "drop"]) -> SimulationResult:
    """The whole trace under one policy."""
    spec = lane_spec(TABLES[name], queue_capacity=100_000, late=late)
    result = simulate([spec], by_name(policy), offered(name, slack))
    result.scheduler.validate()
    assert len(result.latencies_ns) + len(result.dropped) == REQUESTS
    assert result.scheduler.counts.policy_failures == 0
    return result


def best_rps(name: str) -> float:
    """Rows per second of the best batch size."""
    table = TABLES[name]
    return max(rows * 1e9 / table.whole_ns(rows) for rows in range(1, 17))


@pytest.mark.parametrize("policy", ["graph", "cellular", "aimd", "lazy", "oracle"])
@pytest.mark.parametrize("name", TABLES)
class TestOverload:
    """Every shipped batching policy, on every table."""

    def test_throughput_without_targets(self, name: str, policy: str) -> None:
        """Within 5 % of the best batch size's."""
        assert overloaded(name, policy, None, "serve").throughput_rps > 0.95 * best_rps(name)

    @pytest.mark.parametrize("late", LATE)
    @pytest.mark.parametrize("slack", [2, 4, 20])
    def test_throughput_with_targets(
        self, name: str, policy: str, slack: float, late: Literal["serve", "drop"]
    ) -> None:
        """Within 5 % as well, whether late rows are served or dropped."""
        assert overloaded(name, policy, slack, late).throughput_rps > 0.95 * best_rps(name)

    @pytest.mark.parametrize("slack", [2, 4, 20])
    def test_dropping_leaves_answers_that_are_on_time(self, name: str, policy: str, slack: float) -> None:
        """Where late rows are dropped, nine tenths of what could be done at all is done on time."""
        result = overloaded(name, policy, slack, "drop")
        on_time = len(result.latencies_ns) - len(result.late)
        assert on_time * 1e9 / (result.end_ns - result.start_ns) > 0.9 * best_rps(name)


@pytest.mark.parametrize("late", LATE)
def test_serial_does_what_one_row_at_a_time_can(late: Literal["serve", "drop"]) -> None:
    """It never batches, so its own capacity is what it keeps; dropping makes those it serves be on time."""
    result = overloaded("pays", "serial", 4, late)
    assert result.throughput_rps > 0.95 * 1e9 / TABLES["pays"].whole_ns(1)
    assert (not result.late) == (late == "drop")
