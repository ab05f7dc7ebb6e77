"""Policies that forget a warm-up, and what a run's calls come to."""

from __future__ import annotations

import lazybatch as lb
from bench.live import Forgetting, ends, schedule, serve, warm
from lazybatch.core.batch_table import SubBatch
from lazybatch.core.policies import Continuous, GraphBatching
from lazybatch.core.policies.base import Choice, View
from lazybatch.core.request import Request


class Counting(GraphBatching):
    """Notes what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def decide(self, view: View, now: int) -> Choice:
        """As whole batches."""
        self.heard.append("decide")
        return super().decide(view, now)

    def arrived(self, request: Request) -> None:
        """A row came."""
        self.heard.append("arrived")

    def completed(self, sub_batch: SubBatch, now: int) -> None:
        """A sub-batch ended."""
        self.heard.append("completed")


def test_a_warm_up_is_forgotten() -> None:
    """The policy that serves the run is another one than that of the warm-up, and hears what it wants to hear."""
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting())
        return made[-1]

    policy = Forgetting(make)
    with lb.LazyBatcher(lambda rows: rows, max_batch_size=2, policy=policy) as batcher:
        warm(batcher, [1, 2, 3], 2)
        policy.forget()
        warmed = list(made[0].heard)
        outcome = ends(serve(batcher, schedule("<lambda>", [1, 2, 3], [0, 1_000, 2_000], seed=0)))
        assert batcher.stats().policy_failures == 0
    assert len(made) == 2
    assert made[0].heard == warmed
    assert made[1].heard.count("arrived") == 3
    assert set(made[1].heard) == {"decide", "arrived", "completed"}
    assert len(outcome.latencies_ns) == 3
    assert None not in outcome.latencies_ns
    assert (outcome.refused, outcome.failed) == (0, 0)


def test_it_is_what_it_stands_for() -> None:
    """Whether tables are needed and whether batches are whole is as with the policy itself; its name shows."""
    assert Forgetting(GraphBatching).whole_batches == GraphBatching().whole_batches
    assert not Forgetting(Continuous).whole_batches
    assert not Forgetting(Continuous).needs_table
    assert repr(Forgetting(Continuous)) == "Forgetting(Continuous())"
