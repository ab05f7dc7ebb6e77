"""Predicting what a stack of sub-batches will still take, from exact tables.

Owns: `Running` (one sub-batch as the prediction sees it), `Drain` and `drain`: total time, row-time and late rows if
the stack runs to its end without further newcomers.
Must not know: queues, arrival rates, decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from lazybatch.core.lane import Lane


class Running(NamedTuple):
    """A sub-batch: its lane, next node, rows, signature, and the ascending deadlines of its rows (several runs)."""

    lane: Lane
    cursor: int
    rows: int
    signature: Hashable
    deadlines_ns: tuple[Sequence[int], ...]


class Drain(NamedTuple):
    """The predicted end of a stack.

    time_ns: until everything is done. row_time_ns: sum over rows of the time until each is done.
    late_ns: what the rows that end after their deadline cost, at the given price for one of each model.
    """

    time_ns: int
    row_time_ns: int
    late_ns: float


def drain(stack: list[Running], now: int, penalty_ns: dict[str, float]) -> Drain:
    """Run the stack in thought, top first; a sub-batch that reaches an older one of its model merges with it.

    ``stack`` is consumed. Merging follows the BatchTable: equal nodes and signatures, and rows within the maximum.
    penalty_ns: by model, the price of one row that ends late; models not in it have no deadlines.
    """
    time_ns = row_time_ns = 0
    late_ns = 0.0
    inside = sum([entry[2] for entry in stack])
    while stack:
        lane, cursor, rows, signature, deadlines_ns = stack.pop()
        sums = lane.sums_ns[rows]
        below = _met(stack, lane, cursor, rows, signature)
        if below is None:
            step_ns = sums[-1] - sums[cursor]
            time_ns += step_ns
            row_time_ns += inside * step_ns
            inside -= rows
            price_ns = penalty_ns.get(lane.model)
            if price_ns is not None:
                end_ns = now + time_ns
                for ascending in deadlines_ns:
                    late_ns += price_ns * bisect_left(ascending, end_ns)
        else:
            _, cursor_met, rows_met, _, deadlines_met_ns = stack.pop(below)
            step_ns = sums[cursor_met] - sums[cursor]
            time_ns += step_ns
            row_time_ns += inside * step_ns
            stack.append(Running(lane, cursor_met, rows + rows_met, signature, deadlines_ns + deadlines_met_ns))
    return Drain(time_ns, row_time_ns, late_ns)


def _met(stack: list[Running], lane: Lane, cursor: int, rows: int, signature: Hashable) -> int | None:
    """Position of the sub-batch the top will meet and may merge with; None where it runs to its end alone."""
    for position in range(len(stack) - 1, -1, -1):
        entry = stack[position]
        if entry.lane is lane:
            meets = (
                entry.cursor >= cursor and entry.rows + rows <= lane.rows_max and entry.signature == signature
            )
            return position if meets else None
    return None
