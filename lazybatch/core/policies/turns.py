"""Whose turn it is among several models, so that none waits for ever.

Owns: `has_lent` (whoever is in flight without a deadline to protect it) and `overdue` (whoever waits).
Must not know: how slack is predicted, or any other policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import View
from lazybatch.core.request import UNBOUNDED_NS, Request

LENDING = 2.0
"""Rows that no deadline protects wait in flight for others for at most so many of their own runs."""
ROUNDS = 3
"""A model is passed over for at most so many times what it takes to serve everyone once."""


def has_lent(lane: Lane, entry: SubBatch, now: int) -> bool:
    """Whether rows in flight have waited for others as long as they should, and no slack of theirs says so.

    That is so of rows without a deadline and of rows that have missed theirs. Only for lanes with a table.
    """
    if entry.deadlines_ns[-1] < UNBOUNDED_NS and entry.deadlines_ns[0] > now:
        return False
    sums_ns, progress = lane.sums_ns[len(entry.requests)], entry.progress
    if progress is None:
        lent_ns = now - entry.started_ns - sums_ns[entry.cursor]
    else:
        before_ns = sums_ns[lane.loops[progress.loop].first]
        lent_ns = progress.waited_ns(now, before_ns, lane.body_ns(progress.loop, len(entry.requests)))
    return lent_ns > LENDING * sums_ns[-1]


def overdue(head: Request, waiting: Sequence[Lane], view: View, now: int, pace: float = 1.0) -> bool:
    """Whether a row that waits has been passed over for too long. waiting: the lanes in which rows wait that
    belong to the round. pace: what the clock shows over the tables. Only for lanes with tables.
    """
    spare_ns = (head.arrival_ns - now) / pace  # mostly a part of the round is more than enough
    for entry in view.stack:
        spare_ns += ROUNDS * view.lane_of(entry.model).run_ns(len(entry.requests))
    for lane in waiting:
        if spare_ns >= 0:
            return False
        spare_ns += ROUNDS * lane.run_ns(min(len(lane.queue), lane.rows_max))
    return spare_ns < 0
