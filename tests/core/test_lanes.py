"""Several models side by side: which can share a scheduler, and what is said where they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.lanes import lanes_by_model
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.policies import Continuous, GraphBatching, LazyBatching, Serial
from lazybatch.core.scheduler import Scheduler
from lazybatch.errors import InvalidInput
from tests.core.kit import bare_spec
from tests.core.loop_kit import loop_spec


def test_a_lane_per_model_in_order() -> None:
    """Each is of its own description; policies of whole batches say so to every lane."""
    specs = [bare_spec(name, nodes) for name, nodes in (("b", 2), ("a", 1))]
    lanes = lanes_by_model(specs, Serial(), 1)
    assert list(lanes) == ["b", "a"]
    assert [lane.spec for lane in lanes.values()] == specs
    for policy, whole in ((GraphBatching(), True), (Continuous(), False)):
        (lane,) = lanes_by_model([loop_spec(2, (0, 1))], policy, 1).values()
        assert isinstance(lane.table, LoopTable)
        assert lane.table._whole is whole


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scheduler([], Serial()), "a scheduler needs at least one model"),
        (lambda: Scheduler([bare_spec()], Serial(), processors=0), "processors must be at least 1, got 0"),
        (lambda: Scheduler([bare_spec(), bare_spec()], Serial()), "two models are called 'm'"),
        (lambda: Scheduler([bare_spec()], LazyBatching()), r"policy LazyBatching\(\) needs a latency table for .* 'm'"),
        (lambda: Scheduler([bare_spec(nodes=2)], Serial(), processors=2), "'m' has 2 nodes: one processor only"),
    ],
)
def test_impossible_schedulers_are_refused(make: Any, message: str) -> None:
    """Each error names the model or option at fault."""
    with pytest.raises(InvalidInput, match=message):
        make()
