"""The command ``profile``: a model's latency table.

Owns: the command's options and checks, its progress bar and what it says about the result.
Must not know: how options are read from the command line; how anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lazybatch.cli.output import Report, milliseconds, progress_bar
from lazybatch.core.latency import EngineTime
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Model
from lazybatch.loading import load, takes_examples
from lazybatch.profiler import ITERATIONS, Progress, profile, verdict
from lazybatch.profiler.judgement import Point
from lazybatch.profiles import LatencyTable, replaceable
from lazybatch.program.examples import read_arrays
from lazybatch.words import aligned, counted

_SIZES = (1, 2, 4, 8, 16)
_BUDGET_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``profile`` may be told."""

    model: Path
    output: Path
    batch_sizes: str
    budget_s: float
    repeats: int
    iterations: int = ITERATIONS
    inputs: Path | None = None
    preempt_within_ms: float | None = None
    threads: int | None = None


def run(options: Options) -> Report:
    """Profile and report. Raises `LazyBatchError` for whatever is wrong with options, files or model."""
    sizes = _batch_sizes(options.batch_sizes)
    if not options.output.parent.is_dir() or options.output.is_dir():
        raise InvalidInput(f"cannot write the table {str(options.output)!r}: no such folder, or a folder itself")
    rows = None if options.inputs is None else read_rows(options.inputs)
    model = load(
        options.model,
        preempt_within=seconds_of(options.preempt_within_ms),
        example_inputs=rows if takes_examples(options.model) else None,
        threads=options.threads,
    )
    partial = options.output.with_name(options.output.name + ".partial")
    with progress_bar(f"profiling {model.name}") as show:
        table = profile(
            model,
            sizes,
            budget_s=options.budget_s,
            repeats=options.repeats,
            iterations=options.iterations,
            inputs=rows,
            progress=_telling(show),
            resume=partial if replaceable(options.output) else None,
            command=_command(options),
        )
    table.save(options.output)
    result = verdict(table)
    values: dict[str, object] = {
        "model": table.model,
        "table": str(options.output),
        "nodes": len(table.nodes),
        "batch_sizes": list(table.batch_sizes),
        "joinable": model.joinable,
        "reason": model.reason,
        "verdict": result.sentence,
        "batching_pays": result.pays,
        "best_batch": result.best_rows,
        "gain": result.gain,
        "curve": _curve(result.curve),
        "stages": {name: _curve(points) for name, points in result.stages},
        "samples": table.provenance["samples"],
        "engine": None if table.engine is None else asdict(table.engine),
        "fingerprint": model.fingerprint,
    }
    pairs = [
        (counted(rows, "row"), f"{milliseconds(ns / 1e6)}, {gain:.2f}x the throughput of one row")
        for rows, ns, gain in result.curve
    ]
    for name, points in result.stages:
        rows_most, _, gain = points[-1]
        pairs.append(
            (name, f"{milliseconds(points[0][1] / 1e6)} for one row, {gain:.2f}x the throughput at {rows_most}")
        )
    if table.engine is not None:
        pairs.append(("the engine", _engine(table.engine, len(table.nodes))))
    lines = [result.sentence, *aligned(pairs), f"{counted(len(table.nodes), 'node')}, table in {options.output}"]
    if rows is None:
        lines.append(f"measured with made-up rows, {_shapes(model)}; give your own with --inputs if yours differ")
    return Report(values, lines)


def measured(model: Model) -> LatencyTable:
    """A table for this time only, of made-up rows. Raises `LazyBatchError`."""
    with progress_bar(f"profiling {model.name}") as show:
        return profile(model, _SIZES, budget_s=_BUDGET_S, progress=_telling(show))


def _telling(show: Callable[[float, str], None]) -> Callable[[Progress], None]:
    return lambda now: show(now.share, f"{counted(now.passes, 'pass')}, batch {now.rows}")


def _engine(engine: EngineTime, nodes: int) -> str:
    """What it takes besides, for people."""
    words = [f"{_line(engine.open_ns, engine.open_row_ns)} besides where a batch begins"]
    if nodes > 1:
        words.append(f"{_line(engine.continue_ns, engine.continue_row_ns)} before any other node")
    if engine.move_ns or engine.move_row_ns:
        words.append(f"{_line(engine.move_ns, engine.move_row_ns)} where rows join or leave a running loop")
    return ", ".join(words)


def _line(fixed_ns: int, row_ns: int) -> str:
    return f"{milliseconds(fixed_ns / 1e6)} + {milliseconds(row_ns / 1e6)} per row"


def _curve(points: Sequence[Point]) -> list[dict[str, object]]:
    return [{"rows": rows, "ms": ns / 1e6, "gain": gain} for rows, ns, gain in points]


def _shapes(model: Model) -> str:
    sample_row = getattr(model, "sample_row", None)
    row = sample_row(0) if sample_row is not None else {}
    return ", ".join(f"{name}: {value.dtype}{list(value.shape)}" for name, value in row.items())


def seconds_of(preempt_within_ms: float | None) -> float | None:
    """--preempt-within-ms in seconds. Raises `InvalidInput` unless it is a positive number."""
    if preempt_within_ms is None:
        return None
    if not 0 < preempt_within_ms < 1e9:
        raise InvalidInput(f"--preempt-within-ms must be a positive number of milliseconds, got {preempt_within_ms}")
    return preempt_within_ms / 1e3


def _batch_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"--batch-sizes must be whole numbers with commas between, got {text!r}") from None


def _command(options: Options) -> str:
    """The command line again, with file names only: a table tells nothing of anybody's folders."""
    parts = ["lazybatch profile", options.model.name, "-o", options.output.name, "--batch-sizes", options.batch_sizes]
    parts += ["--budget-s", f"{options.budget_s:g}", "--repeats", str(options.repeats)]
    if options.iterations != ITERATIONS:
        parts += ["--iterations", str(options.iterations)]
    if options.inputs is not None:
        parts += ["--inputs", options.inputs.name]
    if options.preempt_within_ms is not None:
        parts += ["--preempt-within-ms", f"{options.preempt_within_ms:g}"]
    if options.threads is not None:
        parts += ["--threads", str(options.threads)]
    return " ".join(parts)


def read_rows(path: Path) -> Sequence[dict[str, Any]]:
    """Rows from an ``.npz`` file: one array per input, rows along its first axis; at least one row.

    Raises `InvalidInput` naming the file and the array.
    """
    arrays = read_arrays(path, "inputs")
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not counts or len(set(counts.values())) != 1 or 0 in counts.values():
        raise InvalidInput(
            f"the arrays in {str(path)!r} must have the same number of rows, at least one, along their first axis; "
            f"they have {counts}"
        )
    count = next(iter(counts.values()))
    return [{name: array[number] for name, array in arrays.items()} for number in range(count)]
