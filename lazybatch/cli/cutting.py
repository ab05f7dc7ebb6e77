"""The command ``partition``: a model file cut into a directory that `lazybatch.load` takes.

Owns: what the command checks and says.
Must not know: how options are read from the command line; how a model is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybatch.cli.measuring import read_rows, seconds_of
from lazybatch.cli.output import Report, aligned
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.loading import PROGRAM_SUFFIX
from lazybatch.partition.pieces import Partition

_SHOWN = 12
"""Nodes shown to people, the longest first; ``--json`` has all of them, in order."""


def run(model: Path, directory: Path, preempt_within_ms: float | None, inputs: Path | None) -> Report:
    """Partition and report. Raises `LazyBatchError` for whatever is wrong with the options, the files or the model."""
    within_s = seconds_of(preempt_within_ms)
    rows = None if inputs is None else read_rows(inputs)
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"cannot partition into {str(directory)!r}: it is a file")
    try:
        made = _cut(model, directory, within_s, rows)
    except OSError as error:
        raise InvalidInput(f"cannot partition into {str(directory)!r}: {error.strerror or error}") from error
    return _report(made)


def _cut(model: Path, directory: Path, within_s: float | None, rows: Sequence[dict[str, Any]] | None) -> Partition:
    """Cut by the framework the file belongs to."""
    if model.suffix == PROGRAM_SUFFIX:
        try:
            from lazybatch.partition.torch import partition_torch, read_source
        except ImportError as error:
            raise ModelError(f"torch programs need torch ({error}); run `pip install lazybatch[torch]`") from error
        if rows is not None:
            raise InvalidInput(f"{str(model)!r} is an exported program and brings its own example inputs")
        source = read_source(model, None)
        return partition_torch(source, directory, preempt_within_s=within_s, save_program=True)
    try:
        from lazybatch.partition.onnx import partition_onnx
    except ImportError as error:
        raise ModelError(f"ONNX models need the onnx packages ({error}); run `pip install lazybatch[onnx]`") from error
    return partition_onnx(model, directory, preempt_within_s=within_s, example_inputs=rows)


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
    lines = [f"{made.model}: {len(made.pieces)} nodes in {made.directory}; {joining}"]
    longest = sorted(made.pieces, key=lambda piece: -piece.cost_share)[:_SHOWN]
    lines += aligned(
        [(piece.name, f"{100 * piece.cost_share:.1f} % of the time, {piece.operators} operators") for piece in longest]
    )
    if len(made.pieces) > _SHOWN:
        lines.append(f"... and {len(made.pieces) - _SHOWN} shorter ones")
    notes = made.provenance.get("notes", [])
    lines += [f"note: {note}" for note in notes] if isinstance(notes, list) else []
    return Report(values, lines)


def _ms(value_s: object) -> float | None:
    return value_s * 1e3 if isinstance(value_s, int | float) else None
