"""Offering load to a live batcher, as every script does it.

Owns: warming up, and policies that forget it; the seeded schedule of rows, and what a run's calls came to, in order
of arrival.
Must not know: which figures are wanted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lazybatch as lb
from lazybatch.core.policies.base import HOOKS, Choice, Policy, View
from lazybatch.demo.load import Call, Offer, offer
from lazybatch.metrics import latency_summary

WARM_UP_CALLS = 4


@dataclass(frozen=True, slots=True)
class Ends:
    """How the calls of one run ended, in order of arrival.

    submit_ns: from the first scheduled moment. latencies_ns: from submit to result; None for a call without a result.
    lags_ns: how much later than scheduled each was submitted. refused: calls the full queue turned away or that were
    dropped as hopeless. failed: calls that ended with any other error.
    """

    submit_ns: tuple[int, ...]
    latencies_ns: tuple[int | None, ...]
    lags_ns: tuple[int, ...]
    refused: int
    failed: int

    @property
    def lag_p99_ms(self) -> float:
        """How late the load generator itself was, at its 99th percentile."""
        return (latency_summary(self.lags_ns).p99 or 0) / 1e6


class Forgetting:
    """A policy that is made anew on demand. A warm-up teaches it a rate at which nobody will come in the run, and short
    runs would be over before it had learnt better.

    make: makes the policy. `forget` is for moments at which nothing waits and nothing runs.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self.forget()
        self.needs_table = self._policy.needs_table
        self.whole_batches = getattr(self._policy, "whole_batches", False)
        for hook in HOOKS:
            if hasattr(self._policy, hook):  # others are not told, as without this
                setattr(self, hook, partial(self._tell, hook))

    def __repr__(self) -> str:
        return f"Forgetting({self._policy!r})"

    def forget(self) -> None:
        """Begin with one that has seen nothing."""
        self._policy = self._make()

    def decide(self, view: View, now: int) -> Choice:
        """See `Policy.decide`."""
        return self._policy.decide(view, now)

    def _tell(self, hook: str, *news: object) -> None:
        getattr(self._policy, hook)(*news)


def warm(batcher: lb.LazyBatcher, rows: Sequence[Any], rows_max: int, model: str | None = None) -> None:
    """One full batch and a few single rows, so that nothing is done for the first time while it is measured."""
    batcher.predict_batch(rows[:rows_max], model=model)
    for row in rows[:WARM_UP_CALLS]:
        batcher.predict(row, model=model)


def schedule(model: str, rows: Sequence[Any], arrivals_ns: Sequence[int], seed: int) -> list[Offer]:
    """An offer per arrival, of rows drawn with the seed."""
    rng = random.Random(seed)
    return [Offer(at_ns, model, rng.choice(rows)) for at_ns in arrivals_ns]


def serve(batcher: lb.LazyBatcher, offers: Sequence[Offer]) -> list[Call]:
    """Offer them open loop, and wait for all ends. ``offers`` of several models may come in any order."""
    return offer(batcher, sorted(offers, key=lambda one: one.at_ns))


def ends(calls: Sequence[Call]) -> Ends:
    """What the calls came to."""
    start_ns = min((call.submit_ns - call.lag_ns - call.offer.at_ns for call in calls), default=0)
    refused = sum(call.rejected or isinstance(call.error, lb.DeadlineExceeded) for call in calls)
    return Ends(
        tuple(call.submit_ns - start_ns for call in calls),
        tuple(call.latency_ns for call in calls),
        tuple(max(0, call.lag_ns) for call in calls),
        refused,
        sum(call.error is not None for call in calls) - refused,
    )
