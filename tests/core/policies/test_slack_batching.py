"""What completes the paper's text, under Eq. 2 and under the exact table: dropping, and the largest useful batch.

Lost rows, merging, other models and other signatures are tested with `LazyBatching`.
"""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import LazyBatching, Oracle
from lazybatch.core.task import Reason
from tests.core.conftest import Core
from tests.core.kit import Ledger, lane_spec, row

both = pytest.mark.parametrize("policy", [LazyBatching(), Oracle()], ids=repr)


def dropping(core: Core, policy: Any, slas: list[int], signatures: str = "", **options: Any) -> Ledger:
    """One lane of one node, 90 + 10 b, at most two rows in a batch; rows wait that may be dropped."""
    ledger = Ledger(core.scheduler(policy, lane_spec(**{"max_batch_size": 2, "late": "drop", **options})))
    for id, sla in enumerate(slas):
        ledger.add(row(id, sla=sla, signature=signatures[id] if signatures else None))
    return ledger


@both
def test_where_rows_would_be_dropped_the_largest_batch_starts(core: Core, policy: Any) -> None:
    """Slack starts the first row alone; the second would be lost behind it. The batch starts with those it serves."""
    ledger = dropping(core, policy, [105, 150, 250, 250])
    task = ledger.schedule(0)
    assert task is not None
    assert (task.opened, task.reason) == ((1, 2), Reason.START_LATE)
    ledger.complete(task, 110)
    ledger.expire(110)
    assert ledger.left[0] == "dropped"
    ledger.finish(110)


@both
def test_the_last_row_that_waits_counts_as_well(core: Core, policy: Any) -> None:
    """Alone one by one, the next row would be on time and the fifth not."""
    ledger = dropping(core, policy, [105, 200, 499, 499, 499])
    task = ledger.schedule(0)
    assert task is not None
    assert (task.opened, task.reason) == ((1, 2), Reason.START_LATE)
    ledger.finish(0)


@both
@pytest.mark.parametrize(
    ("slas", "signatures", "options"),
    [
        ([105, 150], "", {}),
        ([105, 300, 300], "", {}),
        ([105, 150, 250, 250], "xyxy", {}),
        ([105, 150, 250, 250], "", {"late": "serve"}),
    ],
    ids=["no full batch waits", "all can be served", "others do not fill it", "late rows are served"],
)
def test_otherwise_slack_decides(
    core: Core, policy: Any, slas: list[int], signatures: str, options: dict[str, Any]
) -> None:
    """One row starts, and others wait for it, also those that will be lost."""
    ledger = dropping(core, policy, slas, signatures, **options)
    task = ledger.schedule(0)
    assert task is not None
    assert (task.opened, task.reason) == ((0,), Reason.START_IDLE)
    ledger.finish(0)


@both
def test_no_batch_is_larger_than_is_of_use(core: Core, policy: Any) -> None:
    """Where eight rows take more than twice the time of four, four start, and nobody joins four."""
    times = ((100, 200, 800), (100, 200, 800))
    ledger = Ledger(core.scheduler(policy, lane_spec(LatencyTable("m", ("a", "b"), (1, 4, 8), times, times))))
    for id in range(6):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    assert (task.rows, task.reason) == (4, Reason.START_FULL)
    ledger.complete(task, 200)
    going_on = ledger.schedule(200)
    assert going_on is not None
    assert going_on.reason is Reason.CONTINUE
    ledger.complete(going_on, 400)
    ledger.finish(400)
