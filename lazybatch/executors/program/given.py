"""What the rows that come to a stage are given: all inputs of its model, each for all rows at once.

Owns: `columns_for`, which makes inputs of rows' tensors, and `signature_of`.
Must not know: sub-batches, memory, any runtime.

Tensors that all rows bring from the stage before come as one block, in the order of the rows, and are given as such.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import ExecutionError
from lazybatch.executors.admission import digest_of
from lazybatch.executors.columns import Column, Columns
from lazybatch.executors.program.plan import Given, StagePlan
from lazybatch.executors.program.rows import Traveller, entries, padded, room_for
from lazybatch.program import Reference

Blocks = Mapping[Reference, NDArray[Any]]
"""Tensors of some rows, with the rows on the first axis."""
NO_BLOCKS: Blocks = {}


def columns_for(plan: StagePlan, rows: Sequence[Traveller], blocks: Blocks = NO_BLOCKS) -> dict[str, Column]:
    """All inputs of the stage's model; those of loops that are not given now, as forms without memory.

    Raises `ExecutionError` naming the stage and the tensor.
    """
    columns = {one.name: _column(plan.name, one, rows, blocks) for one in plan.given}
    if plan.loop is not None:
        for name, form in plan.loop.forms.items():
            columns[name] = Column(form)
        for name, reference in plan.loop.each.items():
            columns[name] = Column.of([entries(plan.name, name, reference, row)[0] for row in rows])
    return columns


def signature_of(stage: str, columns: Columns, shared: Collection[str] = ()) -> Hashable:
    """The shapes of all inputs, and the bytes of those that all rows ``shared``: they may decide what shapes are made.

    Raises `ExecutionError` where rows do not agree in a shape.
    """
    for name, column in columns.items():
        odd = column.odd_shape()
        if odd is not None:
            raise ExecutionError(
                f"stage {stage!r}: input {name!r} has the shapes {list(column.first.shape)} and {list(odd)} for rows "
                "of one signature"
            )
    shapes = tuple([column.first.shape for column in columns.values()])
    return (shapes, *[digest_of(columns[name].first) for name in shared]) if shared else shapes


def _column(stage: str, given: Given, rows: Sequence[Traveller], blocks: Blocks) -> Column:
    reference = given.reference
    if reference is None:
        assert given.form is not None, "it is what the rows are given"
        return Column(given.form)
    block = None if given.length or given.pad else blocks.get(reference)  # a block is for those who take it as it is
    if block is not None:
        return Column.of(block)
    tensors = [row.tensors[reference] for row in rows]
    if given.length:
        return _lengths(stage, given, tensors)
    return Column.of(_padded(stage, given, tensors) if given.pad else tensors)


def _lengths(stage: str, given: Given, tensors: Sequence[NDArray[Any]]) -> Column:
    assert given.form is not None, "it says which kind of number"
    if not all(map(np.ndim, tensors)):
        raise ExecutionError(f"stage {stage!r}: input {given.name!r}: {str(given.reference)!r} has no length")
    form = given.form
    lengths = np.array([len(tensor) for tensor in tensors], form.dtype)
    if not form.shape:
        return Column.of(lengths)
    return Column.of([np.full_like(form, length) for length in lengths])


def _padded(stage: str, given: Given, tensors: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]] | NDArray[Any]:
    """As one array, where all are padded to one size and agree in everything else."""
    first = tensors[0]
    alike = first.shape[1:], first.dtype
    sizes = {length: room_for(stage, given, length) for length in {len(tensor) for tensor in tensors}}
    if len(set(sizes.values())) > 1 or any((tensor.shape[1:], tensor.dtype) != alike for tensor in tensors):
        return [padded(stage, given, tensor) for tensor in tensors]
    size = sizes[len(first)]
    whole = np.zeros((len(tensors), size, *first.shape[1:]), first.dtype)
    for target, tensor in zip(whole, tensors, strict=True):
        target[: len(tensor)] = tensor
    return whole
