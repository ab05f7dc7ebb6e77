"""What operators cost at one row, whatever runs them.

Owns: `Costs`, what nodes are called after them, and the timing of calls on machines that others use, too.
Must not know: any framework, how cuts are chosen from costs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RUNS = 15
SECONDS = 3.0
SURROUNDINGS_S = 40e-6
"""What one more node costs besides the call into the runtime: scheduler and executor in Python, and caches gone cold
between two calls. `bench/overhead.py` shows it: 30 to 70 microseconds per node on two cores."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at one row. per_node sums to whole_s; dispatch_s is what one more node costs by itself."""

    per_node: tuple[float, ...]
    whole_s: float
    dispatch_s: float

    @classmethod
    def shared_out(cls, seen: tuple[float, ...], whole_s: float, dispatch_s: float) -> Costs:
        """The time of the whole, among operators as they were seen one by one."""
        total = sum(seen)
        scale = whole_s / total if total > 0 else 0.0
        return cls(tuple(value * scale for value in seen), whole_s, dispatch_s)


def runs_of(whole_s: float) -> int:
    """How often a graph that takes so long is run to see its operators' times."""
    return max(2, min(RUNS, int(SECONDS / whole_s)))


def least_seconds(call: Callable[[], object], runs: int = RUNS) -> float:
    """The least of several runs, by the calling thread's own processor time.

    That thread computes its share and spins until the others have done theirs, so on a quiet machine its time is the
    time on the wall; on a busy one, what other processes take away is not counted as the model's.
    """
    call()
    spent: list[float] = []
    begun = time.perf_counter()
    while len(spent) < runs and time.perf_counter() - begun < SECONDS:
        start, wall = time.thread_time(), time.perf_counter()
        call()
        spent.append(time.thread_time() - start or time.perf_counter() - wall)
    return min(spent)


def piece_name(k: int, operators: Sequence[str], costs: Sequence[float]) -> str:
    """Position and the operator that takes most of the time: readable in traces, unique by position."""
    if not operators:
        return f"{k:02d}"
    share: Counter[str] = Counter()
    for operator, cost in zip(operators, costs or [1.0] * len(operators), strict=True):
        share[operator] += int(cost * 1e9) + 1
    return f"{k:02d}-{share.most_common(1)[0][0]}"
