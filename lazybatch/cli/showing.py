"""The command ``demo``: real models served under load, each policy in turn.

Owns: what the command passes on, and when it fails.
Must not know: how options are read from the command line; what the demonstration does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lazybatch.cli.output import Report
from lazybatch.demo import run_demo


def run(out: Path, seconds: float, seed: int, *, show: bool, progress: Callable[[str], None]) -> Report:
    """Run the demonstration; holds when every answer was the whole models'. It prints its own table where ``show``."""
    found = run_demo(out, seconds=seconds, seed=seed, show=show, progress=progress)
    return Report(found, [], holds=bool(found["answers_equal"]))
