"""Estimating how fast requests arrive, on line.

Owns: `ArrivalRate`, one per model. Must not know: clocks (every call takes ``now``), policies.

Three averages of the gaps, over about the last 64, 512 and 4096 arrivals (plain averages while there are fewer). The
longest is the estimate, because close to saturation an error of a twentieth already costs. Where a shorter one is far
away from the next longer one, the load has changed, and the longer one starts again from the shorter. Bursts that are
soon over must not count as that: a control for the mean rate serves them better than one that runs after them, by a
tenth of the mean latency in experiments. Silence is evidence too: a gap that is still open counts once it is longer
than the mean and than the longer ones, so that the estimate decays when nobody comes, instead of staying until the next
arrival.

A pause, such as a night, says nothing about the rate, and counts as little more than the longer gaps before it. What is
long is learnt from gaps longer than the mean: between a client's batches nearly all gaps are none, and the one before
the next batch is no pause.

A fourth average, of the last few gaps, says how fast requests come just now, bursts included (`recent_per_ns`).
"""

from __future__ import annotations

_MEMORY = (64, 512, 4096)
_CHANGED = (3.0, 1.45)
"""Ratio of one average to the next longer that means a change, not a burst that will soon be over."""
_RECENT = 4
"""Gaps that say how fast requests come just now."""
_PAUSE, _FEW = 4, 8
"""A gap of over so many of the last longer ones, after so many gaps, is a pause; of those first ones see `_begin`."""
_LONGER, _GROWTH = 4, 16
"""How many of the longer gaps are remembered, and by how much at most one of them counts for more than the others."""


class ArrivalRate:
    """Rows per nanosecond, estimated from arrival times."""

    __slots__ = ("_counts", "_first_ns", "_gaps_ns", "_last_ns", "_longer_ns", "_recent_ns", "_seen")

    def __init__(self) -> None:
        self._seen = False
        self._last_ns = 0
        self._counts = (0, 0, 0)
        self._gaps_ns = (0.0, 0.0, 0.0)
        self._recent_ns = 0.0
        self._longer_ns = 0.0
        self._first_ns: list[float] = []

    @property
    def last_arrival_ns(self) -> int:
        """Time of the last arrival; 0 before the first."""
        return self._last_ns

    def arrived(self, now: int) -> None:
        """One more request came."""
        if self._seen:
            gap_ns = float(now - self._last_ns)
            if len(self._first_ns) < _FEW:
                self._begin(gap_ns)
            else:
                self._go_on(gap_ns)
        self._seen = True
        self._last_ns = now

    def _begin(self, gap_ns: float) -> None:
        """One of the first gaps: the plain mean counts, but for one that is far longer than all others: a server is
        tried once, and then waits for its users."""
        self._first_ns.append(gap_ns)
        gaps_ns = sorted(self._first_ns)
        longest_ns = gaps_ns[-1]
        if len(gaps_ns) > 2 and gaps_ns[-1] > _GROWTH * sum(gaps_ns[:-1]) / (len(gaps_ns) - 1) + 1:
            gaps_ns.pop()
        mean_ns = self._recent_ns = sum(gaps_ns) / len(gaps_ns)
        self._longer_ns = min(longest_ns, _GROWTH * mean_ns) if mean_ns else longest_ns
        count = len(gaps_ns)
        self._counts, self._gaps_ns = (count, count, count), (mean_ns, mean_ns, mean_ns)

    def _go_on(self, gap_ns: float) -> None:
        # Written out: it is run with every arrival, between two nodes of those in flight.
        (short, middle, long), (short_ns, middle_ns, long_ns) = self._counts, self._gaps_ns
        longer_ns = self._longer_ns
        if gap_ns > short_ns:
            self._longer_ns += (min(gap_ns, _GROWTH * longer_ns + 1) - longer_ns) / _LONGER
        gap_ns = min(gap_ns, _PAUSE * longer_ns + 1)
        if short < _MEMORY[0]:
            short += 1
        if middle < _MEMORY[1]:
            middle += 1
        if long < _MEMORY[2]:
            long += 1
        short_ns += (gap_ns - short_ns) / short
        middle_ns += (gap_ns - middle_ns) / middle
        long_ns += (gap_ns - long_ns) / long
        self._recent_ns += (gap_ns - self._recent_ns) / _RECENT
        if not (short_ns <= _CHANGED[0] * middle_ns + 1 and middle_ns <= _CHANGED[0] * short_ns + 1):
            middle, middle_ns = short, short_ns
        if not (middle_ns <= _CHANGED[1] * long_ns + 1 and long_ns <= _CHANGED[1] * middle_ns + 1):
            long, long_ns = middle, middle_ns
        self._counts, self._gaps_ns = (short, middle, long), (short_ns, middle_ns, long_ns)

    def per_ns(self, now: int) -> float | None:
        """The estimate; None before the second arrival."""
        gap_ns = self._gaps_ns[-1]
        if not self._counts[0]:
            return None
        open_ns = now - self._last_ns
        if open_ns > gap_ns and open_ns > self._longer_ns:
            gap_ns += (open_ns - gap_ns) / self._counts[0]
            if open_ns > 4 * gap_ns:
                gap_ns = open_ns / 4
        return 1.0 / gap_ns if gap_ns > 1.0 else 1.0

    def recent_per_ns(self, now: int) -> float | None:
        """The rate of the last few arrivals, an open gap included once it is longer; None before the second."""
        if not self._counts[0]:
            return None
        gap_ns = self._recent_ns
        open_ns = now - self._last_ns - gap_ns
        if open_ns > 0.0:
            gap_ns += open_ns / min(self._counts[0], _RECENT)
        return 1.0 / gap_ns if gap_ns > 1.0 else 1.0
