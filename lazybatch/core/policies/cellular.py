"""Cellular batching (BatchMaker, EuroSys 2018): requests join where they run the same cell with the same weights.

Owns: `Cellular`, and what it comes to on a chain of nodes.
Must not know: latencies; it predicts nothing.

A cell is the body of a loop. All iterations share its weights, so a newcomer may join requests that are many iterations
ahead, at the next boundary of the cell. In a chain every node has weights of its own and a request passes it once:
there is no boundary at which a newcomer could join those that went before, and cellular batching is graph batching
without a window, as the LazyBatching paper says of it. A graph here is a chain, so that is what is delegated to.
"""

from __future__ import annotations

from lazybatch.core.policies.base import Choice, View
from lazybatch.core.policies.graph_batching import GraphBatching


class Cellular:
    """Joins at loop bodies; on a chain it decides as GraphB(0) does."""

    needs_table = False

    def __init__(self) -> None:
        self._chain = GraphBatching()

    def __repr__(self) -> str:
        return "Cellular()"

    def decide(self, view: View, now: int) -> Choice:
        """Go on with what runs; else start all that wait and fit."""
        return self._chain.decide(view, now)
