"""Algorithm 1 on graphs with loops: how long one row takes, or still takes.

Owns: `LoopLatency`: static nodes once, encoder nodes times their known trips, decoder nodes times the trips that cover
N % of the lengths seen; with credit for progress, and corrected as iterations go by.
Must not know: batches, queues, policies.

It is asked about all rows of a sub-batch at every step, so what lengths seen say is tabulated by iterations made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.request import Request

Number = TypeVar("Number", int, float)
Tables = Sequence[Sequence[Number]]
"""By group of input sizes, by iterations behind a row: iterations left. A row longer than all ends with its next."""


class LoopLatency:
    """Single-row times of one model.

    single_ns: per node, the time of one row. guesses: per loop, what is known of its trips where requests do not say.
    """

    __slots__ = (
        "_covering",
        "_expected",
        "_graph",
        "_guesses",
        "_most_left",
        "_nodes_ns",
        "_stage_at",
        "_stages",
        "_stages_ns",
    )

    def __init__(self, graph: NodeGraph, single_ns: Sequence[int], guesses: Sequence[LengthGuess | None]) -> None:
        self._graph = graph
        self._guesses = guesses
        self._nodes_ns = single_ns
        self._stages = graph.stages()
        self._stages_ns = [sum(single_ns[stage.first : stage.stop]) for stage in self._stages]
        self._stage_at = [n for n, stage in enumerate(self._stages) for _ in range(stage.first, stage.stop)]
        pairs = [(guess, loop.trips_max) for guess, loop in zip(guesses, graph.loops, strict=True)]
        self._covering: list[Tables[int]] = [_covering_left(guess, most) for guess, most in pairs]
        self._expected: list[Tables[float]] = [_expected_left(guess, most) for guess, most in pairs]
        self._most_left = [max([1.0, *[left for table in tables for left in table]]) for tables in self._expected]

    def charged_left(self, requests: Sequence[Request], loop: int, behind: Mapping[int, int]) -> list[int]:
        """Iterations in a loop that each of these rows is to be charged for from now on, the next one included.

        behind: by id, how many of its iterations a row has behind it; those it does not name have none.
        """
        return self._left(self._covering[loop], requests, loop, behind)

    def expected_left(self, requests: Sequence[Request], loop: int, behind: Mapping[int, int]) -> list[float]:
        """The same, to be expected on average."""
        return self._left(self._expected[loop], requests, loop, behind)

    def guesses(self, loop: int) -> bool:
        """Whether anything is known of the trips of rows that do not say them: `most_left` bounds what is expected."""
        return self._guesses[loop] is not None

    def most_left(self, loop: int) -> float:
        """The most iterations that are expected of any row whose trips are not known; at least one."""
        return self._most_left[loop]

    def _left(
        self, tables: Tables[Number], requests: Sequence[Request], loop: int, behind: Mapping[int, int]
    ) -> list[Number]:
        guess, most = self._guesses[loop], self._graph.loops[loop].trips_max
        left: list[Number] = []
        for request in requests:
            done = behind.get(request.id, 0)
            trips = request.trips[loop] if request.trips else None
            if trips is not None:
                left.append(trips - done)
            elif guess is None:
                left.append(1 if most is None else most - done)
            else:
                table = tables[0 if len(tables) == 1 else guess.place(request.size)]
                left.append(table[done] if done < len(table) else 1)
        return left

    def lefts_ns(self, requests: Sequence[Request], cursor: int, behind: Mapping[int, int]) -> list[int]:
        """Time that each of these rows would still need alone from a node on.

        behind: by id, the iterations that a row has behind it of the loop in which that node lies.
        """
        at = self._stage_at[cursor]
        stage = self._stages[at]
        once_ns = sum(self._nodes_ns[cursor : stage.stop])
        loops: list[tuple[int, list[int]]] = []
        if stage.loop is not None:
            once_ns -= self._stages_ns[at]
            loops.append((self._stages_ns[at], self.charged_left(requests, stage.loop, behind)))
        for number in range(at + 1, len(self._stages)):
            loop = self._stages[number].loop
            if loop is None:
                once_ns += self._stages_ns[number]
            else:
                loops.append((self._stages_ns[number], self.charged_left(requests, loop, {})))
        lefts_ns = [once_ns] * len(requests)
        for body_ns, lefts in loops:
            lefts_ns = [left_ns + left * body_ns for left_ns, left in zip(lefts_ns, lefts, strict=True)]
        return lefts_ns

    def left_ns(self, request: Request, cursor: int = 0, behind: int = 0) -> int:
        """Time one row still needs from a node on, with so many iterations of that node's loop behind it."""
        return self.lefts_ns((request,), cursor, {request.id: behind})[0]


def _covering_left(guess: LengthGuess | None, most: int | None) -> Tables[int]:
    groups = () if guess is None else guess.groups
    return [[min(trips, most or trips) - done for done, trips in enumerate(g.covering[:most])] for g in groups]


def _expected_left(guess: LengthGuess | None, most: int | None) -> Tables[float]:
    groups = () if guess is None else guess.groups
    return [[min(trips, most or trips) - done for done, trips in enumerate(g.mean[:most])] for g in groups]
