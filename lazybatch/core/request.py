"""Requests: one row each.

Owns: `Request`, all that the scheduler knows of a row, and `UNBOUNDED_NS`.
Must not know: the row's tensors, its future, the clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

UNBOUNDED_NS = 1 << 62
"""A deadline that never comes: later than any clock reading, and still an ordinary integer to compare with."""


@dataclass(frozen=True, slots=True)
class Request:
    """One row on its way through one model. Times are integer nanoseconds on the driver's clock.

    deadline_ns: when the SLA target of this row is missed (soft: late rows are still served).
    signature: rows join only when their signatures are equal (shapes without the batch axis, unbatched inputs, bucket).
    size: length or tokens of the row, for token budgets; 1 where it has no meaning.
    priority: larger is more urgent.
    trips: one entry per loop of the model's graph: how many iterations this row makes there, where that is known
    beforehand, None where only its run tells. Empty: None for every loop.
    """

    id: int
    model: str
    arrival_ns: int
    deadline_ns: int = UNBOUNDED_NS
    signature: Hashable = None
    size: int = 1
    priority: int = 0
    trips: tuple[int | None, ...] = ()

    def trips_in(self, loop: int) -> int | None:
        """Iterations of this row in the loop of that number, where they are known beforehand."""
        return self.trips[loop] if self.trips else None
