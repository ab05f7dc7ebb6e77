"""How fast the machine is just now, seen from the nodes that ran.

Owns: `Pace`. Must not know: clocks, policies, where times are measured.

A table is of the day on which it was measured. Machines that are shared with others, or get hot, are slower or faster
for a while, all nodes alike more or less. By that factor arrivals load the machine more or less, and the right batches
follow from the load; and whoever compares what the table says with a deadline must know it.
"""

from __future__ import annotations

_RUNS = 32
"""The average is over about as much work as so many runs of a row alone."""
_MOST, _SHARE = 4.0, 0.25
"""What ran counts for at most so many times what was believed of it, and for at most this share: the machine may have
been elsewhere."""
_LEAST = 1 / 64
"""No machine is so much faster than its table; a clock that stands still must not say so."""


class Pace:
    """What nodes take over what the table says: 2 where the machine is half as fast as it was then.

    run_ns: by the table, of a row alone, the mean over models. So much work is looked at together: where nodes are
    started one ahead, what one of them took is seen at the next one's end.
    """

    __slots__ = ("_expected_ns", "_memory_ns", "_run_ns", "_seen_ns", "_took_ns", "ratio")

    def __init__(self, run_ns: int) -> None:
        self._run_ns = self._seen_ns = run_ns
        self._memory_ns = _RUNS * run_ns
        self._took_ns = self._expected_ns = 0
        self.ratio = 1.0

    def ran(self, took_ns: int, expected_ns: int) -> None:
        """A node took so long, by the table it should have taken so long."""
        self._took_ns += took_ns
        self._expected_ns += expected_ns
        if self._expected_ns >= self._run_ns:
            self._learn(self._took_ns, self._expected_ns)
            self._took_ns = self._expected_ns = 0

    def _learn(self, took_ns: int, expected_ns: int) -> None:
        self._seen_ns = min(self._seen_ns + expected_ns, self._memory_ns)
        share = min(expected_ns / self._seen_ns, _SHARE)
        ratio = self.ratio
        self.ratio = max(_LEAST, ratio + (min(took_ns / expected_ns, _MOST * ratio) - ratio) * share)
