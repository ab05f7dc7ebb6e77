"""Estimating how fast requests arrive, on line.

Owns: `ArrivalRate`, one per model. Must not know: clocks (every call takes ``now``), policies.

The mean gap is an exponentially weighted average over about the last 64 arrivals (a plain average while there are
fewer). Silence is evidence too: a gap that is still open counts once it is longer than the mean, so that the estimate
decays when a burst has ended, instead of staying at the burst's rate until the next arrival.
"""

from __future__ import annotations

_MEMORY = 64


class ArrivalRate:
    """Rows per nanosecond, estimated from arrival times."""

    __slots__ = ("_count", "_last_ns", "_mean_gap_ns")

    def __init__(self) -> None:
        self._count = 0
        self._last_ns = 0
        self._mean_gap_ns = 0.0

    @property
    def last_arrival_ns(self) -> int:
        """Time of the last arrival; 0 before the first."""
        return self._last_ns

    def arrived(self, now: int) -> None:
        """One more request came."""
        if self._count:
            gap_ns = now - self._last_ns
            self._mean_gap_ns += (gap_ns - self._mean_gap_ns) / min(self._count, _MEMORY)
        self._count += 1
        self._last_ns = now

    def per_ns(self, now: int) -> float | None:
        """The estimate; None before the second arrival."""
        if self._count < 2:
            return None
        gap_ns = self._mean_gap_ns
        open_ns = now - self._last_ns
        if open_ns > gap_ns:
            gap_ns += (open_ns - gap_ns) / min(self._count, _MEMORY)
            if open_ns > 4 * gap_ns:
                gap_ns = open_ns / 4
        return 1.0 / max(gap_ns, 1.0)
