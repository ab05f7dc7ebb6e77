"""Algorithm 1 on graphs with loops: how long one row takes, or still takes.

Owns: `LoopLatency`: static nodes once, encoder nodes times their known trips, decoder nodes times the trips that cover
N % of the lengths seen; with credit for progress, and corrected as iterations go by.
Must not know: batches, queues, policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.request import Request


class LoopLatency:
    """Single-row times of one model.

    single_ns: per node, the time of one row. guesses: per loop, what is known of its trips where requests do not say.
    """

    __slots__ = ("_graph", "_guesses", "_nodes_ns", "_stage_at", "_stages", "_stages_ns")

    def __init__(self, graph: NodeGraph, single_ns: Sequence[int], guesses: Sequence[LengthGuess | None]) -> None:
        self._graph = graph
        self._guesses = guesses
        self._nodes_ns = single_ns
        self._stages = graph.stages()
        self._stages_ns = [sum(single_ns[stage.first : stage.stop]) for stage in self._stages]
        self._stage_at = [n for n, stage in enumerate(self._stages) for _ in range(stage.first, stage.stop)]

    def trips(self, request: Request, loop: int, behind: int = 0) -> int:
        """Trips in total that a row in this loop, with so many behind it, is to be charged for."""
        known = request.trips_in(loop)
        if known is not None:
            return known
        most, guess = self._graph.loops[loop].trips_max, self._guesses[loop]
        if guess is None:
            return behind + 1 if most is None else most
        covering = guess.covering(request.size, behind)
        return covering if most is None else min(covering, most)

    def expected_trips(self, request: Request, loop: int, behind: int = 0) -> float:
        """Trips in total to be expected of a row in this loop, with so many behind it."""
        known, most, guess = request.trips_in(loop), self._graph.loops[loop].trips_max, self._guesses[loop]
        if known is not None or guess is None:
            return self.trips(request, loop, behind)
        mean = guess.mean(request.size, behind)
        return mean if most is None else min(mean, most)

    def left_ns(self, request: Request, cursor: int = 0, behind: int = 0) -> int:
        """Time one row still needs from a node on, with so many iterations of that node's loop behind it."""
        at = self._stage_at[cursor]
        stage = self._stages[at]
        left_ns = sum(self._nodes_ns[cursor : stage.stop])
        if stage.loop is not None:
            left_ns += (self.trips(request, stage.loop, behind) - behind - 1) * self._stages_ns[at]
        for number in range(at + 1, len(self._stages)):
            loop = self._stages[number].loop
            left_ns += self._stages_ns[number] * (1 if loop is None else self.trips(request, loop))
        return left_ns
