"""The command ``partition``: a model file cut into a directory that `lazybatch.load` takes.

Owns: what the command checks and says.
Must not know: how options are read from the command line; how a model is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lazybatch.cli.measuring import read_rows, seconds_of
from lazybatch.cli.output import Report
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.loading import PROGRAM_SUFFIX
from lazybatch.partition.pieces import Partition
from lazybatch.program import Program, Stage
from lazybatch.program.examples import read_arrays
from lazybatch.program.file import PROGRAM_FILE, is_program, load_program
from lazybatch.program.saving import save_program
from lazybatch.words import aligned, counted

_SETTLED: Mapping[str, Any] = {"examples": None, "batch_axes": None, "tolerance": None}
"""What a stage that is partitioned already has no use for."""
_SHOWN = 12
"""Nodes shown to people, the longest first; ``--json`` has all of them, in order."""


def run(model: Path, directory: Path, preempt_within_ms: float | None, inputs: Path | None) -> Report:
    """Partition and report. Raises `LazyBatchError` for whatever is wrong with the options, the files or the model."""
    within_s = seconds_of(preempt_within_ms)
    rows = None if inputs is None else read_rows(inputs)
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"cannot partition into {str(directory)!r}: it is a file")
    try:
        if is_program(model):
            return _program(model, directory, within_s, rows)
        return _report(_cut(model, directory, within_s, rows))
    except OSError as error:
        raise InvalidInput(f"cannot partition into {str(directory)!r}: {error.strerror or error}") from error


def _program(path: Path, directory: Path, within_s: float | None, rows: object) -> Report:
    """Cut every stage into a folder of its own, and write the program that consists of these folders."""
    if rows is not None:
        raise InvalidInput(f'{str(path)!r} is a program: its stages bring their own example inputs ("examples")')
    program = load_program(path)
    if directory.resolve() == (path if path.is_dir() else path.parent).resolve():
        raise InvalidInput(f"cannot partition into {str(directory)!r}: the program itself lies there")
    directory.mkdir(parents=True, exist_ok=True)
    made = {stage.name: _cut_stage(program, stage, directory / stage.name, within_s) for stage in program.stages}
    reports = {name: _report(partition) for name, partition in made.items()}
    stages = [replace(stage, model=directory / stage.name, **_SETTLED) for stage in program.stages]
    save_program(Program(program.name, tuple(stages), program.outputs), directory / PROGRAM_FILE)
    values: dict[str, object] = {
        "model": program.name,
        "directory": str(directory),
        "nodes": sum(len(partition.pieces) for partition in made.values()),
        "stages": {name: report.values for name, report in reports.items()},
    }
    return Report(values, [line for report in reports.values() for line in report.lines])


def _cut_stage(program: Program, stage: Stage, directory: Path, within_s: float | None) -> Partition:
    try:
        if Path(stage.model).is_dir():
            raise InvalidInput(f"its model {str(stage.model)!r} is partitioned already")
        given = None if stage.examples is None else read_arrays(stage.examples, "examples")
        return _cut(Path(stage.model), directory, within_s, given, stage.batch_axes, stage.tolerance)
    except (InvalidInput, ModelError) as error:
        raise type(error)(f"program {program.name!r}: stage {stage.name!r}: {error}") from error


def _cut(
    model: Path,
    directory: Path,
    within_s: float | None,
    examples: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None,
    batch_axes: Mapping[str, int | None] | None = None,
    tolerance: float | None = None,
) -> Partition:
    """Cut by the framework the file belongs to."""
    if model.suffix == PROGRAM_SUFFIX:
        try:
            from lazybatch.partition.torch import partition_torch, read_source
        except ImportError as error:
            raise ModelError(f"torch programs need torch ({error}); run `pip install lazybatch[torch]`") from error
        if examples is not None:
            raise InvalidInput(f"{str(model)!r} is an exported program and brings its own example inputs")
        source = read_source(model, None)
        return partition_torch(
            source,
            directory,
            preempt_within_s=within_s,
            batch_axes=batch_axes,
            tolerance=tolerance,
            save_program=True,
        )
    try:
        from lazybatch.partition.onnx import partition_onnx
    except ImportError as error:
        raise ModelError(f"ONNX models need the onnx packages ({error}); run `pip install lazybatch[onnx]`") from error
    return partition_onnx(
        model,
        directory,
        preempt_within_s=within_s,
        batch_axes=batch_axes,
        example_inputs=examples,
        tolerance=tolerance,
    )


def _report(made: Partition) -> Report:
    pieces = [
        {"name": piece.name, "file": piece.path.name, "operators": piece.operators, "cost_share": piece.cost_share}
        for piece in made.pieces
    ]
    values: dict[str, object] = {
        "model": made.model,
        "directory": str(made.directory),
        "nodes": len(made.pieces),
        "joinable": made.joinable,
        "reason": made.reason,
        "max_abs_diff": made.max_abs_diff,
        "fingerprint": made.fingerprint,
        "longest_node_ms": _ms(made.provenance.get("longest_node_s")),
        "whole_ms": _ms(made.provenance.get("whole_s")),
        "notes": made.provenance.get("notes", []),
        "pieces": pieces,
    }
    joining = "rows of different requests may share a batch" if made.joinable else f"rows run alone: {made.reason}"
    lines = [f"{made.model}: {counted(len(made.pieces), 'node')} in {made.directory}; {joining}"]
    longest = sorted(made.pieces, key=lambda piece: -piece.cost_share)[:_SHOWN]
    lines += aligned(
        [
            (piece.name, f"{100 * piece.cost_share:.1f} % of the time, {counted(piece.operators, 'operator')}")
            for piece in longest
        ]
    )
    if len(made.pieces) > _SHOWN:
        lines.append(f"... and {counted(len(made.pieces) - _SHOWN, 'shorter one')}")
    notes = made.provenance.get("notes", [])
    lines += [f"note: {note}" for note in notes] if isinstance(notes, list) else []
    return Report(values, lines)


def _ms(value_s: object) -> float | None:
    return value_s * 1e3 if isinstance(value_s, int | float) else None
