"""AIMD, Clipper's policy (NSDI 2017): graph batching that finds its maximum by itself.

Owns: `Aimd`: per model, a maximum that grows by a step with every full batch that keeps the SLA target, and backs off
by a tenth when a batch misses it.
Must not know: latency tables; it learns from what it is told of finished batches.

What is held against the target is the batch's own run, from its start to its end, as in Clipper. The time its rows
waited before is not: under overload every row is late whatever the batch size, and a maximum that shrank for that would
take away the throughput that could end the overload. A batch smaller than the maximum says nothing about a larger one,
so it does not make the maximum grow.
"""

from __future__ import annotations

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.errors import InvalidInput


class Aimd(GraphBatching):
    """Graph batching without a window under an additively growing, multiplicatively shrinking maximum.

    step: rows that the maximum grows by. It starts at one row, and never exceeds the lane's maximum. Raises
    `InvalidInput` for a step that is not a whole number of at least 1.
    """

    def __init__(self, step: int = 1) -> None:
        if type(step) is not int or step < 1:
            raise InvalidInput(f"aimd: step must be a whole number of at least 1, got {step!r}")
        super().__init__()
        self._step = step
        self._limits: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Aimd(step={self._step})"

    def completed(self, sub_batch: SubBatch, now: int) -> None:
        """News of a batch whose last node has run: adapt its model's maximum."""
        model, rows = sub_batch.model, len(sub_batch.requests)
        limit = self._limits.get(model, 1)
        # Each row states its target; unbounded ones are never missed.
        target_ns = min([request.deadline_ns - request.arrival_ns for request in sub_batch.requests])
        if now - sub_batch.started_ns > target_ns:
            self._limits[model] = max(1, limit * 9 // 10)
        elif rows >= limit:
            self._limits[model] = limit + self._step

    def _rows_max(self, lane: Lane) -> int:
        limit = self._limits[lane.model] = min(lane.rows_max, self._limits.get(lane.model, 1))
        return limit
