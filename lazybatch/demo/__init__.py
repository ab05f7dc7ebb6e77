"""The demonstration: two trained models served under load, each policy in turn, on lines of text drawn here.

Owns: `run_demo`. Must not know: how policies decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lazybatch.demo import report, serving
from lazybatch.errors import InvalidInput
from lazybatch.profiles import machine, versions

__all__ = ["run_demo"]

LOADS = (0.3, 0.6, 0.9)
TRACED_LOAD = 0.6
"""The load at which the default policy's schedule is written as a trace."""


def run_demo(
    out: str | Path = "out/demo",
    *,
    seconds: float = 6.0,
    loads: Sequence[float] = LOADS,
    seed: int = 0,
    profile_s: float = 5.0,
    show: bool = True,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Serve both models at each load under each policy; write plot.png and trace.json into ``out``.

    seconds: of arrivals per load and policy; the policies take turns, part by part. profile_s: of profiling per model.
    show: print table and verdicts on stdout.
    progress: told what is being done. Returns what was measured, as JSON values: rows, verdicts, answers_equal, files.

    Raises `ModelError` where models are missing, `InvalidInput` for options out of range or a folder that cannot be
    written.
    """
    if not seconds > 0 or not loads or any(not load > 0 for load in loads):
        raise InvalidInput(f"seconds and loads must be positive, got {seconds} and {list(loads)}")
    tell = progress or (lambda _: None)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write into {str(folder)!r}: {error.strerror}") from error
    started_s = time.monotonic()
    tell("drawing lines, loading and profiling two models")
    setting = serving.prepare(profile_s)
    traced_load = TRACED_LOAD if TRACED_LOAD in loads else loads[-1]
    files = {"trace": folder / "trace.json", "plot": folder / "plot.png"}
    runs = []
    for load in loads:
        trace = files["trace"] if load == traced_load else None
        runs += serving.serve(setting, load, seconds=seconds, seed=seed, trace=trace, progress=tell)
    tell("")
    try:
        report.plot(runs, setting, files["plot"])
    except ModuleNotFoundError:
        del files["plot"]
    said = [report.answers(runs), *report.verdicts(runs)]
    if show:
        report.show(runs, setting, said, {name: str(path) for name, path in files.items()})
    return {
        "rows": [run.as_dict() for run in runs],
        "verdicts": said,
        "answers_equal": all(run.wrong == 0 and run.failed == 0 for run in runs),
        "files": {name: str(path) for name, path in files.items()},
        "sla_ms": {name: value * 1e3 for name, value in setting.sla_s.items()},
        "capacity_rps": setting.capacity_rps,
        "seconds": time.monotonic() - started_s,
        "provenance": {"machine": machine(), "versions": versions(), "seed": seed},
    }
