"""Solved controls kept between processes, so that a second start with the same latency table is instant.

Owns: `control_of` and `loop_controls_of`, the controls of a lane from the cache or solved anew; what they are keyed by,
and their arrays in the files.
Must not know: how a control is solved (`lazybatch.solver`, `lazybatch.loop_solver`), which policy consults it, files.

A file that is missing, damaged or of another version is solved anew and replaced, silently; a cache that cannot be
written to is done without. At most `KEPT` files of each kind are kept, those used last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from lazybatch import loop_solver
from lazybatch.core.control import Control, Solution
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.loop_control import NEVER, LoopControl
from lazybatch.core.loop_times import LoopTimes, loop_times
from lazybatch.errors import InvalidInput
from lazybatch.kept_arrays import Arrays, digest, read_arrays, write_arrays
from lazybatch.loop_solver import LoopSolution, solve_loop_times
from lazybatch.partition.cache import cache_directory
from lazybatch.solver import LOADS, SOLVER, batch_times_ns, solve_times

_log = logging.getLogger("lazybatch.controls")

KEPT = 32
"""Files of each kind kept in the cache. A control takes 0.5 MB for a maximum batch of 16, 1.7 MB for 64; that of a loop
a few kB."""
_FORMAT = 1
_ARRAYS = ("rates", "gains", "values", "actions", "points", "horizons", "ahead")
_LOOP_ARRAYS = ("rates", "thresholds", "means")


def control_of(spec: LaneSpec) -> Control:
    """The control of a model as it is served. Raises `InvalidInput` for a lane without a latency table."""
    table = spec.unrolled("mean")
    if table is None:
        raise InvalidInput(f"model {spec.graph.model!r}: a control is solved from a latency table, and there is none")
    times_ns = batch_times_ns(table, spec.max_batch_size, joinable=spec.joinable, allowed_sizes=spec.allowed_sizes)
    return cached_control(spec.graph.model, times_ns)


def loop_controls_of(spec: LaneSpec) -> tuple[LoopControl | None, ...]:
    """Per loop of a model's graph its control; None where rows join at equal iterations only, so nobody is let in.

    Raises `InvalidInput` for a lane without a latency table.
    """
    if spec.latency is None:
        raise InvalidInput(f"model {spec.graph.model!r}: a control is solved from a latency table, and there is none")
    lane, controls = Lane(spec), list[LoopControl | None]()
    for number, loop in enumerate(spec.graph.loops):
        times = None if loop.same_iteration else loop_times(lane, number)
        solution = None if times is None else cached_loop_solution(spec.graph.model, times)
        controls.append(None if solution is None else LoopControl(spec.graph.model, loop.name, *solution))
    return tuple(controls)


def cached_control(model: str, times_ns: Sequence[int]) -> Control:
    """The control for batches that take S(1), S(2), ... nanoseconds, from the cache or solved and put there."""
    key = digest({"times_ns": list(times_ns), "loads": LOADS, "solver": SOLVER, "format": _FORMAT})
    path = cache_directory() / f"control-{key}.npz"
    arrays = read_arrays(path, _ARRAYS)
    solutions = None if arrays is None else _solutions(**arrays)
    if solutions is None:
        _log.info("solving the control of model %r for batches of up to %d rows", model, len(times_ns))
        control = solve_times(model, times_ns)
        write_arrays(path, _arrays(control.solutions), KEPT)
        return control
    capacity = max(rows / time_ns for rows, time_ns in enumerate(times_ns, start=1))
    return Control(model, len(times_ns), capacity, solutions)


def cached_loop_solution(model: str, times: LoopTimes) -> LoopSolution:
    """The solution for a loop of these times, from the cache or solved and put there."""
    key = digest({**times._asdict(), "loads": loop_solver.LOADS, "solver": loop_solver.SOLVER, "format": _FORMAT})
    path = cache_directory() / f"loop-{key}.npz"
    arrays = read_arrays(path, _LOOP_ARRAYS)
    solution = None if arrays is None else _loop_solution(len(times.step_ns) - 1, **arrays)
    if solution is None:
        _log.info("solving the control of a loop of model %r for up to %d rows", model, len(times.step_ns) - 1)
        solution = solve_loop_times(times)
        write_arrays(path, dict(zip(_LOOP_ARRAYS, map(np.array, solution), strict=True)), KEPT)
    return solution


def _solutions(
    rates: np.ndarray,
    gains: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    points: np.ndarray,
    horizons: np.ndarray,
    ahead: np.ndarray,
) -> tuple[Solution, ...] | None:
    """The arrays of a file as solutions; None where they do not belong together, or hold what is no number."""
    try:
        count, states = values.shape
        ends = [0, *accumulate(points.tolist())]
        shapes = (rates.shape, gains.shape, points.shape, actions.shape, horizons.shape, ahead.shape)
        if shapes != ((count,), (count,), (count,), (count, states), (ends[-1],), (ends[-1], states)) or count != len(
            LOADS
        ):
            return None
        if not all(np.isfinite(array).all() for array in (rates, gains, values, ahead)):
            return None
    except (TypeError, ValueError):  # not even of the right kind
        return None
    rows = [tuple(row) for row in ahead.tolist()]
    return tuple(
        Solution(rate, gain, tuple(value), tuple(action), tuple(horizons[first:end].tolist()), tuple(rows[first:end]))
        for rate, gain, value, action, (first, end) in zip(
            rates.tolist(), gains.tolist(), values.tolist(), actions.tolist(), pairwise(ends), strict=True
        )
    )


def _arrays(solutions: Sequence[Solution]) -> Arrays:
    return {
        "rates": np.array([one.rate_per_ns for one in solutions]),
        "gains": np.array([one.gain_rows for one in solutions]),
        "values": np.array([one.value for one in solutions]),
        "actions": np.array([one.action for one in solutions], np.int64),
        "points": np.array([len(one.horizon_ns) for one in solutions], np.int64),
        "horizons": np.array([time_ns for one in solutions for time_ns in one.horizon_ns], np.int64),
        "ahead": np.array([row for one in solutions for row in one.ahead]),
    }


def _loop_solution(rows_max: int, rates: np.ndarray, thresholds: np.ndarray, means: np.ndarray) -> LoopSolution | None:
    """The arrays of a file as a solution; None where they cannot be one."""
    count = len(loop_solver.LOADS)
    if (rates.shape, thresholds.shape, means.shape) != ((count,), (count, rows_max), (count,)):
        return None
    kinds = (rates.dtype.kind, thresholds.dtype.kind, means.dtype.kind)
    if kinds != ("f", "i", "f") or not (np.isfinite(rates).all() and np.isfinite(means).all()):
        return None
    if not (np.diff(rates) > 0).all() or thresholds.min() < 1 or thresholds.max() > NEVER:
        return None
    needed = tuple(tuple(row) for row in thresholds.tolist())
    return LoopSolution(tuple(rates.tolist()), needed, tuple(means.tolist()))
