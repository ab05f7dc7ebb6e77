"""Where to cut: granularity by measured cost.

Owns: the choice among allowed cuts.
Must not know: why a cut is allowed, what a file is.

Too few nodes and the server cannot be interrupted; too many and calls into the runtime dominate. Nodes of equal cost
are best for a given count, so the sum of squared costs is what a dynamic programme minimises, with a small price on
bytes that live across a cut, because merging copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DISPATCH_SHARE = 0.02
"""Without a wish of the user, dispatching may cost this share of the whole at one row."""
NODES_FEW, FEW_SHARE = 3, 0.04
"""A model too short for more than a few nodes still gets this many, where they cost no more than this share."""
NODES_MAX = 32
"""Without a wish of the user, there are at most this many nodes: more gain little in response."""
COPY_BYTES_PER_S = 4e9
COPY_WEIGHT = 6.0
"""A copy made on every run costs throughput, an uneven node only some delay: a second of the former weighs more."""
NODES_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """A place after node ``position`` where a cut is allowed, and the bytes that live there at one row."""

    position: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Residual:
    """Node ``position`` adds into a value made after node ``made``.

    Within one node of the chain with its maker, or as a node's last operator, it writes where the value lies; anywhere
    else the runtime must copy the value first, because it belongs to the caller of the piece.
    """

    made: int
    position: int
    value_bytes: int


def choose(
    costs: Sequence[float],
    cuts: Sequence[Cut],
    *,
    dispatch_s: float,
    preempt_within_s: float | None,
    residuals: Sequence[Residual] = (),
) -> list[int]:
    """Positions to cut after, ascending. Empty: the graph stays one node.

    With ``preempt_within_s`` the fewest nodes none of which is longer, where the allowed cuts permit it.
    """
    cuts = sorted((cut for cut in cuts if 0 <= cut.position < len(costs) - 1), key=lambda cut: cut.position)
    total = float(sum(costs))
    if not cuts or total <= 0:
        return []
    ends = np.concatenate([[0.0], np.cumsum(costs)])
    marks = np.array([0.0, *(ends[cut.position + 1] for cut in cuts), total])
    if preempt_within_s is None:
        affordable = total / dispatch_s
        count = int(min(NODES_MAX, max(DISPATCH_SHARE * affordable, min(NODES_FEW, FEW_SHARE * affordable))))
    else:
        count = _fewest(marks, preempt_within_s)
    count = max(1, min(count, len(cuts) + 1, NODES_LIMIT))
    live = np.array([0.0, *(cut.live_bytes / COPY_BYTES_PER_S for cut in cuts), 0.0])
    places = np.array([-1, *(cut.position for cut in cuts), len(costs) - 1])
    price = live[None, :] + _copies(places, residuals)
    return [cuts[k - 1].position for k in _balanced(marks, price, count, preempt_within_s)]


def _copies(places: NDArray[np.int64], residuals: Sequence[Residual]) -> NDArray[np.float64]:
    """Per pair of places (start, end): seconds spent on copying what residual adds in between cannot write over."""
    seconds = np.zeros((len(places), len(places)))
    for residual in residuals:
        starts = (places >= residual.made) & (places < residual.position)
        ends = places > residual.position
        seconds[np.ix_(starts, ends)] += COPY_WEIGHT * residual.value_bytes / COPY_BYTES_PER_S
    return seconds


def _fewest(marks: NDArray[np.float64], limit: float) -> int:
    """The number of nodes when each is made as long as the limit allows; longer ones only where no cut exists."""
    count, start = 1, 0
    for k in range(1, len(marks) - 1):
        if marks[k + 1] - marks[start] > limit and marks[k] > marks[start]:
            count, start = count + 1, k
    return count


def _balanced(marks: NDArray[np.float64], price: NDArray[np.float64], count: int, limit: float | None) -> list[int]:
    """Indices of the chosen marks: at most ``count`` nodes with the least sum of squares over the whole."""
    n = len(marks)
    total = marks[-1]
    width = marks[None, :] - marks[:, None]
    step = width**2 / total * count + price
    if limit is not None:
        step = step + np.where(width > limit * (1 + 1e-9), (width - limit) * 1e3, 0.0)
    step[np.tril_indices(n)] = np.inf
    best = step[0].copy()
    best[0] = np.inf
    back: list[NDArray[np.int64]] = []
    finals = [best[-1]]
    for _ in range(1, count):
        through = best[:, None] + step
        came = np.argmin(through, axis=0)
        best = through[came, np.arange(n)]
        back.append(came)
        finals.append(best[-1])
    nodes = int(np.argmin(finals))
    chosen: list[int] = []
    at = n - 1
    for came in reversed(back[:nodes]):
        at = int(came[at])
        chosen.append(at)
    return chosen[::-1]
