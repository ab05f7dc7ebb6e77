"""Policies side by side, live, on a machine whose pace changes: what nodes took, whose turn it is, and ratios.

Owns: `Pace`, which sees what nodes took while rows were served; the order of runs; the median of ratios, and how sure
it is.
Must not know: which policies are compared, what is wanted of them.

A shared machine gets slower and faster within seconds, by more than policies differ. So runs are short and many, and
what is compared is two runs of one seed, one soon after the other: half of such ratios are too high and half too low,
whatever the machine did. How much it did is seen in the runs themselves, since every node's time is known.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import NamedTuple, TypeVar

from lazybatch.core.latency import LatencyTable
from lazybatch.core.task import Task
from lazybatch.metrics import Observer

SURE = 0.9
"""How likely the interval around a median holds the true one."""

T = TypeVar("T")


class Pace(Observer):
    """What nodes took, and what they should have by a table. rows_max: the largest sub-batch that is served."""

    def __init__(self, table: LatencyTable, rows_max: int) -> None:
        self._table = table
        self._expected = table.dense_ns(rows_max)
        self.restart()

    def restart(self) -> None:
        """Forget what was seen; while nothing runs."""
        self._took_ns = [0] * len(self._expected)
        self._by_table_ns = [0] * len(self._expected)

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`."""
        if not failed:
            self._took_ns[task.node] += end_ns - start_ns
            self._by_table_ns[task.node] += self._expected[task.node][task.padded_rows]

    @property
    def ratio(self) -> float:
        """What all nodes took, over what the table says: 1.2 where the machine was a fifth slower. 1 without nodes."""
        by_table_ns = sum(self._by_table_ns)
        return sum(self._took_ns) / by_table_ns if by_table_ns else 1.0

    def table(self) -> LatencyTable:
        """The table as it would have been meanwhile: each node's times at its own pace, the engine's at that of all."""
        factors = [
            took_ns / by_table_ns if by_table_ns else self.ratio
            for took_ns, by_table_ns in zip(self._took_ns, self._by_table_ns, strict=True)
        ]
        engine = self._table.engine
        if engine is not None:
            times = (engine.open_ns, engine.open_row_ns, engine.continue_ns, engine.continue_row_ns)
            engine = type(engine)(*(round(time_ns * self.ratio) for time_ns in times))
        return replace(
            self._table,
            median_ns=_scaled(self._table.median_ns, factors),
            high_ns=_scaled(self._table.high_ns, factors),
            engine=engine,
        )


def _scaled(times_ns: Sequence[Sequence[int]], factors: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    nodes = zip(times_ns, factors, strict=True)
    return tuple(tuple(max(1, round(time_ns * factor)) for time_ns in node) for node, factor in nodes)


def in_turns(items: Sequence[T], number: int) -> list[T]:
    """The order of round ``number``: begins with another one each time, and runs backwards every second time, so that
    in the long run everyone is next to everyone else, as often before as behind."""
    shift = number // 2 % len(items)
    order = [*items[shift:], *items[:shift]]
    return order[::-1] if number % 2 else order


class Middle(NamedTuple):
    """A median, and between which values the true one lies with probability `SURE`, as far as so few values can say."""

    median: float
    low: float
    high: float

    def text(self) -> str:
        """For tables."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def middle(values: Sequence[float]) -> Middle:
    """Their median. The interval is the sign test's: how many of the values lie below the true median is a matter of
    tossing coins (Conover, Practical Nonparametric Statistics, 3.2); of fewer than five it is all there are."""
    ordered = sorted(values)
    count = len(ordered)
    outside = (1 - SURE) / 2 * 2**count
    cut, below = 0, 1
    while below + comb(count, cut + 1) <= outside:
        cut += 1
        below += comb(count, cut)
    return Middle(statistics.median(ordered), ordered[cut], ordered[count - 1 - cut])
