"""Cellular batching (BatchMaker, EuroSys 2018): requests join where they run the same cell with the same weights.

Owns: `Cellular`. Must not know: latencies; it predicts nothing.

A cell is the body of a loop. All iterations share its weights, so a newcomer may join requests that are many iterations
ahead, at the next boundary of the cell, as long as nothing but cells lies before it. Any other node has weights of its
own and a request passes it once: there is no boundary at which a newcomer could join those that went before, and in
front of such nodes cellular batching is graph batching without a window, as the LazyBatching paper says of it.
"""

from __future__ import annotations

from lazybatch.core.lane import Lane
from lazybatch.core.policies.continuous import Continuous


class Cellular(Continuous):
    """Joins at every step of a loop that no chain leads to; elsewhere it decides as GraphB(0) does."""

    def _may_join(self, lane: Lane, cursor: int) -> bool:
        in_loops = sum(loop.stop - loop.first for loop in lane.loops if loop.first < cursor)
        return in_loops == cursor and super()._may_join(lane, cursor)
