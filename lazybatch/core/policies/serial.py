"""Serial: no batching; one request at a time, most urgent first.

Owns: the simplest baseline. Must not know: latencies.
"""

from __future__ import annotations

from lazybatch.core.policies.base import Choice, Start, View, most_urgent_first
from lazybatch.core.task import Reason


class Serial:
    """Runs every request alone, to completion."""

    needs_table = False

    def __repr__(self) -> str:
        return "Serial()"

    def decide(self, view: View, now: int) -> Choice:
        """Go on with what runs; else start the most urgent request."""
        if view.active is not None:
            return None
        return Start(most_urgent_first(view.lanes, now)[0], 1, Reason.START_SERIAL)
