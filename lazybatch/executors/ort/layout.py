"""The shapes that boundary tensors take for one signature, at any number of rows.

Owns: `Form` (one tensor's shape as a function of rows) and `Layout` (all of one signature, learned as nodes first run).
Must not know: memory, any runtime.

Declared shapes are not trusted: a form is taken from a tensor that was really made, and checked against what the
boundary claims about its rows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazybatch.errors import ExecutionError
from lazybatch.executors.ort.slots import SlotPlan
from lazybatch.partition.pieces import Boundary, Kind

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Form:
    """Shape of one tensor. axis: where rows lie, or None; there ``dims`` holds the share of one row."""

    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    axis: int | None

    @classmethod
    def of(cls, boundary: Boundary, shape: tuple[int, ...], rows: int) -> Form:
        """The form behind a tensor seen with ``rows`` rows. Raises `ExecutionError` if its axis does not divide."""
        dtype = np.dtype(boundary.dtype)
        axis = boundary.axis if boundary.kind is Kind.ROWS else None
        if axis is None:
            return cls(dtype, shape, None)
        if axis >= len(shape) or (shape[axis] != rows if boundary.unit else shape[axis] % rows):
            raise ExecutionError(
                f"tensor {boundary.name!r} carries its rows on axis {axis}, but {rows} of them made the shape "
                f"{list(shape)}"
            )
        return cls(dtype, (*shape[:axis], shape[axis] // rows, *shape[axis + 1 :]), axis)

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape at this number of rows."""
        if self.axis is None:
            return self.dims
        return (*self.dims[: self.axis], self.dims[self.axis] * rows, *self.dims[self.axis + 1 :])

    @property
    def unit_bytes(self) -> int:
        """Bytes of one row; of the whole tensor where rows have no part in it."""
        return math.prod(self.dims) * self.dtype.itemsize

    def nbytes(self, rows: int) -> int:
        """Bytes at this number of rows."""
        return self.unit_bytes * (rows if self.axis is not None else 1)


class Layout:
    """The forms of one signature. ``slot_bytes``: what each slot must hold for ``capacity`` rows, as far as known.

    becomes: output -> the input that it is in the next iteration, whose form it must have.
    """

    __slots__ = ("_becomes", "_boundaries", "_plan", "capacity", "forms", "key", "signature", "slot_bytes")

    def __init__(
        self,
        key: int,
        signature: Hashable,
        boundaries: Mapping[str, Boundary],
        plan: SlotPlan,
        capacity: int,
        becomes: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.key = key
        self.signature = signature
        self.capacity = capacity
        self.forms: dict[str, Form] = {}
        self.slot_bytes = [0] * plan.count
        self._boundaries = boundaries
        self._plan = plan
        self._becomes = becomes

    def knows(self, names: Iterable[str]) -> bool:
        """Whether the forms of all these tensors have been learned."""
        return all(name in self.forms for name in names)

    def learn(self, name: str, shape: tuple[int, ...], rows: int) -> Form:
        """Note what shape a tensor took with this number of rows.

        Raises `ExecutionError` for a tensor that cannot be the state it is in the next iteration.
        """
        form = Form.of(self._boundaries[name], shape, rows)
        state = self._becomes.get(name)
        if state is not None and form != self.forms.get(state, form):
            raise ExecutionError(
                f"state {state!r} is {_shown(self.forms[state])} per row, but {name!r}, which it is in the next "
                f"iteration, is {_shown(form)}"
            )
        self.forms[name] = form
        slot = self._plan.slot_of[name]
        self.slot_bytes[slot] = max(self.slot_bytes[slot], form.nbytes(self.capacity))
        return form


def _shown(form: Form) -> str:
    return f"{form.dtype.name} {list(form.dims)} (rows on axis {form.axis})"
