"""Graph batching: whole-graph batches, by size or by the oldest row's window.

Owns: `GraphBatching`, the baseline of every serving system, and the fallback for whatever cannot be split.
Must not know: latencies, but for one use of them: where late rows are dropped and more than a batch waits, it passes
over the rows in front that the batch would make late. It never preempts.

With a window of zero, GraphB(0), it is work-conserving: whenever the processor is free, take all that wait.
"""

from __future__ import annotations

from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane
from lazybatch.core.policies.base import Choice, Start, View, Wait, most_urgent_first
from lazybatch.core.task import Reason
from lazybatch.errors import InvalidInput


class GraphBatching:
    """Starts a batch when it is full, or when its oldest row has waited for the window.

    window_ns: how long the oldest row may wait for company, from its arrival. max_batch_size: rows per batch (None: the
    lane's maximum). size_budget: cap on the sum of the rows' sizes, for example tokens; the first row always fits.

    The most urgent row decides whose turn it is and which signature (shape, length bucket) runs next; rows of other
    signatures wait their turn, so a stream of short rows cannot starve a long one.
    """

    needs_table = False

    def __init__(self, window_ns: int = 0, max_batch_size: int | None = None, size_budget: int | None = None) -> None:
        for name, value, least in (
            ("window_ns", window_ns, 0),
            ("max_batch_size", max_batch_size, 1),
            ("size_budget", size_budget, 1),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise InvalidInput(f"graph batching: {name} must be a whole number of at least {least}, got {value!r}")
        self.window_ns = window_ns
        self.max_batch_size = max_batch_size
        self.size_budget = size_budget

    def __repr__(self) -> str:
        return f"GraphBatching(window_ns={self.window_ns}, max={self.max_batch_size}, size_budget={self.size_budget})"

    def decide(self, view: View, now: int) -> Choice:
        """Go on with what runs; else start the first ready batch; else wait for a window to end."""
        if view.active is not None:
            return None
        waits_ns: list[int] = []
        for lane in most_urgent_first(view.lanes, now):
            reason, end_ns = self._ready(lane, now, view.draining)
            if reason is not None:
                rows = self._rows_max(lane)
                return Start(lane, rows, reason, self.size_budget, skip=lane.made_late(rows, now))
            waits_ns.append(end_ns)
        return Wait(min(waits_ns))

    def _rows_max(self, lane: Lane) -> int:
        return lane.rows_max if self.max_batch_size is None else min(lane.rows_max, self.max_batch_size)

    def _ready(self, lane: Lane, now: int, draining: bool) -> tuple[Reason | None, int]:
        """Why the lane's next batch may start now (None: not yet), and when its window ends."""
        queue = lane.queue
        head = queue.head(now)
        oldest_ns = queue.oldest_arrival_ns(now)
        assert head is not None, "asked only about lanes in which something waits"
        assert oldest_ns is not None
        end_ns = oldest_ns + self.window_ns
        if type(head.signature) is Alone or not lane.spec.joinable:
            return Reason.START_ALONE, end_ns
        rows_max = self._rows_max(lane)
        if self.window_ns == 0 and self.size_budget is None:
            full = len(queue) >= rows_max and len(queue.peek(now, rows_max)) == rows_max
            return (Reason.START_FULL if full else Reason.START_IDLE), end_ns
        rows = queue.peek(now, rows_max + 1)
        if len(rows) >= rows_max or self._budget_spent([row.size for row in rows]):
            return Reason.START_FULL, end_ns
        if now >= end_ns:
            return (Reason.START_WINDOW if self.window_ns else Reason.START_IDLE), end_ns
        return (Reason.START_DRAIN if draining else None), end_ns

    def _budget_spent(self, sizes: list[int]) -> bool:
        return self.size_budget is not None and sum(sizes) >= self.size_budget
