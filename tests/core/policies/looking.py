"""Schedulers under the default policy, for its tests.

Owns: solved controls (once per table and run of the tests), and short ways to warm up, step, and compare.
Must not know: how the policy decides.
"""

from __future__ import annotations

from functools import cache

from lazybatch.core.control import Control
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.task import Task
from lazybatch.solver import solve_times
from tests.core.conftest import Core
from tests.core.kit import Ledger, row


@cache
def solved(model: str, times_ns: tuple[int, ...]) -> Control:
    """The control for these times of whole batches."""
    return solve_times(model, times_ns)


def control(spec: LaneSpec) -> Control:
    """The control of a lane as it is served."""
    table = spec.latency
    assert table is not None
    sizes = spec.allowed_sizes or tuple(range(1, spec.max_batch_size + 1))
    rows_max = spec.max_batch_size if spec.joinable else 1
    return solved(
        spec.graph.model,
        tuple(table.whole_ns(min(size for size in sizes if size >= b)) for b in range(1, rows_max + 1)),
    )


def lookahead(*specs: LaneSpec) -> Lookahead:
    """The policy for these lanes; it has seen nothing yet."""
    return Lookahead({spec.graph.model: control(spec) for spec in specs})


def looking(core: Core, *specs: LaneSpec, load: float | None = None, sla: int | None = None, now: int = 0) -> Ledger:
    """A scheduler over these lanes whose policy has seen requests at this load, the last of each model at ``now``."""
    policy = lookahead(*specs)
    for spec in specs:
        if load is not None:
            gap_ns = round(1 / (load * control(spec).capacity_per_ns))
            for k in range(100, -1, -1):
                policy.arrived(row(0, now - k * gap_ns, model=spec.graph.model, sla=sla))
    return Ledger(core.scheduler(policy, *specs))


def node_ns(ledger: Ledger, task: Task) -> int:
    """How long a task takes by the table."""
    table: LatencyTable | None = ledger.scheduler.lane_of(task.model).spec.latency
    assert table is not None
    return table.node_ns(task.node, task.padded_rows)


def step(ledger: Ledger, now: int) -> tuple[Task, int]:
    """Run one task from now on; returns it and when it ended. The policy must never have to be overruled."""
    ledger.expire(now)
    task = ledger.schedule(now)
    assert task is not None
    now += node_ns(ledger, task)
    ledger.complete(task, now)
    ledger.scheduler.validate()
    assert ledger.scheduler.policy_error is None
    return task, now


def to_end(ledger: Ledger, now: int) -> None:
    """Serve what is there, in the time the tables say."""
    ledger.scheduler.drain()
    while not ledger.scheduler.idle:
        ledger.expire(now)
        if not ledger.scheduler.idle:
            _, now = step(ledger, now)
    ledger.finish(now)
