"""What is said of a model of one file: may rows join, and what does serving it node by node cost?

Owns: `check_model` and its measuring, node by node against the whole model in one process, interleaved.
Must not know: how the model was cut, the scheduler, printing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from lazybatch.checking.reports import CheckReport
from lazybatch.errors import ExecutionError, InvalidInput
from lazybatch.executors.base import Model
from lazybatch.partition.pieces import Partition

ROUNDS_MAX = 101
ROUNDS_MIN = 5
SECONDS = 3.0
WARM_UP = 3


class Partitioned(Model, Protocol):
    """A model made from a partition, whatever runs it."""

    @property
    def partition(self) -> Partition:
        """What it was cut into."""

    def sample_row(self, seed: int) -> dict[str, Any]:
        """One made-up row as callers give it. Raises `InvalidInput` where its shape is not known."""

    def whole_call(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The whole model on a batch, batch axis included, by output name."""


def check_model(model: Model) -> CheckReport:
    """Measure a model from `lazybatch.load`.

    Raises `ModelError` where its directory no longer holds the whole model, `InvalidInput` for a plain callable.
    """
    if not hasattr(model, "whole_call"):
        raise InvalidInput(f"{model.name!r} is a plain callable: it is served whole, there are no nodes to check")
    cut = cast(Partitioned, model)
    partition = cut.partition
    try:
        ratio, identical = _compare(cut)
    except (InvalidInput, ExecutionError):
        ratio, identical = None, None
    notes = partition.provenance.get("notes", ())
    return CheckReport(
        model=model.name,
        nodes=len(model.graph),
        joinable=model.joinable,
        reason=model.reason,
        max_abs_diff=partition.max_abs_diff,
        chain_over_whole=ratio,
        identical=identical,
        notes=tuple(str(note) for note in notes) if isinstance(notes, list | tuple) else (),
    )


def _compare(model: Partitioned) -> tuple[float, bool]:
    """The ratio of medians, and whether the answers are equal. Raises `InvalidInput`, `ExecutionError`."""
    given = model.sample_row(0)
    row = model.admit(given)
    feeds = {name: _batched(model, name, np.asarray(value)) for name, value in given.items()}
    whole_model = model.whole_call()
    executor = model.executor(max_batch_size=1)
    nodes = range(len(model.graph))

    def chain() -> Any:
        executor.open(0, {0: row}, 1)
        for node in nodes:
            executor.run(0, node)
        return executor.close(0)[0]

    def whole() -> Any:
        return whole_model(feeds)

    try:
        ratio = _ratio(chain, whole)
        got = chain()
        want = whole()
        identical = all(
            np.array_equal(_unbatched(got[name], want[name]), want[name], equal_nan=want[name].dtype.kind == "f")
            for name in want
        )
    finally:
        executor.shutdown()
    return ratio, identical


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Median time of one over that of the other, taken in turn."""
    times: tuple[list[int], list[int]] = ([], [])
    begun = time.perf_counter()
    for turn in range(WARM_UP + ROUNDS_MAX):
        for call, spent in zip((one, other), times, strict=True):
            start = time.perf_counter_ns()
            call()
            if turn >= WARM_UP:
                spent.append(time.perf_counter_ns() - start)
        if len(times[0]) >= ROUNDS_MIN and time.perf_counter() - begun > SECONDS:
            break
    return statistics.median(times[0]) / statistics.median(times[1])


def _batched(model: Partitioned, name: str, value: Any) -> Any:
    """A caller's row with its batch axis."""
    boundary = model.partition.boundaries[name]
    return value if boundary.axis is None or not boundary.unit else np.expand_dims(value, boundary.axis)


def _unbatched(got: Any, want: Any) -> Any:
    """A caller's answer in the shape the whole model gives one row, where only the batch axis is missing."""
    array = np.asarray(got)
    return array.reshape(want.shape) if array.size == want.size else array
