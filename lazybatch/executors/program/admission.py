"""Checks one row of a request against what a program takes, and copies it.

Owns: `Admission`: which input of the program is read by whom, and what follows from it for rows that are to be joined.
Must not know: sub-batches, memory, any runtime.

An input is checked by every stage that reads it. Rows join when their signatures are equal: the shapes of what they are
given, as padded, but not how many entries they are given per iteration; and values that a model takes without batch
axis. The size of a row is the length of its first input whose length may vary, or 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.admission import as_array, check_shape, digest_of, row_dims, untorched
from lazybatch.executors.base import Row
from lazybatch.executors.program.plan import Board, Dims, Given, StagePlan
from lazybatch.executors.program.rows import number_of, padded_size
from lazybatch.partition.pieces import Boundary, Kind
from lazybatch.program import Reference
from lazybatch.program.parts import COUNT_MAX


class Use(NamedTuple):
    """One reader of an input. dims: what it wants, per row. given: how it is padded, where it is."""

    stage: str
    tensor: str
    how: Literal["whole", "entries", "length", "count"]
    dtype: str | None
    dims: Dims
    given: Given | None = None


@dataclass(slots=True)
class Entry:
    """One input of a program and all its readers."""

    name: str
    uses: list[Use] = field(default_factory=list)

    @property
    def dtype(self) -> str | None:
        """Its type; None where only its length is read."""
        return next((use.dtype for use in self.uses if use.dtype is not None), None)

    @property
    def varies(self) -> bool:
        """Whether rows of different lengths join."""
        return any(use.how == "entries" or (use.given is not None and use.given.pad) for use in self.uses)


class Admission:
    """See the module's text. Raises `ModelError` where two stages want different types of one input."""

    def __init__(self, model: str, plans: Sequence[StagePlan], board: Board) -> None:
        self._model = model
        self._plans = plans
        self._board = board
        self._entries = {name: Entry(name) for name in board.program.inputs}
        for plan in plans:
            self._note(plan)
        for entry in self._entries.values():
            self._check_types(entry)

    def _note(self, plan: StagePlan) -> None:
        boundaries = plan.partition.boundaries

        def note(reference: Reference, use: Use) -> None:
            if reference.stage is None:
                self._entries[reference.tensor].uses.append(use)

        for given in plan.given:
            if given.reference is None:
                continue
            boundary = boundaries[given.name]
            if given.length:
                note(given.reference, Use(plan.name, given.name, "length", None, None))
                continue
            dims = row_dims(boundary)
            if given.pad and dims is not None:
                dims = (None, *dims[1:])
            note(given.reference, Use(plan.name, given.name, "whole", boundary.dtype, dims, given))
        if plan.loop is None:
            return
        for name, reference in plan.loop.each.items():
            dims = row_dims(boundaries[name])
            dims = None if dims is None else (None, *dims)
            note(reference, Use(plan.name, name, "entries", boundaries[name].dtype, dims))
        ended_by = plan.loop.ended_by
        if ended_by is not None and plan.loop.by_value:
            note(ended_by, Use(plan.name, "trips", "count", "int64", None))
        elif ended_by is not None and ended_by not in plan.loop.each.values():
            note(ended_by, Use(plan.name, "trips", "length", None, None))

    def _check_types(self, entry: Entry) -> None:
        first = next((use for use in entry.uses if use.dtype is not None), None)
        for use in entry.uses:
            if first is not None and use.dtype is not None and use.dtype != first.dtype:
                raise ModelError(
                    f"stage {use.stage!r}: input {use.tensor!r} wants {entry.name!r} as {use.dtype}, but stage "
                    f"{first.stage!r} wants it as {first.dtype} for its input {first.tensor!r}"
                )

    def admit(self, inputs: Any) -> Row:
        """One row, without batch axis, as arrays of its own. Raises `InvalidInput` naming the input and its stage."""
        names = ", ".join(map(repr, self._entries)) or "no inputs"
        if not isinstance(inputs, Mapping):
            raise InvalidInput(
                f"a row of program {self._model!r} is a dict from input name to array ({names}), got "
                f"{type(inputs).__name__}"
            )
        missing = next((name for name in self._entries if name not in inputs), None)
        if missing is not None:
            raise InvalidInput(f"input {missing!r} is missing: program {self._model!r} takes {names}")
        unknown = next((name for name in inputs if name not in self._entries), None)
        if unknown is not None:
            raise InvalidInput(f"unknown input {unknown!r}: program {self._model!r} takes {names}")
        values: dict[str, NDArray[Any]] = {}
        signature: list[Hashable] = []
        size: int | None = None
        for name, entry in self._entries.items():
            array = values[name] = _checked(entry, inputs[name])
            signature += self._signature(entry, array)
            if size is None and entry.varies:
                size = len(array)
        return Row(values, tuple(signature), 1 if size is None else size, self._trips(values))

    def _signature(self, entry: Entry, array: NDArray[Any]) -> list[Hashable]:
        """What rows must agree in so that every reader can join them."""
        found: list[Hashable] = []
        for use in entry.uses:
            if use.how == "entries":
                found.append(array.shape[1:])
            elif use.how == "whole" and use.given is not None and use.given.pad:
                found.append((padded_size(use.given, len(array)), *array.shape[1:]))
            elif use.how == "whole":
                found.append(array.shape)
        if entry.name in self._board.uniform:
            found += [array.shape, digest_of(array)]
        if entry.name in self._board.lengths:
            found.append(len(array))
        return found

    def _trips(self, values: Mapping[str, NDArray[Any]]) -> tuple[int | None, ...]:
        """Per loop the iterations this row makes, where its inputs say so."""
        trips: list[int | None] = []
        for plan in self._plans:
            loop = plan.loop
            if loop is None:
                continue
            count: int | None = None
            if loop.ended_by is not None and loop.ended_by.stage is None:
                name = loop.ended_by.tensor
                count = number_of(values[name], by_value=loop.by_value)
                self._check_count(plan, name, count)
            made = 0 if count is None else min(count, loop.most or count)
            for tensor, reference in loop.each.items():
                have = made if reference.stage is not None else len(values[reference.tensor])
                if have < made:
                    raise InvalidInput(
                        f"input {reference.tensor!r} has {have} entries, but stage {plan.name!r} makes {made} "
                        f"iterations and is given one in each, as {tensor!r}"
                    )
            trips.append(count if loop.done is None else None)
        return tuple(trips)

    def _check_count(self, plan: StagePlan, name: str, count: int) -> None:
        loop = plan.loop
        assert loop is not None, "it is a loop's"
        what = f"input {name!r} makes {count} iterations of stage {plan.name!r}"
        if count < 1:
            raise InvalidInput(f"{what}; every row makes at least one")
        most = COUNT_MAX if loop.most is None else loop.most
        if count > most and loop.done is None:
            raise InvalidInput(f"{what}; it allows {most}")


