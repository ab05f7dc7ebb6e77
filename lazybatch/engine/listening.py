"""Listening: what rows in loops collect step by step, on its way to whoever asked for it.

Owns: `Listener` (one row's: which steps it has heard) and `Heard` (steps that are due).
Must not know: the scheduler, executors, how steps are waited for.

A row may be run again from its start after part of its steps were heard, in a batch of another size, which changes the
last bits of floats. A model whose steps depend on more (on random numbers, or on the choice between two that are nearly
equal) may go another way, and steps of two runs in one stream are nobody's answer. So what was heard is remembered:
little of it, since all listeners of all rows do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger("lazybatch.engine")

Step = Mapping[str, Any]
"""What a row collected in one iteration: arrays by name."""

_PLACES = 64
"""Values that are remembered of an array, evenly spaced."""
_TOLERANCE = 1e-2
"""How far floats may lie from what was heard, over the largest magnitude in either; far more than batch sizes do."""
_NEAR = 1e-3
"""How far they always may: values near zero, as the logarithm of a probability of 1, are nothing but rounding."""

Memory = dict[str, tuple[tuple[int, ...], NDArray[Any]]]


class Listener:
    """Whoever listens to one row. A row that is run again from its start repeats no step to it.

    sink: called with every new step, in order, on a thread of the engine's; it must be quick and never wait.
    strayed: the row, run again, made another step than was heard in its place; nothing is heard from then on.
    """

    __slots__ = ("_at", "_heard", "sink", "strayed")

    def __init__(self, sink: Callable[[Step], object]) -> None:
        self.sink = sink
        self.strayed = False
        self._at = 0
        self._heard: list[Memory | None] = []

    def rewind(self) -> None:
        """The row starts again."""
        self._at = 0

    def hears(self, step: Step) -> bool:
        """The row makes its next step; whether that is a new one."""
        if self.strayed:
            return False
        memory = _remembered(step)
        self._at += 1
        if self._at <= len(self._heard):
            self.strayed = not _same(self._heard[self._at - 1], memory)
            return False
        self._heard.append(memory)
        return True

    @property
    def at(self) -> int:
        """Steps the row has made since it last started."""
        return self._at

    @property
    def short(self) -> bool:
        """Whether more steps were heard than the row has made since it last started."""
        return self._at < len(self._heard)


def _remembered(step: Step) -> Memory | None:
    """What is kept of a step; None where it holds what is no array."""
    memory: Memory = {}
    try:
        for name, value in step.items():
            array = np.asarray(value)
            memory[name] = (array.shape, array.reshape(-1)[:: -(-array.size // _PLACES) or 1].copy())
    except Exception:
        return None
    return memory


def _same(before: Memory | None, after: Memory | None) -> bool:
    """Whether two steps are; those that cannot be compared are taken to be."""
    if before is None or after is None:
        return True
    if before.keys() != after.keys():
        return False
    return all(shape == after[name][0] and _close(values, after[name][1]) for name, (shape, values) in before.items())


def _close(before: NDArray[Any], after: NDArray[Any]) -> bool:
    if before.dtype != after.dtype:
        return False
    if before.dtype.kind not in "fc":
        try:
            return bool(np.array_equal(before, after))
        except Exception:  # objects that are not simply equal or different
            return True
    near = max(_NEAR, _TOLERANCE * max(_largest(before), _largest(after)))
    return bool(np.allclose(before, after, rtol=0.0, atol=near, equal_nan=True))


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


class Heard(NamedTuple):
    """New steps of one iteration, each with the listener it is for."""

    steps: list[tuple[Listener, Step]]

    def tell(self) -> None:
        """Pass them on; a sink that raises costs nobody else anything."""
        for listener, step in self.steps:
            try:
                listener.sink(step)
            except BaseException:
                with suppress(BaseException):  # the others are told, also where not even logging works
                    _log.error("a step could not be passed on", exc_info=True)
