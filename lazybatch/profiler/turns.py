"""Whose turn it is: which batch size is measured next, so that all are measured from beginning to end.

Owns: `next_size`.
Must not know: how a pass is measured, what becomes of its times.

A machine that gets slower meanwhile must slow all sizes alike, or it bends the ratio between them, which is all that
batching is decided by. So the number of passes of each size is planned, and all come to their ends together. A size
that costs four times as much gets half as many: twice the time, and large sizes, of which there are few passes anyway,
are not left with next to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from lazybatch.profiler.state import State

SAMPLES_MIN = 3
WARM_UP_PASSES = 2


def next_size(state: State, repeats: int, budget_ns: int, left_ns: int, took_ns: Mapping[int, int]) -> int | None:
    """The size to measure next: those short of the minimum first, then the one that is furthest behind its plan; None
    where all have ``repeats`` passes or no further one can be afforded.

    budget_ns: of all passes; left_ns: of those to come. took_ns: by size, the last pass of this run.
    """
    sizes = list(state.samples_ns)
    short = [size for size in sizes if state.passes(size) < SAMPLES_MIN]
    if short:
        return min(short, key=state.passes)
    costs_ns = {size: _cost_ns(state, size, took_ns) for size in sizes}
    affordable = [size for size in sizes if state.passes(size) < repeats and costs_ns[size] <= left_ns]
    plan = _planned(costs_ns, repeats, budget_ns)
    return min(affordable, key=lambda size: state.passes(size) / plan[size], default=None)


def _planned(costs_ns: Mapping[int, int], repeats: int, budget_ns: int) -> dict[int, float]:
    """Passes per size; what a cheap size does not need for its repeats is left to the others."""
    plan: dict[int, float] = {}
    left_ns, shares = float(budget_ns), sum(sqrt(cost_ns) for cost_ns in costs_ns.values())
    for size in sorted(costs_ns, key=lambda size: costs_ns[size]):
        root = sqrt(costs_ns[size])
        plan[size] = max(1.0, min(float(repeats), left_ns / shares / root))
        left_ns = max(0.0, left_ns - plan[size] * costs_ns[size])
        shares -= root
    return plan


def _cost_ns(state: State, size: int, took_ns: Mapping[int, int]) -> int:
    """What a pass takes; one that this run has not measured yet (all of its minimum was resumed) warms up first."""
    if size in took_ns:
        return max(1, took_ns[size])
    return (WARM_UP_PASSES + 1) * sum(node[-1] for node in state.samples_ns[size])
