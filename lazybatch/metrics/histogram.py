"""Distributions in bounded memory.

Owns: `Histogram`, `Summary`, `latency_summary`.
Must not know: what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lazybatch.errors import InvalidInput

_SUB_BITS = 5


def _middle(bucket: int) -> int:
    """The middle of a bucket: at most 1/64 (1.6 %) away from any value in it."""
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS)) << shift) + ((1 << shift) >> 1)


class Histogram:
    """Distribution of non-negative whole numbers in bounded memory: at most about 2,000 counters, whatever comes.

    Quantiles are within 1.6 % of a value that was recorded at that rank (32 buckets per power of two; exact below
    64); count, mean, smallest and largest are exact. Two histograms add up without loss.
    """

    __slots__ = ("_buckets", "count", "high", "low", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.low: int | None = None
        self.high: int | None = None

    def record(self, value: int, times: int = 1) -> None:
        """Count a value. Raises `InvalidInput` for a negative one."""
        if value < 0:
            raise InvalidInput(f"a histogram counts non-negative numbers, got {value}")
        # 32 equal steps per power of two; each value below 64 has a bucket of its own.
        shift = value.bit_length() - _SUB_BITS - 1
        bucket = (shift << _SUB_BITS) + (value >> shift) if shift > 0 else value
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        if self.low is None or value < self.low:
            self.low = value
        if self.high is None or value > self.high:
            self.high = value

    def merge(self, other: Histogram) -> None:
        """Add all that ``other`` has counted."""
        for bucket, times in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += other.count
        self.total += other.total
        self.low = min((low for low in (self.low, other.low) if low is not None), default=None)
        self.high = max((high for high in (self.high, other.high) if high is not None), default=None)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None while empty."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> int | None:
        """The value at rank ceil(share * count), e.g. 0.99 for p99; None while empty."""
        if not 0.0 <= share <= 1.0:
            raise InvalidInput(f"a quantile lies between 0 and 1, got {share}")
        if self.low is None or self.high is None:
            return None
        rank = max(1, _ceil(share * self.count))
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return min(max(_middle(bucket), self.low), self.high)
        return self.high

    def summary(self) -> Summary:
        """A frozen summary of what has been counted so far."""
        p50, p95, p99 = (self.quantile(share) for share in (0.50, 0.95, 0.99))
        return Summary(self.count, self.mean, p50, p95, p99, self.low, self.high)


def _ceil(value: float) -> int:
    # 0.99 * 100 is 99.00000000000001 in floating point: the rank wanted is 99, so forgive a relative 1e-9.
    return -int(-(value - 1e-9 * max(1.0, value)) // 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in seven numbers, in the unit of what was recorded; all but ``count`` are None when empty."""

    count: int = 0
    mean: float | None = None
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    low: int | None = None
    high: int | None = None

    def as_ms(self) -> dict[str, float | None]:
        """Nanoseconds as JSON values in milliseconds: mean_ms, p50_ms, p95_ms, p99_ms, max_ms."""
        named = {"mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.high}
        return {f"{name}_ms": None if value is None else value / 1e6 for name, value in named.items()}


def latency_summary(values_ns: Iterable[int]) -> Summary:
    """The exact summary of a list of durations (nearest-rank quantiles); use it where all values are at hand."""
    ordered = sorted(values_ns)
    if not ordered:
        return Summary()
    count = len(ordered)
    p50, p95, p99 = (ordered[max(1, _ceil(share * count)) - 1] for share in (0.50, 0.95, 0.99))
    return Summary(count, sum(ordered) / count, p50, p95, p99, ordered[0], ordered[-1])
