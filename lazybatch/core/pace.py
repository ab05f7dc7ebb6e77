"""How fast the machine is just now, seen from the nodes that ran.

Owns: `Pace`, one per model. Must not know: clocks, policies, where times are measured.

A table is of the day on which it was measured. Machines that are shared with others, or get hot, are slower or faster
for a while, all nodes alike more or less. What alternatives cost is then out by one factor, and the choice between them
is the same; but by how much arrivals load the machine is out by that factor, too, and the right batches follow from the
load.
"""

from __future__ import annotations

_RUNS = 32
"""The average is over about as much work as so many runs of a row alone."""
_MOST = 4.0
"""One node counts for at most so many times what it was expected to take: the machine was elsewhere."""


class Pace:
    """What nodes take over what the table says: 2 where the machine is half as fast as it was then.

    run_ns: by the table, of a row alone.
    """

    __slots__ = ("_memory_ns", "_seen_ns", "ratio")

    def __init__(self, run_ns: int) -> None:
        self._memory_ns = _RUNS * run_ns
        self._seen_ns = run_ns
        self.ratio = 1.0

    def ran(self, took_ns: int, expected_ns: int) -> None:
        """A node took so long, by the table it should have taken so long."""
        seen_ns = self._seen_ns + expected_ns
        if seen_ns > self._memory_ns:
            seen_ns = max(self._memory_ns, expected_ns)
        self._seen_ns = seen_ns
        ratio = self.ratio
        self.ratio = ratio + (min(took_ns / expected_ns, _MOST * ratio) - ratio) * expected_ns / seen_ns
