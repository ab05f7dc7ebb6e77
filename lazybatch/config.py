"""Options: frozen dataclasses, validated once, at construction.

Owns: `ModelOptions`, `BatcherOptions`, `Level`, `RequestLimits`: what a user may set, its ranges, and which settings
contradict each other.
Must not know: models, the scheduler, the clock. Times here are seconds, as users write them; the engine counts ns.

Every refusal is an `InvalidInput` that names the option, the value and what is allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from lazybatch.core.latency import BATCH_SIZE_MAX as BATCH_SIZE_MAX
from lazybatch.errors import InvalidInput

QUEUE_CAPACITY_MAX = 100_000_000
SECONDS_MAX = 1e8
"""About three years: longer than any sensible wait, and far from overflowing 64-bit nanoseconds."""
WORKERS_MAX = 1_024
PRIORITY_MAX = 1_000_000

NS_PER_S = 1_000_000_000


def whole(option: str, value: Any, low: int, high: int) -> int:
    """A whole number within [low, high]. Raises `InvalidInput` (also for booleans and floats)."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise InvalidInput(f"{option} must be a whole number from {low} to {high}, got {value!r}")
    return number


def seconds(option: str, value: Any, *, zero: bool = False) -> float:
    """A finite time in seconds: positive, or non-negative with ``zero``. Raises `InvalidInput` (also for NaN)."""
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    allowed = number >= 0 if zero else number > 0  # false for NaN
    if not allowed or number > SECONDS_MAX:
        least = "0" if zero else "more than 0"
        raise InvalidInput(f"{option} must be a time in seconds, {least} to {SECONDS_MAX:.0e}, got {value!r}")
    return number


def to_ns(time_s: float) -> int:
    """Seconds to whole nanoseconds; at least 1 for a positive time."""
    return max(round(time_s * NS_PER_S), 1 if time_s > 0 else 0)


def flag(option: str, value: Any) -> bool:
    """True or False and nothing else. Raises `InvalidInput`."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{option} must be True or False, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Level:
    """What holds for waiting rows of one priority.

    queue_timeout: longest wait in the queue, in seconds; None for as long as it takes. Time spent running is not part
    of it (`timeout=` of a request covers both). on_timeout: "reject" (the row fails with `DeadlineExceeded`, counted
    as expired) or "demote" (it waits on, behind every other level).
    """

    queue_timeout: float | None = None
    on_timeout: Literal["reject", "demote"] = "reject"

    def __post_init__(self) -> None:
        if self.queue_timeout is not None:
            seconds("queue_timeout", self.queue_timeout)
        if self.on_timeout not in ("reject", "demote"):
            raise InvalidInput(f"on_timeout must be 'reject' or 'demote', got {self.on_timeout!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Limits of one model, validated together.

    max_batch_size: rows in one sub-batch. queue_capacity: waiting rows (not calls, not bytes).
    sla: target in seconds from submit to result, None for no target.
    allowed_batch_sizes: executed sizes; smaller batches are padded up to the next one. Increasing, the last equal to
    max_batch_size; empty for any size, as it must be for models with loops.
    length_bucket_width: rows share a batch only when size // width is equal; 0 off.
    late: "serve" answers rows that miss their target all the same; "drop" fails a waiting row with `DeadlineExceeded`
    from the moment at which it would miss its target even if it ran alone.
    """

    max_batch_size: int = 16
    queue_capacity: int = 256
    sla: float | None = None
    allowed_batch_sizes: tuple[int, ...] = ()
    length_bucket_width: int = 0
    late: Literal["serve", "drop"] = "serve"

    def __post_init__(self) -> None:
        rows = whole("max_batch_size", self.max_batch_size, 1, BATCH_SIZE_MAX)
        capacity = whole("queue_capacity", self.queue_capacity, 1, QUEUE_CAPACITY_MAX)
        if capacity < rows:
            raise InvalidInput(
                f"queue_capacity={capacity} is smaller than max_batch_size={rows}: no batch could ever fill; "
                "raise queue_capacity or lower max_batch_size"
            )
        if self.sla is not None:
            seconds("sla", self.sla)
        whole("length_bucket_width", self.length_bucket_width, 0, 1 << 40)
        if self.late not in ("serve", "drop"):
            raise InvalidInput(f"late must be 'serve' or 'drop', got {self.late!r}")
        _check_allowed(self.allowed_batch_sizes, rows)


