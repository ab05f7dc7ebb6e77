"""What every benchmark script shares.

Owns: provenance, figures, the JSON file, interleaved timing, progress, the exit status.
Must not know: what any one script measures.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput, LazyBatchError
from lazybatch.profiles import machine, versions

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "out"
"""Exported zoo models and other things worth keeping between runs; ignored by git."""


def make_folder(path: Path) -> None:
    """Make the folder that results go to, before anything is measured. Raises `InvalidInput` where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write into {str(path)!r}: {error.strerror}") from error


@dataclass(slots=True)
class Report:
    """What a script found: rows (one flat object per measurement) and figures, with where they come from."""

    script: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Further parts of the document, by key."""

    def figure(self, name: str, value: float | bool | None, target: str, holds: bool | None) -> None:
        """Record a figure somebody asked for. value and holds are None where this run did not measure it."""
        self.figures[name] = {"value": value, "target": target, "holds": holds}

    def at_most(self, name: str, value: float | None, limit: float, unit: str = "") -> None:
        """A figure that must not exceed ``limit``."""
        self.figure(name, value, f"<= {limit:g}{unit}", None if value is None else value <= limit)

    def at_least(self, name: str, value: float | None, limit: float, unit: str = "") -> None:
        """A figure that must reach ``limit``."""
        self.figure(name, value, f">= {limit:g}{unit}", None if value is None else value >= limit)

    def provenance(self) -> dict[str, Any]:
        """Command, date, machine, versions, commit and settings."""
        return {
            "script": self.script,
            "command": shlex.join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            "settings": dict(self.settings),
        }

    def save(self, path: Path | None) -> None:
        """Write the JSON file if one is wanted, whole or not at all."""
        if path is None:
            return
        document = {"rows": self.rows, "provenance": self.provenance(), "figures": self.figures, **self.extra}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".tmp")
        partial.write_text(json.dumps(document, indent=1, default=str) + "\n")
        partial.replace(path)

    def finish(self, path: Path | None) -> int:
        """Write the JSON file if one is wanted, show the figures, and return the exit status: 1 if one fails."""
        self.save(path)
        for name, entry in self.figures.items():
            verdict = {True: "holds", False: "FAILS", None: "not measured"}[entry["holds"]]
            value = entry["value"]
            shown = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
            print(f"{verdict:12} {name:44} {shown:>10}  (target {entry['target']})")
        return int(any(entry["holds"] is False for entry in self.figures.values()))


def commit() -> str | None:
    """The checkout's commit, with "+changes" when files differ from it; None outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + "+changes" if changed else head


def interleave(
    variants: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: int = 2, within_s: float | None = None
) -> dict[str, list[int]]:
    """Time each variant once per round, in an order that rotates; returns nanoseconds per variant, one per round.

    Rounds of all variants side by side see the same machine, so their quotients mean something even where it is noisy.
    within_s: stop after this long, but not before three rounds.
    """
    names = list(variants)
    for _ in range(warm_up):
        for name in names:
            variants[name]()
    times: dict[str, list[int]] = {name: [] for name in names}
    end_s = None if within_s is None else time.perf_counter() + within_s
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            call = variants[name]
            start_ns = time.perf_counter_ns()
            call()
            times[name].append(time.perf_counter_ns() - start_ns)
        if end_s is not None and number >= 2 and time.perf_counter() > end_s:
            break
    return times


def ratio(times_ns: Sequence[int], base_ns: Sequence[int]) -> float:
    """Median of the quotients taken round by round."""
    return statistics.median(ours / theirs for ours, theirs in zip(times_ns, base_ns, strict=True))


LINE_EVERY_S = 30.0
"""Where there is no terminal, progress is a line at most so often."""


class _Lines:
    """Progress into a file or a pipe: nothing in the first half minute, then a line now and then.

    Times are readings of a clock in seconds.
    """

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._last_s = 0.0

    def due(self, text: str, now_s: float) -> str | None:
        """The line to print, if it is time for one."""
        if self._begun_s is None:
            self._begun_s = self._last_s = now_s
        if now_s - self._last_s < LINE_EVERY_S:
            return None
        self._last_s = now_s
        return f"{text}, {(now_s - self._begun_s) / 60:.1f} min"

    def end(self) -> None:
        """What follows begins anew."""
        self._begun_s = None


_lines = _Lines()


def progress(text: str) -> None:
    """Say what is being done: on a terminal always and in place, elsewhere in a line of its own every half minute."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text and (line := _lines.due(text, time.monotonic())) is not None:
        print(line, file=sys.stderr, flush=True)


def progress_bar(done: int, total: int, text: str) -> None:
    """How many of the runs are done; see `progress`."""
    if not sys.stderr.isatty():
        progress(f"{done} of {total}: {text}")
        return
    width = 24
    filled = width * done // max(total, 1)
    progress(f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total} {text}")


def progress_end() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        progress("")
    _lines.end()


def parser(description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser with the options all scripts have."""
    made = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write rows, provenance and figures to this file")
    made.add_argument("--quick", action="store_true", help="a run of less than a minute, for a first look")
    return made


def fill_in(options: argparse.Namespace, *defaults: tuple[str, Any, Any]) -> None:
    """Defaults of options that were not given: their name, the usual value, and the one with --quick."""
    for name, usual, small in defaults:
        if getattr(options, name) is None:
            setattr(options, name, small if options.quick else usual)


def run_script(main: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a script's main; bad input ends with one clear line and status 2, an interruption with status 130."""
    try:
        return main(options)
    except LazyBatchError as error:
        progress_end()
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress_end()
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
        return 130
    finally:
        progress_end()
