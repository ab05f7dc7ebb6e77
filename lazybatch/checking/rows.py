"""Rows to try a program with.

Owns: `varied_rows`. Must not know: what they are tried for.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program.checks import varying


def varied_rows(model: ProgramModel, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Made-up rows as callers give them, of different lengths where lengths may differ.

    Raises `InvalidInput` where shapes are not known.
    """
    rng = random.Random(seed)
    free = {reference.tensor for reference in varying(model.program) if reference.stage is None}
    made = []
    for number in range(count):
        row = model.sample_row(seed + number)
        lengths: dict[int, int] = {}
        shorter = dict(row)
        for name in sorted(free & row.keys()):
            whole = len(np.asarray(row[name]))
            shorter[name] = row[name][: lengths.setdefault(whole, rng.randint(1, max(1, whole)))]
        made.append(_admitted(model, shorter, row))
    return made


def _admitted(model: ProgramModel, wanted: dict[str, Any], otherwise: dict[str, Any]) -> dict[str, Any]:
    """The shorter row where the program takes it: inputs may have to agree in ways only its models know."""
    try:
        model.admit(wanted)
    except InvalidInput:
        return otherwise
    return wanted
