"""What `check` says of a model: may rows join, and what does serving it node by node cost?

Owns: `check`, for models of one file and for programs. Must not know: how either is checked, printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from lazybatch.checking.program import check_program
from lazybatch.checking.reports import CheckReport, ProgramReport, StageReport
from lazybatch.checking.single import check_model
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model
from lazybatch.executors.program.model import ProgramModel

__all__ = ["CheckReport", "ProgramReport", "StageReport", "check"]


@overload
def check(model: ProgramModel, *, inputs: Sequence[Any] | None = None) -> ProgramReport: ...


@overload
def check(model: Model, *, inputs: Sequence[Any] | None = None) -> CheckReport | ProgramReport: ...


def check(model: Model, *, inputs: Sequence[Any] | None = None) -> CheckReport | ProgramReport:
    """Measure a model from `lazybatch.load`; a program stage by stage, and as a whole.

    ``str`` of what is returned is the table that the command prints.
    inputs: of a program: rows to try it with, as `predict` takes them; by default they are made up.
    Raises `ModelError` where its directory no longer holds the whole model, `InvalidInput` for a plain callable.
    """
    if isinstance(model, ProgramModel):
        return check_program(model, inputs)
    if inputs is not None:
        raise InvalidInput(f"{model.name!r} is one model: it is compared on the row it was partitioned with")
    return check_model(model)
