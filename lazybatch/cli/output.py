"""What a command prints, and where.

Owns: `Report` (a command's result), `emit`, `progress_bar`, `progress_line`.
Must not know: what the results mean.

With ``--json`` exactly one JSON object goes to stdout; everything else, progress included, goes to stderr.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

GOOD, DOES_NOT_HOLD, BAD_INPUT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Report:
    """values: the JSON object. lines: the same for people. holds: whether what was checked holds (exit status 0)."""

    values: Mapping[str, object]
    lines: Sequence[str]
    holds: bool = True


def emit(report: Report, as_json: bool) -> int:
    """Print a report; returns the exit status."""
    if as_json:
        print(json.dumps(_finite(report.values), allow_nan=False))
    else:
        for line in report.lines:
            print(line)
    sys.stdout.flush()  # a reader that has gone is noticed here, not where nobody handles it any more
    return GOOD if report.holds else DOES_NOT_HOLD


def _finite(value: object) -> object:
    """The same with null for NaN and infinities, which JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def progress_line(text: str) -> None:
    """Say on stderr what is being done, in place of what was said before; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr, to be told (share done 0..1, a few words); nothing at all where stderr is no terminal."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda share, words: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, words="")
        yield lambda share, words: bar.update(task, completed=share, words=words)


def milliseconds(value: object) -> str:
    """A number of milliseconds for people; a dash where there is none."""
    return f"{value:.3f} ms" if isinstance(value, int | float) else "-"
