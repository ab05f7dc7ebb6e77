"""Ride-along: rows of a narrower bucket may fill up a batch of a wider one that starts anyway.

Owns: `Riding`, around any policy, and `riders`, the rule. Must not know: what widening does to a row, tensors, clocks.

Models that are padded to buckets have a lane per bucket, each with its own table. What starts when is the policy's
to say; where it starts a batch on a free processor and there is room in it, this adds narrower rows where padding them
further is cheaper than their waiting. The alternative they are held against is running right behind the batch, in one
of their own, which is the best they could hope for. They ride where

* nobody behind them starts later: the batch grows by no more than their own batch shrinks;
* none of them ends later: that follows;
* all concerned, the batch's own rows included, spend no more time altogether;
* no row of the batch that would be in time is made late, and none waits for one of a lower priority.

Batches that preempt take no riders along: those below would wait for them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import HOOKS, Choice, Policy, Start, View
from lazybatch.core.request import Request


class Riding:
    """A policy whose batches take narrower rows along. See the module's text.

    It passes on what the policy wants to hear, and keeps to its ``max_batch_size`` where it has one.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.needs_table = policy.needs_table
        for optional in (*HOOKS, "whole_batches"):
            if hasattr(policy, optional):
                setattr(self, optional, getattr(policy, optional))

    def __repr__(self) -> str:
        return f"Riding({self.policy!r})"

    def decide(self, view: View, now: int) -> Choice:
        """What the policy chooses, with riders where it starts a batch on a free processor."""
        choice = self.policy.decide(view, now)
        if type(choice) is not Start or view.stack or choice.size_budget is not None:
            return choice
        lane = choice.lane
        most = getattr(self.policy, "max_batch_size", None)
        others = [one for one in view.lanes if lane.model in one.spec.wider and len(one.queue) and one.sums_ns]
        if not others or not lane.sums_ns:
            return choice
        rows = lane.queue.peek(now, choice.rows, skip=choice.skip)
        room = min(lane.rows_max, most or lane.rows_max) - len(rows)
        others.sort(key=lambda one: -one.run_ns(1))
        taken = _fill(lane, rows, others, room, now, getattr(self.policy, "pace", 1.0))
        return choice._replace(riders=taken) if taken else choice


def _fill(
    lane: Lane, rows: Sequence[Request], others: Sequence[Lane], room: int, now: int, pace: float
) -> tuple[tuple[str, int], ...]:
    """Riders of each of the narrower lanes, the widest of them first. pace: what the clock shows over the tables."""
    taken: list[tuple[str, int]] = []
    count = len(rows)
    level = max(request.priority for request in rows)
    lefts_ns = [(request.deadline_ns - now) / pace for request in rows]
    limit_ns = min((left_ns for left_ns in lefts_ns if left_ns >= lane.run_ns(count)), default=None)
    for other in others:
        waiting = other.queue.peek(now, other.rows_max)
        if waiting[0].signature != rows[0].signature:
            continue
        fits = sum(1 for _ in takewhile(lambda request: request.priority >= level, waiting))
        riding = riders(lane, count, other, len(waiting), min(room, fits), limit_ns)
        if riding:
            taken.append((other.model, riding))
            count += riding
            room -= riding
    return tuple(taken)


def riders(lane: Lane, rows: int, other: Lane, waiting: int, room: int, limit_ns: float | None = None) -> int:
    """How many of the rows that wait in a narrower lane ride in a batch of ``rows``; see the module's text.

    waiting: at most one batch of theirs. limit_ns: by the table, the batch must not take longer.
    Both lanes have tables.
    """
    alone_ns, theirs_ns = lane.run_ns(rows), other.run_ns(waiting)
    for riding in range(min(waiting, room), 0, -1):
        run_ns = lane.run_ns(rows + riding)
        more_ns, left = run_ns - alone_ns, waiting - riding
        left_ns = other.run_ns(left) if left else 0
        if (
            more_ns + left_ns <= theirs_ns
            and (rows + waiting) * more_ns + left * left_ns <= waiting * theirs_ns
            and (limit_ns is None or run_ns <= limit_ns)
        ):
            return riding
    return 0
