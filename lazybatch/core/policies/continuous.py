"""Continuous batching (Orca, OSDI 2022): at every iteration of a running loop, all that wait and fit join it.

Owns: `Continuous`, what servers of language models do, for any graph with loops.
Must not know: latencies; it predicts nothing.

Whenever the active sub-batch comes back to the first node of a loop, the newcomers run what lies before it and join,
whatever that costs those who run. Those that come meanwhile wait for the next step: one iteration runs in between, or
arrivals could hold up the loop for good. Rows leave at the step at which they are done. Where newcomers cannot mix with
rows at later iterations, and on a chain, nobody joins: then it is GraphB(0), but for rows leaving early.

Several models: nobody joins while the most urgent of those that wait belongs to another one. So the running loop comes
to its end, and the other model has its turn.
"""

from __future__ import annotations

from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, View, most_urgent_first
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.task import Reason


class Continuous:
    """Joins at every step of a loop; on a chain it decides as GraphB(0) does."""

    needs_table = False

    def __init__(self) -> None:
        self._idle = GraphBatching()
        self._last_joined: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def decide(self, view: View, now: int) -> Choice:
        """At the first node of a loop let all that wait and fit join; else go on; else start all that wait and fit."""
        active = view.active
        if active is None:
            return self._idle.decide(view, now)
        if active.progress is None:
            return None
        standing = (active.id, active.progress.steps)
        if standing == self._last_joined:
            return None
        lane = view.lane_of(active.model)
        if not self._may_join(lane, active.cursor):
            return None
        head = lane.queue.head(now)
        if head is None or head.signature != active.signature or most_urgent_first(view.lanes, now)[0] is not lane:
            return None
        room = lane.rows_max - lane.table.rows
        if room <= 0 or len(lane.table) > 1:  # rows wait behind this loop for those that run in it
            return None
        self._last_joined = standing
        return Start(lane, room, Reason.JOIN_STEP)

    def _may_join(self, lane: Lane, cursor: int) -> bool:
        """Whether newcomers may be sent after a sub-batch that stands at this node."""
        return any(loop.first == cursor and not loop.same_iteration for loop in lane.loops)
