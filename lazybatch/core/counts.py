"""How many rows came and how they left.

Owns: `Counts`, which the scheduler and its guarded policy write, and drivers read.
Must not know: which rows, when, or why.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Rows that ever entered and how they left, for `Scheduler.validate` and statistics."""

    added: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    dropped: int = 0
    policy_failures: int = 0
    """Times the policy raised, or chose what cannot be done. Decisions were made by graph batching instead."""

    @property
    def left(self) -> int:
        """Rows that are no longer inside, however they left."""
        return self.finished + self.failed + self.cancelled + self.rejected + self.dropped
