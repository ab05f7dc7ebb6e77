"""Arrival processes: when requests come.

Owns: seeded processes, as lists of integer nanoseconds in order.
Must not know: what arrives, who serves it, the clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from lazybatch.errors import InvalidInput

NS_PER_S = 1_000_000_000

RATE_MIN_RPS = 1e-6
"""One request in eleven days: slower ones would soon leave the range of a clock that counts nanoseconds."""


def poisson(rate_rps: float, requests: int, seed: int = 0, start_ns: int = 0) -> list[int]:
    """Arrivals of a Poisson process (independent exponential gaps), the first one gap after ``start_ns``.

    The same seed gives the same list. Raises `InvalidInput` for a rate that is not a positive number
    or a negative count.
    """
    _check(rate_rps, requests)
    rng = random.Random(seed)
    mean_ns = NS_PER_S / rate_rps
    at_ns, arrivals = float(start_ns), []
    for _ in range(requests):
        at_ns += rng.expovariate(1.0) * mean_ns
        arrivals.append(int(at_ns))
    return arrivals


def uniform(rate_rps: float, requests: int, start_ns: int = 0) -> list[int]:
    """Arrivals at equal distances, the first at ``start_ns``. Raises `InvalidInput` as `poisson` does."""
    _check(rate_rps, requests)
    return [start_ns + round(k * NS_PER_S / rate_rps) for k in range(requests)]


def bursty(
    rate_rps: float,
    requests: int,
    seed: int = 0,
    start_ns: int = 0,
    *,
    burst_factor: float = 4.0,
    mean_burst_s: float = 0.1,
    burst_share: float = 0.1,
) -> list[int]:
    """Arrivals of a Markov-modulated Poisson process with two states, calm and burst.

    rate_rps: mean over all time. burst_factor: rate in a burst over the mean rate, at least 1. mean_burst_s: mean
    length of a burst in seconds (exponential, as are the calms between). burst_share: share of time in bursts. The
    calm's rate follows so that the mean holds; a factor times share of 1 leaves none. The first state is drawn.

    Raises `InvalidInput` as `poisson` does, or for parameters that no process of this mean can have.
    """
    _check(rate_rps, requests)
    _positive("mean_burst_s", mean_burst_s)
    if not 0 < burst_share < 1:
        raise InvalidInput(f"burst_share must be between 0 and 1, got {burst_share}")
    if not (math.isfinite(burst_factor) and burst_factor >= 1 and burst_factor * burst_share <= 1 + 1e-12):
        raise InvalidInput(
            f"burst_factor must be between 1 and 1 / burst_share = {1 / burst_share:g}, got {burst_factor}: "
            "a burst cannot bring more than all requests"
        )
    rng = random.Random(seed)
    calm_rate = max(0.0, rate_rps * (1 - burst_factor * burst_share) / (1 - burst_share))
    rates = (calm_rate, rate_rps * burst_factor)
    lengths_s = (mean_burst_s * (1 - burst_share) / burst_share, mean_burst_s)
    state = int(rng.random() < burst_share)
    at_s, end_s = 0.0, rng.expovariate(1 / lengths_s[state])
    arrivals: list[int] = []
    while len(arrivals) < requests:
        gap_s = rng.expovariate(rates[state]) if rates[state] > 0 else math.inf
        if at_s + gap_s < end_s:
            at_s += gap_s
            arrivals.append(start_ns + int(at_s * NS_PER_S))
        else:  # exponential gaps have no memory: draw anew in the next state
            at_s, state = end_s, 1 - state
            end_s += rng.expovariate(1 / lengths_s[state])
    return arrivals


def diurnal(
    rate_rps: float, requests: int, seed: int = 0, start_ns: int = 0, *, period_s: float = 60.0, depth: float = 0.8
) -> list[int]:
    """Arrivals of a Poisson process whose rate swings as rate_rps * (1 - depth * cos(2 pi t / period_s)).

    It begins at the lowest rate. depth: 0 (steady) to 1 (silence once a period). Raises `InvalidInput` as `poisson`
    does, or for a period that is not positive or a depth outside 0 to 1.
    """
    _check(rate_rps, requests)
    _positive("period_s", period_s)
    if not 0 <= depth <= 1:
        raise InvalidInput(f"depth must be between 0 and 1, got {depth}")
    rng = random.Random(seed)
    highest = rate_rps * (1 + depth)
    at_s = 0.0
    arrivals: list[int] = []
    while len(arrivals) < requests:
        at_s += rng.expovariate(highest)
        rate = rate_rps * (1 - depth * math.cos(2 * math.pi * at_s / period_s))
        if rng.random() * highest < rate:
            arrivals.append(start_ns + int(at_s * NS_PER_S))
    return arrivals


def phased(phases: Sequence[tuple[float, float]], requests: int, seed: int = 0, start_ns: int = 0) -> list[int]:
    """Arrivals of a Poisson process whose rate is constant in phases: (seconds, requests per second), over and over.

    A rate of 0 is silence; at least one phase must bring requests. Raises `InvalidInput` naming the phase otherwise,
    and as `poisson` does.
    """
    for number, (seconds, rate_rps) in enumerate(phases, start=1):
        _positive(f"phase {number}: its length", seconds)
        if not math.isfinite(rate_rps) or rate_rps < 0:
            raise InvalidInput(f"phase {number}: its rate must be 0 or a positive number, got {rate_rps}")
    if not any(rate_rps > 0 for _, rate_rps in phases):
        raise InvalidInput("phases: the arrival rate is zero in all of them; at least one must bring requests")
    _check(1.0, requests)
    rng = random.Random(seed)
    arrivals: list[int] = []
    begin_s, number = 0.0, 0
    due = rng.expovariate(1.0)  # expected arrivals until the next one
    while len(arrivals) < requests:
        seconds, rate_rps = phases[number % len(phases)]
        at_s = begin_s
        while len(arrivals) < requests and due <= rate_rps * (begin_s + seconds - at_s):
            at_s += due / rate_rps
            arrivals.append(start_ns + int(at_s * NS_PER_S))
            due = rng.expovariate(1.0)
        due -= rate_rps * (begin_s + seconds - at_s)
        begin_s, number = begin_s + seconds, number + 1
    return arrivals


def _positive(name: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise InvalidInput(f"{name} must be a positive number, got {value}")


def _check(rate_rps: float, requests: int) -> None:
    if not math.isfinite(rate_rps) or rate_rps < RATE_MIN_RPS:
        raise InvalidInput(
            f"the arrival rate must be a positive number of requests/s, at least {RATE_MIN_RPS:g}, got {rate_rps}"
        )
    if requests < 0:
        raise InvalidInput(f"the number of requests must not be negative, got {requests}")