def _check_allowed(sizes: Any, max_batch_size: int) -> None:
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Sequence):
        raise InvalidInput(f"allowed_batch_sizes must be a sequence of whole numbers, got {sizes!r}")
    numbers = [whole("allowed_batch_sizes", size, 1, BATCH_SIZE_MAX) for size in sizes]
    if any(b <= a for a, b in pairwise(numbers)):
        raise InvalidInput(f"allowed_batch_sizes must increase, got {numbers}")
    if numbers and numbers[-1] != max_batch_size:
        raise InvalidInput(
            f"the largest of allowed_batch_sizes={numbers} must equal max_batch_size={max_batch_size}: "
            "a full batch must be one of the sizes that are executed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherOptions:
    """What holds for a whole batcher, validated together.

    policy: name of the scheduling policy, or a policy object (anything with a method ``decide``).
    max_delay: longest intentional wait for batch mates, in seconds from the oldest row's arrival ("graph" only; 0 never
    waits). size_budget: largest sum of row sizes (tokens, bytes) in one batch ("graph" only), None for no limit.
    workers: concurrent calls of a callable.
    levels: queue timeouts by priority. ageing: waiting this many seconds raises a row by one priority; None never.
    isolate_failures: rows of a failed batch are run again, each alone, so that one bad row fails only itself.
    """

    policy: Any = "lookahead"
    max_delay: float = 0.0
    size_budget: int | None = None
    workers: int = 1
    levels: Mapping[int, Level] = field(default_factory=dict)
    ageing: float | None = None
    isolate_failures: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str) and not callable(getattr(self.policy, "decide", None)):
            raise InvalidInput(f"policy must be the name of a policy or a policy object, got {self.policy!r}")
        seconds("max_delay", self.max_delay, zero=True)
        if self.size_budget is not None:
            whole("size_budget", self.size_budget, 1, 1 << 60)
        whole("workers", self.workers, 1, WORKERS_MAX)
        if self.policy != "graph":
            for option, value in (("max_delay", self.max_delay), ("size_budget", self.size_budget)):
                if value:
                    raise InvalidInput(f"{option}={value!r} belongs to policy 'graph', the policy is {self.policy!r}")
        if self.ageing is not None:
            seconds("ageing", self.ageing)
        flag("isolate_failures", self.isolate_failures)
        if not isinstance(self.levels, Mapping):
            raise InvalidInput(f"levels must map priorities to Level, got {self.levels!r}")
        for priority, level in self.levels.items():
            whole("priority in levels", priority, -PRIORITY_MAX, PRIORITY_MAX)
            if not isinstance(level, Level):
                raise InvalidInput(f"levels[{priority!r}] must be a Level, got {level!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one call may set for its rows.

    sla: soft target in seconds, instead of the batcher's: see `ModelOptions.late`. timeout: hard limit in seconds
    from submit, 0 is already past; deadline: hard limit as a reading of `time.monotonic()`. Past a hard limit a row
    fails with `DeadlineExceeded`; of two the earlier holds. priority: larger is more urgent.
    """

    sla: float | None = None
    timeout: float | None = None
    deadline: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if self.sla is not None:
            seconds("sla", self.sla)
        if self.timeout is not None:
            seconds("timeout", self.timeout, zero=True)
        if self.deadline is not None and not _is_reading(self.deadline):
            raise InvalidInput(f"deadline must be a reading of time.monotonic() in seconds, got {self.deadline!r}")
        if self.priority != 0:
            whole("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)

    def hard_ns(self, now_ns: int) -> int | None:
        """The earlier of timeout and deadline on a monotonic clock in ns; None when neither is set."""
        limits = []
        if self.timeout is not None:
            limits.append(now_ns + to_ns(self.timeout))
        if self.deadline is not None:
            limits.append(round(self.deadline * NS_PER_S))
        return min(limits, default=None)


def _is_reading(value: Any) -> bool:
    """A finite number; negative ones are moments long past, which is allowed."""
    if isinstance(value, bool | str | bytes):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    # A wall-clock reading (time.time()) is the usual mistake: it lies decades in a monotonic clock's future.
    return math.isfinite(number) and number < 1e9
