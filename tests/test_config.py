"""Options are checked once, together, and refused by name."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from lazybatch.config import BatcherOptions, Level, ModelOptions, RequestLimits, flag, seconds, to_ns, whole
from lazybatch.errors import InvalidInput


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None, 10**9, math.nan])
def test_sizes_are_whole_numbers_in_range(value: Any) -> None:
    """Zero, negative, fractional, boolean, textual and absurd sizes are refused, naming option, value and range."""
    with pytest.raises(InvalidInput, match=r"max_batch_size must be a whole number from 1 to 65536, got"):
        ModelOptions(max_batch_size=value)
    assert whole("x", np.int64(3), 1, 5) == 3


@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf, -math.inf, True, "1", None, 1e9, 10**400])
def test_times_are_finite_positive_seconds(value: Any) -> None:
    """The same for times; NaN compares false with everything and must not slip through."""
    with pytest.raises(InvalidInput, match=r"sla must be a time in seconds, more than 0 .*, got"):
        seconds("sla", value)
    assert seconds("x", np.float32(0.5)) == 0.5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch_size": 16, "queue_capacity": 8}, "queue_capacity=8 is smaller than max_batch_size=16"),
        ({"max_batch_size": 8, "allowed_batch_sizes": (1, 4)}, "must equal max_batch_size=8"),
        ({"max_batch_size": 4, "allowed_batch_sizes": (4, 1)}, "must increase"),
        ({"allowed_batch_sizes": (0, 16)}, "allowed_batch_sizes must be a whole number"),
        ({"allowed_batch_sizes": "16"}, "must be a sequence"),
        ({"allowed_batch_sizes": 16}, "must be a sequence"),
        ({"sla": -1}, "sla must be"),
        ({"length_bucket_width": -1}, "length_bucket_width must be"),
        ({"late": "skip"}, "late must be 'serve' or 'drop', got 'skip'"),
        ({"late": True}, "late must be 'serve' or 'drop', got True"),
    ],
)
def test_limits_of_a_model_are_checked_together(options: dict[str, Any], text: str) -> None:
    """Each value in its range, and no two that contradict each other."""
    with pytest.raises(InvalidInput, match=text):
        ModelOptions(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": 3}, "policy must be the name"),
        ({"policy": "lazy", "max_delay": 0.01}, "max_delay=0.01 belongs to policy 'graph', the policy is 'lazy'"),
        ({"policy": "serial", "size_budget": 5}, "size_budget=5 belongs to policy 'graph'"),
        ({"policy": "graph", "max_delay": -1}, "max_delay must be"),
        ({"policy": "graph", "max_delay": math.nan}, "max_delay must be"),
        ({"policy": "graph", "size_budget": 0}, "size_budget must be"),
        ({"workers": 0}, "workers must be"),
        ({"ageing": 0}, "ageing must be"),
        ({"isolate_failures": 1}, "isolate_failures must be True or False, got 1"),
        ({"levels": [1]}, "levels must map"),
        ({"levels": {"high": Level()}}, "priority in levels must be a whole number"),
        ({"levels": {1: 0.5}}, r"levels\[1\] must be a Level"),
    ],
)
def test_options_of_a_batcher_are_checked_together(options: dict[str, Any], text: str) -> None:
    """Options of a policy that is not chosen are refused, not ignored."""
    with pytest.raises(InvalidInput, match=text):
        BatcherOptions(**options)


def test_levels_are_checked() -> None:
    """A queue timeout is a positive time, and only two things can happen after it."""
    assert Level(0.5, "demote").queue_timeout == 0.5
    with pytest.raises(InvalidInput, match="queue_timeout must be"):
        Level(0.0)
    with pytest.raises(InvalidInput, match="on_timeout must be 'reject' or 'demote', got 'drop'"):
        Level(1.0, "drop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"sla": 0}, "sla must be"),
        ({"timeout": -0.001}, "timeout must be"),
        ({"timeout": math.nan}, "timeout must be"),
        ({"deadline": math.nan}, "deadline must be a reading of time.monotonic"),
        ({"deadline": "soon"}, "deadline must be a reading"),
        ({"deadline": object()}, "deadline must be a reading"),
        ({"deadline": time.time()}, "deadline must be a reading of time.monotonic"),
        ({"priority": 0.5}, "priority must be a whole number"),
    ],
)
def test_limits_of_a_request_are_checked(limits: dict[str, Any], text: str) -> None:
    """Also the usual mistake of passing wall-clock time as a deadline."""
    with pytest.raises(InvalidInput, match=text):
        RequestLimits(**limits)


def test_the_earlier_of_two_hard_limits_holds() -> None:
    """timeout counts from now, deadline is a reading of the clock; without either there is no limit."""
    assert RequestLimits().hard_ns(7) is None
    assert RequestLimits(timeout=1).hard_ns(7) == 1_000_000_007
    assert RequestLimits(timeout=0).hard_ns(7) == 7
    assert RequestLimits(timeout=1, deadline=0.5).hard_ns(7) == 500_000_000
    assert RequestLimits(timeout=1, deadline=9.0).hard_ns(7) == 1_000_000_007


def test_small_helpers() -> None:
    """A positive time never becomes zero nanoseconds; flags are booleans."""
    assert to_ns(1e-12) == 1
    assert to_ns(0.0) == 0
    assert to_ns(0.05) == 50_000_000
    assert flag("x", False) is False
    with pytest.raises(InvalidInput, match="x must be True or False"):
        flag("x", "no")
