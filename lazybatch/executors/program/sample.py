"""Rows to measure a program with, made up from what the partitions of its models know.

Owns: `sample_inputs`.
Must not know: memory, any runtime, what the rows are measured for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput
from lazybatch.executors.program.plan import StagePlan
from lazybatch.program import Program

ENTRIES = 8
"""Iterations of a made-up row, where it says how many: enough to see one after the other."""


def sample_inputs(program: Program, plans: Sequence[StagePlan], seed: int) -> dict[str, Any]:
    """One row as callers give it. Rows of different seeds differ, have one shape, and may share a sub-batch.

    Raises `InvalidInput` naming the stage and the input whose shape is not known.
    """
    return {name: _input(name, plans, seed) for name in program.inputs}


def _input(name: str, plans: Sequence[StagePlan], seed: int) -> Any:
    """By the first stage that says most of it."""
    counted = False
    for plan in plans:
        loop = plan.loop
        for given in plan.given:
            if given.reference == (None, name) and not given.length:
                value = np.asarray(_sample(plan, given.name, seed))
                return value[: given.pad[-1]] if given.pad else value
        if loop is None:
            continue
        for tensor, reference in loop.each.items():
            if reference == (None, name):
                return np.stack([_sample(plan, tensor, seed * ENTRIES + k) for k in range(_entries(plan))])
        counted = counted or (loop.by_value and loop.ended_by == (None, name))
    return np.array(min(map(_entries, plans))) if counted else np.zeros(min(map(_entries, plans)), np.float32)


def _entries(plan: StagePlan) -> int:
    most = None if plan.loop is None else plan.loop.most
    return ENTRIES if most is None else min(most, ENTRIES)


def _sample(plan: StagePlan, tensor: str, seed: int) -> Any:
    try:
        return plan.model.sample_row(seed)[tensor]
    except InvalidInput as error:
        raise InvalidInput(f"stage {plan.name!r}: {error}") from error
