"""Predicting what a stack of sub-batches will still take, from exact tables.

Owns: `Running` (one sub-batch as the prediction sees it), `Drain` and `drain`: total time, row-time and late rows if
the stack runs to its end without further newcomers.
Must not know: queues, arrival rates, decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from lazybatch.core.lane import Lane


class Running(NamedTuple):
    """A sub-batch: its lane, next node, rows, signature, and the ascending deadlines of its rows."""

    lane: Lane
    cursor: int
    rows: int
    signature: object
    deadlines_ns: tuple[Sequence[int], ...]


class Drain(NamedTuple):
    """The predicted end of a stack.

    time_ns: until everything is done. row_time_ns: sum over rows of the time until each is done. late: rows that end
    after their deadline.
    """

    time_ns: int
    row_time_ns: int
    late: int


def drain(stack: list[Running], now: int) -> Drain:
    """Run the stack in thought, top first; a sub-batch that reaches an older one of its model merges with it.

    ``stack`` is consumed. Merging follows the BatchTable: equal nodes and signatures, and rows within the maximum.
    """
    time_ns = row_time_ns = late = 0
    inside = sum(entry.rows for entry in stack)
    while stack:
        top = stack.pop()
        lane, cursor, rows, signature, deadlines_ns = top
        below = _met(stack, top)
        sums = lane.sums_ns[rows]
        if below is None:
            step_ns = sums[-1] - sums[cursor]
            time_ns += step_ns
            row_time_ns += inside * step_ns
            inside -= rows
            end_ns = now + time_ns
            for ascending in deadlines_ns:
                late += bisect_left(ascending, end_ns)
        else:
            mate = stack.pop(below)
            step_ns = sums[mate.cursor] - sums[cursor]
            time_ns += step_ns
            row_time_ns += inside * step_ns
            stack.append(Running(lane, mate.cursor, rows + mate.rows, signature, (*deadlines_ns, *mate.deadlines_ns)))
    return Drain(time_ns, row_time_ns, late)


def _met(stack: list[Running], top: Running) -> int | None:
    """Position of the sub-batch the top will meet and may merge with; None where it runs to its end alone."""
    for position in range(len(stack) - 1, -1, -1):
        entry = stack[position]
        if entry.lane is top.lane:
            meets = (
                entry.cursor >= top.cursor
                and entry.rows + top.rows <= top.lane.rows_max
                and entry.signature == top.signature
            )
            return position if meets else None
    return None
