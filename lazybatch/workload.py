"""Arrivals: when requests come.

Owns: seeded arrival processes and recorded traces, as lists of integer nanoseconds in order.
Must not know: what arrives, who serves it, the clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path

from lazybatch.errors import InvalidInput

NS_PER_S = 1_000_000_000


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


def recorded(source: str | Path | Iterable[float | int | str | Decimal]) -> list[int]:
    """A recorded trace: a file with one arrival time in seconds per line, or the times themselves.

    Empty lines and lines that begin with ``#`` are skipped. Times must not decrease; equal ones are fine.
    Raises `InvalidInput` naming the line (or position) for anything else.
    """
    if isinstance(source, str | Path):
        where, entries = f"trace {str(source)!r}, line", _lines(Path(source))
    else:
        where, entries = "trace, entry", list(enumerate(source, start=1))
    arrivals: list[int] = []
    for number, entry in entries:
        at_ns = _seconds(f"{where} {number}", entry)
        if arrivals and at_ns < arrivals[-1]:
            raise InvalidInput(
                f"{where} {number}: out of order, {entry} s comes after {arrivals[-1] / NS_PER_S:.9g} s; "
                "arrival times must not decrease"
            )
        arrivals.append(at_ns)
    return arrivals


def _lines(path: Path) -> list[tuple[int, float | int | str | Decimal]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read the trace {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    stripped = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(number, line) for number, line in stripped if line and not line.startswith("#")]


def _seconds(where: str, entry: float | int | str | Decimal) -> int:
    """Exact nanoseconds of a decimal number of seconds."""
    try:
        value = Decimal(str(entry))
    except InvalidOperation:
        raise InvalidInput(f"{where}: {entry!r} is not a time in seconds") from None
    if not value.is_finite() or value < 0 or value > 10**9:
        raise InvalidInput(f"{where}: a time must be between 0 and 1e9 seconds, got {entry!r}")
    return int((value * NS_PER_S).to_integral_value())


def _check(rate_rps: float, requests: int) -> None:
    if not math.isfinite(rate_rps) or rate_rps <= 0:
        raise InvalidInput(f"the arrival rate must be a positive number of requests per second, got {rate_rps}")
    if requests < 0:
        raise InvalidInput(f"the number of requests must not be negative, got {requests}")
