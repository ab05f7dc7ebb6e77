"""What serving live takes beyond nodes: the time around them, and the time between the engine and its callers.

Owns: `Overheads`, measuring them on a run, and a table that includes them.
Must not know: which runs they are compared on.

A latency table holds the time inside nodes and, beside it, what the engine takes where nobody else needs the processor
(`LatencyTable.engine`). Live, the engine decides, gathers rows, hands out results, and shares the machine with whoever
submits. Five constants describe that of one run, in place of the table's:

    wake      from a caller's submit until the engine can see the row
    dispatch  per node: deciding, binding, and what the machine's other threads take from a node
    batch     more, per sub-batch: planning, keeping books, handing out
    row       more, per row of it: copying in and out, and the submit of one further row
    answer    from the end of the last node until the caller's callback runs

The middle three keep the processor busy, so they are part of what nodes take (`Overheads.over`); the outer two only add
to each latency. All are fitted (`fit`) to a run of their own, or to the very run that a simulation is compared with:
then they tell it how fast the machine was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from lazybatch.core.latency import LatencyTable
from lazybatch.core.request import Request
from lazybatch.core.task import Task
from lazybatch.metrics import Observer, Outcome

OUTLIERS = 0.005
"""Share of the dispatches, the slowest against the table, that is left out of the fit: the machine's hiccups."""
BUSY_STARTS = 10
"""With fewer batches started by a busy engine, waking cannot be told apart from starting one, and counts as that."""


class Period(NamedTuple):
    """A dispatch with the time since the one before it ended, or, of an idle engine, since its first row was submitted.

    opened: rows that begin with it, 0 where a sub-batch goes on.
    """

    node: int
    rows: int
    opened: int
    idle: bool
    took_ns: int


@dataclass(frozen=True, slots=True)
class Overheads:
    """The constants of the module's text, in nanoseconds."""

    wake_ns: int
    dispatch_ns: int
    batch_ns: int
    row_ns: int
    answer_ns: int

    def over(self, table: LatencyTable, rows_max: int) -> LatencyTable:
        """The nodes of the table with what dispatching takes, at every size up to ``rows_max``.

        A row's share is charged to the first node, where rows are copied in. No entry falls below a microsecond.
        """
        sizes = tuple(range(1, rows_max + 1))
        times = []
        for node, dense in enumerate(table.dense_ns(rows_max)):
            first = self.batch_ns if node == 0 else 0
            per_row = self.row_ns if node == 0 else 0
            times.append(tuple(max(1_000, dense[b] + self.dispatch_ns + first + per_row * b) for b in sizes))
        return LatencyTable(table.model, table.nodes, sizes, tuple(times), tuple(times), {**table.provenance})

    def as_us(self) -> dict[str, float]:
        """For reports, in microseconds."""
        return {name.replace("_ns", "_us"): value / 1e3 for name, value in asdict(self).items()}


class Watched(Observer):
    """Collects the periods of a run, and its requests' latencies as the engine sees them."""

    def __init__(self) -> None:
        self.periods: list[Period] = []
        self.ends_ns: list[int] = []
        self._arrivals_ns: dict[int, int] = {}
        self._last_end_ns = 0

    def clear(self) -> None:
        """Forget the warm-up."""
        self.periods.clear()
        self.ends_ns.clear()

    def arrived(self, now_ns: int, request: Request) -> None:
        """Note when it was submitted."""
        self._arrivals_ns[request.id] = request.arrival_ns

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note how long it took, with all that went before it."""
        came_ns = min((self._arrivals_ns[number] for number in task.opened), default=0)
        begun_ns = max(self._last_end_ns, came_ns)
        self.periods.append(
            Period(task.node, task.rows, len(task.opened), came_ns > self._last_end_ns, end_ns - begun_ns)
        )
        self._last_end_ns = end_ns

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Note its latency up to the end of its last node."""
        submitted_ns = self._arrivals_ns.pop(request.id, None)
        if outcome is Outcome.COMPLETED and submitted_ns is not None:
            self.ends_ns.append(now_ns - submitted_ns)


def fit(watched: Watched, table: LatencyTable, rows_max: int, latencies_ns: Sequence[int]) -> Overheads:
    """The constants that explain a run best, by least squares. latencies_ns: as the callers saw them."""
    dense = table.dense_ns(rows_max)
    extra = np.array([one.took_ns - dense[one.node][one.rows] for one in watched.periods], float)
    kinds = np.array([(1, one.opened > 0, one.opened) for one in watched.periods], float)
    idle = np.array([one.idle for one in watched.periods])
    if np.count_nonzero(~idle & (kinds[:, 1] > 0)) < BUSY_STARTS:
        idle[:] = False
    kept = ~idle & (extra <= np.quantile(extra[~idle], 1 - OUTLIERS))
    constants, *_ = np.linalg.lstsq(kinds[kept], extra[kept], rcond=None)
    left = extra[idle] - kinds[idle] @ constants
    wake = float(np.median(left)) if len(left) else 0.0
    answer = float(np.mean(latencies_ns)) - float(np.mean(watched.ends_ns))
    dispatch, batch, row = (round(float(value)) for value in constants)
    return Overheads(max(0, round(wake)), dispatch, batch, row, max(0, round(answer)))