def _checked(entry: Entry, value: Any) -> NDArray[Any]:
    """One input as an array of its own, of the type and shape its readers want."""
    reader = entry.uses[0]
    try:
        value = untorched(entry.name, value)
        dtype = _dtype_of(entry.name, value) if entry.dtype is None else entry.dtype
        array = as_array(Boundary(entry.name, dtype, Kind.SHARED), value)
        for reader in entry.uses:
            _check_use(entry, reader, array)
    except InvalidInput as error:
        raise InvalidInput(f"{error} (read by stage {reader.stage!r} as {reader.tensor!r})") from error.__cause__
    return array


def _dtype_of(name: str, value: Any) -> str:
    """The type of an input of which only the length is read."""
    try:
        dtype = np.asarray(value).dtype
    except (ValueError, RuntimeError) as error:
        raise InvalidInput(f"input {name!r} is no array: {error}") from error
    return dtype.name if dtype.kind in "biuf" else "object"


def _check_use(entry: Entry, use: Use, array: NDArray[Any]) -> None:
    if use.how == "count":
        if array.size != 1:
            raise InvalidInput(f"input {entry.name!r} has shape {list(array.shape)}, expected one integer")
        return
    check_shape(Boundary(entry.name, array.dtype.name, Kind.SHARED), array, use.dims)
    if (use.how != "whole" or (use.given is not None and use.given.pad)) and not array.ndim:
        raise InvalidInput(f"input {entry.name!r} is a single value, expected an array with a length")
    if use.how == "entries" and not len(array):
        raise InvalidInput(f"input {entry.name!r} has no entries, expected at least one")
    if use.given is not None and use.given.pad and padded_size(use.given, len(array)) is None:
        raise InvalidInput(
            f"input {entry.name!r} has {len(array)} entries, more than the {use.given.pad[-1]} it can be padded to"
        )
