"""Backend cases in worker processes, so that a crash inside ONNX Runtime costs one case and not the suite.

Owns: `run_sources`: starts workers, reads their lines, restarts one behind the case it died in.
Must not know: how a case is judged (`tests.backend.worker`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.backend.outcome import Outcome, Status

ROOT = Path(__file__).parents[2]


def _run_once(mode: str, sources: Sequence[str], skip: Sequence[str]) -> tuple[list[Outcome], str | None]:
    """One worker process: its outcomes, and the case it died in (None where it ended well)."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.backend.worker", mode]
    outcomes: list[Outcome] = []
    begun: str | None = None
    with tempfile.TemporaryFile("w+") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as worker:
            worker.stdin.write(json.dumps({"sources": list(sources), "skip": list(skip)}))
            worker.stdin.close()
            for line in worker.stdout:
                if not line.startswith("@@"):
                    continue  # something printed by a library
                event = json.loads(line[2:])
                if "begin" in event:
                    begun = event["begin"]
                else:
                    outcomes.append(Outcome(**{**event, "status": Status(event["status"])}))
                    begun = None
        if worker.returncode == 0:
            return outcomes, None
        errors.seek(0)
        text = errors.read()[-2000:]
    if begun is None:
        raise RuntimeError(f"a backend worker ended with {worker.returncode} between two cases:\n{text}")
    died = Outcome(
        begun, Status.MISMATCHED, f"the process ended with {worker.returncode}: {text.strip().splitlines()[-1:]}"
    )
    return [*outcomes, died], begun


def _run_shard(mode: str, sources: Sequence[str]) -> list[Outcome]:
    """All outcomes of one shard, however often its worker dies."""
    outcomes: list[Outcome] = []
    while True:
        done = [outcome.id for outcome in outcomes]
        made, died_in = _run_once(mode, sources, done)
        outcomes += made
        if died_in is None:
            return outcomes


def run_sources(mode: str, sources: Sequence[str], workers: int = 2) -> list[Outcome]:
    """Judge every case of the sources in ``workers`` processes; ``mode`` is one of `tests.backend.worker.MODES`."""
    shards = [list(sources[start::workers]) for start in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(lambda shard: _run_shard(mode, shard), shards))
    return sorted((outcome for part in parts for outcome in part), key=lambda outcome: outcome.id)
