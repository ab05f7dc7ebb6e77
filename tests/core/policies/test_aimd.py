"""AIMD: growth by steps, back-off by a tenth, what counts as a miss, models apart, and where it settles."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.policies import Aimd
from lazybatch.core.task import Reason, Task
from lazybatch.errors import InvalidInput
from lazybatch.simulator import requests_from, simulate
from tests.core.conftest import Core
from tests.core.kit import Ledger, bare_spec, lane_spec, linear, row


def batch(ledger: Ledger, now: int, took: int) -> Task:
    """Run one whole batch of a one-node model; returns its task."""
    task = ledger.schedule(now)
    assert task is not None
    ledger.complete(task, now + took)
    return task


def queued(core: Core, policy: Aimd, rows: int, *, sla: int | None, **options: Any) -> Ledger:
    """A scheduler with one lane without a table in which rows wait."""
    ledger = Ledger(core.scheduler(policy, bare_spec(**options)))
    for id in range(rows):
        ledger.add(row(id, sla=sla))
    return ledger


@pytest.mark.parametrize(("step", "sizes"), [(1, [1, 2, 3, 4, 5, 5]), (3, [1, 4, 5, 5, 5])])
def test_without_misses_the_maximum_grows_by_the_step_to_the_models(core: Core, step: int, sizes: list[int]) -> None:
    """From one row, to the lane's five, and no further; there is no target, so nothing is ever missed."""
    ledger = queued(core, Aimd(step), 20, sla=None, max_batch_size=5)
    tasks = [batch(ledger, now, 1) for now in range(len(sizes))]
    assert [task.rows for task in tasks] == sizes
    assert {task.reason for task in tasks} == {Reason.START_FULL}


def test_a_miss_backs_off_by_a_tenth(core: Core) -> None:
    """A miss at a maximum of 20 makes it 18; at 1 there is nothing to give up."""
    ledger = queued(core, Aimd(19), 200, sla=10, max_batch_size=20)
    sizes = [batch(ledger, 0, took).rows for took in (11, 10, 11, 10, 0, 0)]
    assert sizes == [1, 1, 20, 18, 20, 20], "on time to the nanosecond is no miss; a step of 19 ends at the maximum"


def test_only_the_batchs_own_run_is_held_against_the_target(core: Core) -> None:
    """Rows that are late because they waited do not make batches smaller."""
    ledger = queued(core, Aimd(), 6, sla=10)
    assert [batch(ledger, now, 10).rows for now in (1_000, 2_000, 3_000)] == [1, 2, 3]


def test_the_tightest_target_of_the_batch_counts(core: Core) -> None:
    """Of two rows one allows 5: a run of 6 misses it."""
    ledger = queued(core, Aimd(), 1, sla=None)
    batch(ledger, 0, 6)
    ledger.add(row(1, 6))
    ledger.add(row(2, 6, sla=5))
    assert batch(ledger, 6, 6).rows == 2
    for id in (3, 4):
        ledger.add(row(id, 12))
    assert batch(ledger, 12, 1).rows == 1


def test_a_batch_that_is_not_full_says_nothing_about_larger_ones(core: Core) -> None:
    """Lone rows do not make the maximum grow: it stays at two until two rows have run together."""
    ledger = Ledger(core.scheduler(Aimd(), bare_spec()))
    for id in range(5):
        ledger.add(row(id, id))
        assert batch(ledger, id, 1).reason is (Reason.START_FULL if id == 0 else Reason.START_IDLE)
    for id in range(5, 10):
        ledger.add(row(id, 5))
    assert [batch(ledger, now, 1).rows for now in (5, 6)] == [2, 3]


def test_models_learn_apart(core: Core) -> None:
    """The maximum of one model is not that of another."""
    ledger = Ledger(core.scheduler(Aimd(), bare_spec("a"), bare_spec("b")))
    for id in range(3):
        ledger.add(row(id, model="a"))
    for id in range(3, 6):
        ledger.add(row(id, 1, model="b"))
    assert [(task.model, task.rows) for task in (batch(ledger, now, 1) for now in range(2, 6))] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize("step", [0, -1, 1.5, True, "1"])
def test_an_absurd_step_is_refused(step: Any) -> None:
    """It names the option and what it was given."""
    with pytest.raises(InvalidInput, match="aimd: step must be a whole number of at least 1"):
        Aimd(step)


def test_it_settles_below_the_size_that_misses() -> None:
    """Simulated: S(b) = 90 + 10 b and a target of 200 allow 11 rows; at saturation batches move between 9 and 12."""
    spec = lane_spec(linear(), queue_capacity=10_000)
    result = simulate([spec], Aimd(), requests_from([0] * 2_000, "m", sla_ns=200))
    sizes = [decision.task.rows for decision in result.scheduler.decisions]
    assert sizes[:12] == list(range(1, 13))
    assert set(sizes[12:-1]) == {10, 11, 12}
