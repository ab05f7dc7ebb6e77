"""A padding rule: rows of many lengths, lengthened to one of a few.

Owns: `Pad`: the rule as a user declares it, its ranges, and what it does to the arrays of one row.
Must not know: models, executors, batches; whether padding changes an answer (`proof`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.config import flag, whole
from lazybatch.errors import InvalidInput

LENGTH_MAX = 1 << 24
AXIS_MAX = 31
TOLERANCE = 1e-4
"""Deviation of a padded answer that is float32 arithmetic in another order and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad:
    """How rows of one model are padded. Axes count without the batch axis.

    inputs: those that have the length, with the value that fills them behind it; a sequence of names: filled with 0.
    to: the lengths that are executed, increasing; a row is padded to the smallest that holds it.
    axis: where the length lies, in all of these inputs. mask: the input that is 1 where a position is real and 0 where
    it is padding; callers may leave it out. It need not be named in ``inputs``.
    trim: outputs that have the length, with its axis; they are cut back to the row's own. None: found by trying.
    ride: whether rows of a smaller length may fill up a batch of a larger one where that costs less than waiting.
    tolerance: how far the padded answer may be from the unpadded one, over the largest magnitude in it.

    Raises `InvalidInput` naming the field.
    """

    inputs: Mapping[str, float] | Sequence[str]
    to: Sequence[int]
    axis: int = 0
    mask: str | None = None
    trim: Mapping[str, int] | None = None
    ride: bool = True
    tolerance: float = TOLERANCE
    _fills: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = _lengths(self.to)
        fills = _fills(self.inputs)
        whole("axis", self.axis, 0, AXIS_MAX)
        if self.mask is not None:
            if not isinstance(self.mask, str):
                raise InvalidInput(f"mask must be the name of an input, got {self.mask!r}")
            if fills.setdefault(self.mask, 0) != 0:
                raise InvalidInput(f"mask {self.mask!r} is 0 where there is padding, it cannot be {fills[self.mask]!r}")
        if not fills:
            raise InvalidInput("inputs: at least one input must have the length")
        if self.trim is not None:
            if not isinstance(self.trim, Mapping):
                raise InvalidInput(f"trim must map outputs to axes, got {self.trim!r}")
            for name, axis in self.trim.items():
                whole(f"trim[{name!r}]", axis, 0, AXIS_MAX)
        flag("ride", self.ride)
        tolerance = self.tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise InvalidInput(f"tolerance must be a number from 0 to below 1, got {tolerance!r}")
        object.__setattr__(self, "to", lengths)
        object.__setattr__(self, "_fills", MappingProxyType(fills))

    @property
    def fills(self) -> Mapping[str, float]:
        """Every input that has the length, and what fills it."""
        return self._fills

    def bucket(self, length: int) -> int:
        """The length a row is padded to. Raises `InvalidInput` where none holds it."""
        if length < 1:
            raise InvalidInput(f"a row of length {length} is empty; at least 1 is needed")
        for most in self.to:
            if length <= most:
                return most
        raise InvalidInput(f"a row of length {length} is longer than the longest padded length, {self.to[-1]}")

    def length(self, values: Mapping[str, NDArray[Any]]) -> int:
        """The length of a row. Raises `InvalidInput` where its inputs do not agree on one."""
        found: dict[str, int] = {}
        for name in self._fills:
            shape = values[name].shape
            if self.axis >= len(shape):
                raise InvalidInput(f"input {name!r} has shape {list(shape)}, there is no axis {self.axis} to pad")
            found[name] = shape[self.axis]
        first = next(iter(found))
        for name, length in found.items():
            if length != found[first]:
                raise InvalidInput(
                    f"inputs {first!r} and {name!r} of a row must be of one length, got {found[first]} and {length}"
                )
        return found[first]

    def masked(self, inputs: Mapping[str, Any], dtype: str) -> Mapping[str, Any]:
        """A row's inputs with the mask that its caller left out: all of the row is real.

        dtype: of the mask. What is no array, or has no such axis, is left for admission to refuse.
        """
        other = next((name for name in self._fills if name != self.mask and name in inputs), None)
        if self.mask is None or self.mask in inputs or other is None:
            return inputs
        try:
            shape = np.shape(inputs[other])
        except ValueError:
            return inputs
        if self.axis >= len(shape):
            return inputs
        return {**inputs, self.mask: np.ones(shape[self.axis], dtype=dtype)}

    def padded(self, values: Mapping[str, NDArray[Any]], length: int) -> dict[str, NDArray[Any]]:
        """The row at this length, which is not smaller than its own; other inputs stay the arrays they are."""
        made: dict[str, NDArray[Any]] = dict(values)
        for name, fill in self._fills.items():
            value = values[name]
            own = value.shape[self.axis]
            if own == length:
                continue
            shape = (*value.shape[: self.axis], length, *value.shape[self.axis + 1 :])
            made[name] = np.full(shape, fill, dtype=value.dtype)
            made[name][(slice(None),) * self.axis + (slice(0, own),)] = value
        return made


def trimmed(value: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """An answer cut back to a row's own length."""
    if value.shape[axis] == length:
        return value
    return np.array(value[(slice(None),) * axis + (slice(0, length),)])


def _lengths(given: Any) -> tuple[int, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given:
        raise InvalidInput(f"to must be a sequence of lengths, got {given!r}")
    lengths = tuple(whole("to", length, 1, LENGTH_MAX) for length in given)
    if any(b <= a for a, b in pairwise(lengths)):
        raise InvalidInput(f"to: the lengths must increase, got {list(lengths)}")
    return lengths


def _fills(given: Any) -> dict[str, float]:
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise InvalidInput(f"inputs must map names to the values that fill them, got {given!r}")
    fills = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, 0)
    for name, fill in fills.items():
        if not isinstance(name, str):
            raise InvalidInput(f"inputs must be named by strings, got {name!r}")
        if not isinstance(fill, bool | int | float) or not math.isfinite(fill):
            raise InvalidInput(f"inputs[{name!r}]: what fills it must be a finite number, got {fill!r}")
    return fills
