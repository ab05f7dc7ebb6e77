"""A program with its models: every stage loaded like a model of its own.

Owns: `load_stages`: which options reach which stage, where a stage's example inputs come from, and the words around
what goes wrong with one.
Must not know: how a model is loaded (it is told), how a program is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.base import Model
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.program import Program, Stage
from lazybatch.program.examples import read_arrays
from lazybatch.program.file import is_program

_OF_STAGES = ("example_inputs", "batch_axes", "tolerance")
_STAGES_SAY = {"example_inputs": "examples"}
_WHERE_EXAMPLES = "; a stage has them as Stage(examples=...), or as 'examples', an .npz file, in a program.json"


def load_stages(
    program: Program,
    load: Callable[..., Model],
    is_torch: Callable[[Any], bool],
    options: Mapping[str, Any],
    *,
    providers: Any = None,
    device: Any = None,
) -> dict[str, PartitionedModel]:
    """The model of every stage, by its name, in order.

    load: loads one model with options; is_torch: whether a model is torch's to load, and takes ``device`` instead of
    ``providers``. options: of the whole program.
    Raises `InvalidInput`, `ModelError`, naming the program and the stage.
    """
    for name in _OF_STAGES:
        if options.get(name) is not None:
            raise InvalidInput(
                f"program {program.name!r}: {name} are given per stage (Stage({_STAGES_SAY.get(name, name)}=...), or "
                f"{_STAGES_SAY.get(name, name)!r} in its file), not for all stages together"
            )
    shared = {name: value for name, value in options.items() if name not in _OF_STAGES}
    models: dict[str, PartitionedModel] = {}
    for stage in program.stages:
        runtime = {"device": device} if is_torch(stage.model) else {"providers": providers}
        try:
            models[stage.name] = _load_stage(stage, load, {**shared, **runtime})
        except (InvalidInput, ModelError) as error:
            hint = "" if stage.examples is not None or "example_inputs" not in str(error) else _WHERE_EXAMPLES
            raise type(error)(f"program {program.name!r}: stage {stage.name!r}: {error}{hint}") from error
    return models


def _load_stage(stage: Stage, load: Callable[..., Model], options: Mapping[str, Any]) -> PartitionedModel:
    if isinstance(stage.model, PartitionedModel):
        return stage.model
    given = {"example_inputs": _examples(stage), "batch_axes": stage.batch_axes, "tolerance": stage.tolerance}
    if is_program(stage.model):  # not even read: it may name itself
        raise InvalidInput(f"a stage needs a model that can be cut into nodes, got a program: {stage.model!r:.200}")
    model = load(stage.model, **options, **given)
    if not isinstance(model, PartitionedModel):
        raise InvalidInput(f"a stage needs a model that can be cut into nodes, got {type(stage.model).__name__}")
    return model


def _examples(stage: Stage) -> Any:
    """What the stage's model is probed with, as `lazybatch.load` takes it."""
    if not isinstance(stage.examples, str | Path):
        return stage.examples
    return read_arrays(stage.examples, "examples")
