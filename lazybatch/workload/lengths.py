"""Lengths of requests: tokens, words, frames.

Owns: seeded draws from distributions and files.
Must not know: arrivals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from lazybatch.errors import InvalidInput
from lazybatch.files import read_text
from lazybatch.workload.traces import positive_whole


def weighted_lengths(weights: Mapping[int, float], requests: int, seed: int = 0) -> list[int]:
    """Independent draws of lengths with the given weights, for example {5: 0.2, 15: 0.45, 25: 0.25, 35: 0.1}.

    Raises `InvalidInput` for no lengths, lengths below 1, weights that are negative, not finite or all zero.
    """
    for length, weight in weights.items():
        positive_whole("lengths", length)
        if not math.isfinite(weight) or weight < 0:
            raise InvalidInput(f"lengths: the weight of {length} must be 0 or a positive number, got {weight}")
    if not any(weight > 0 for weight in weights.values()):
        raise InvalidInput("lengths: at least one length must have a positive weight")
    _count(requests)
    return _stream(seed).choices(list(weights), cum_weights=list(accumulate(weights.values())), k=requests)


def lognormal_lengths(
    mean: float, requests: int, seed: int = 0, *, sigma: float = 0.6, longest: int | None = None
) -> list[int]:
    """Independent log-normal lengths of the given mean, rounded, at least 1, cut at ``longest``.

    sigma: standard deviation of the logarithm; 0.6 is typical of sentences. Raises `InvalidInput` for a mean that is
    not positive, a negative sigma, or a longest below 1.
    """
    if not math.isfinite(mean) or mean <= 0:
        raise InvalidInput(f"lengths: the mean must be a positive number, got {mean}")
    if not math.isfinite(sigma) or sigma < 0:
        raise InvalidInput(f"lengths: sigma must be 0 or a positive number, got {sigma}")
    if longest is not None and longest < 1:
        raise InvalidInput(f"lengths: the longest must be at least 1, got {longest}")
    _count(requests)
    rng = _stream(seed)
    centre = math.log(mean) - sigma * sigma / 2
    drawn = (max(1, round(rng.lognormvariate(centre, sigma))) for _ in range(requests))
    return [length if longest is None else min(length, longest) for length in drawn]


def recorded_lengths(path: str | Path) -> list[int]:
    """Lengths from a file, one per line; empty lines and lines that begin with ``#`` are skipped.

    Raises `InvalidInput` naming the line.
    """
    path = Path(path)
    lengths = [
        positive_whole(f"lengths {str(path)!r}, line {number}", line)
        for number, line in enumerate(read_text(path, "lengths").splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lengths:
        raise InvalidInput(f"the file {str(path)!r} holds no lengths")
    return lengths


def resampled(lengths: Sequence[int], requests: int, seed: int = 0) -> list[int]:
    """Independent draws, with replacement, from lengths that were observed. Raises `InvalidInput` for none."""
    if not lengths:
        raise InvalidInput("lengths: nothing to draw from")
    _count(requests)
    return _stream(seed).choices(lengths, k=requests)


def _stream(seed: int) -> random.Random:
    """One of their own: drawn from that of arrivals with the same seed, long requests would come after long gaps."""
    return random.Random(f"lengths {seed}")


def _count(requests: int) -> None:
    if requests < 0:
        raise InvalidInput(f"the number of requests must not be negative, got {requests}")
