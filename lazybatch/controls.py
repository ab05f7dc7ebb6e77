"""Solved controls kept between processes, so that a second start with the same latency table is instant.

Owns: `control_of`, the control of a lane from the cache or solved anew; where a control lies, what it is keyed by, and
its file format (arrays in an .npz file, without pickled objects).
Must not know: how a control is solved (`lazybatch.solver`), which policy consults it.

A file that is missing, damaged or of another version is solved anew and replaced, silently; a cache that cannot be
written to is done without. At most `KEPT` files are kept, those used last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.core.control import Control, Solution
from lazybatch.core.lane import LaneSpec
from lazybatch.errors import InvalidInput
from lazybatch.partition.cache import cache_directory
from lazybatch.solver import LOADS, SOLVER, batch_times_ns, solve_times

_log = logging.getLogger("lazybatch.controls")

KEPT = 32
"""Files kept in the cache; one takes 0.5 MB for a maximum batch of 16, 1.7 MB for 64."""
_FORMAT = 1
_PREFIX = "control-"


def control_of(spec: LaneSpec) -> Control:
    """The control of a model as it is served. Raises `InvalidInput` for a lane without a latency table."""
    table = spec.unrolled("mean")
    if table is None:
        raise InvalidInput(f"model {spec.graph.model!r}: a control is solved from a latency table, and there is none")
    times_ns = batch_times_ns(table, spec.max_batch_size, joinable=spec.joinable, allowed_sizes=spec.allowed_sizes)
    return cached_control(spec.graph.model, times_ns)


def cached_control(model: str, times_ns: Sequence[int]) -> Control:
    """The control for batches that take S(1), S(2), ... nanoseconds, from the cache or solved and put there."""
    path = cache_directory() / f"{_PREFIX}{_key(times_ns)}.npz"
    solutions = _read(path)
    if solutions is None:
        _log.info("solving the control of model %r for batches of up to %d rows", model, len(times_ns))
        control = solve_times(model, times_ns)
        _write(path, control.solutions)
        return control
    capacity = max(rows / time_ns for rows, time_ns in enumerate(times_ns, start=1))
    return Control(model, len(times_ns), capacity, solutions)


def _key(times_ns: Sequence[int]) -> str:
    """Of everything a control follows from; the model's name is not part of it."""
    parts = {"times_ns": list(times_ns), "loads": LOADS, "solver": SOLVER, "format": _FORMAT}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path) -> tuple[Solution, ...] | None:
    """What a file holds; None where there is none that can be used."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            arrays = {
                name: data[name] for name in ("rates", "gains", "values", "actions", "points", "horizons", "ahead")
            }
        solutions = _solutions(**arrays)
    except (OSError, EOFError, LookupError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile):
        # RuntimeError: damage can make an entry look encrypted, or compressed in a way zipfile does not know.
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used last
    return solutions


def _solutions(
    rates: np.ndarray,
    gains: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    points: np.ndarray,
    horizons: np.ndarray,
    ahead: np.ndarray,
) -> tuple[Solution, ...]:
    """The arrays of a file as solutions. Raises `ValueError` where they do not belong together."""
    count, states = values.shape
    ends = [0, *accumulate(points.tolist())]
    shapes = (rates.shape, gains.shape, points.shape, actions.shape, horizons.shape, ahead.shape)
    if shapes != ((count,), (count,), (count,), (count, states), (ends[-1],), (ends[-1], states)) or count != len(
        LOADS
    ):
        raise ValueError(f"arrays of shapes {shapes} are no control")
    if not all(np.isfinite(array).all() for array in (rates, gains, values, ahead)):
        raise ValueError("a control holds finite numbers only")
    rows = [tuple(row) for row in ahead.tolist()]
    return tuple(
        Solution(rate, gain, tuple(value), tuple(action), tuple(horizons[first:end].tolist()), tuple(rows[first:end]))
        for rate, gain, value, action, (first, end) in zip(
            rates.tolist(), gains.tolist(), values.tolist(), actions.tolist(), pairwise(ends), strict=True
        )
    )


def _write(path: Path, solutions: Sequence[Solution]) -> None:
    """Put a control where others find all of it or nothing. A cache that cannot be written to is no error."""
    arrays: dict[str, Any] = {
        "rates": np.array([one.rate_per_ns for one in solutions]),
        "gains": np.array([one.gain_rows for one in solutions]),
        "values": np.array([one.value for one in solutions]),
        "actions": np.array([one.action for one in solutions], np.int64),
        "points": np.array([len(one.horizon_ns) for one in solutions], np.int64),
        "horizons": np.array([time_ns for one in solutions for time_ns in one.horizon_ns], np.int64),
        "ahead": np.array([row for one in solutions for row in one.ahead]),
    }
    draft: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=".control-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        Path(draft).replace(path)
        draft = None
        _prune(path.parent)
    except OSError as error:
        _log.info("the control is not kept: %s", error)
    finally:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)


def _prune(directory: Path) -> None:
    """Drop the files used longest ago. Tables measured anew at every start would otherwise fill the cache."""
    found = []
    for file in directory.glob(f"{_PREFIX}*.npz"):
        with contextlib.suppress(OSError):  # another process may be pruning too
            found.append((file.stat().st_mtime_ns, file))
    for _, file in sorted(found, reverse=True)[KEPT:]:
        with contextlib.suppress(OSError):
            file.unlink()
