"""What a model really takes against what was planned, measured in a process of its own.

Owns: the child process and its reading of resident memory.
Must not know: the scheduler.

    python bench/measure_memory.py MODEL    prints one JSON object: planned_mib, grown_mib, grown_over_planned
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT
from bench.models import Subject, subject
from lazybatch.errors import InvalidInput

ROWS_MAX = 8
MIB = 1 << 20


def resident_bytes() -> int:
    """Resident memory of this process, without what the C library keeps of memory that was freed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; elsewhere freed memory may be counted
    if trim is not None:
        trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _serve(model: Any, executor: Any, target: Subject) -> None:
    """Half the rows, parked half-way; the other half catches up, merges, and all finish; twice."""
    rows = [model.admit(row) for row in target.rows(ROWS_MAX)]
    half, nodes = ROWS_MAX // 2, len(model.graph)
    if not model.joinable:
        executor.open(0, {0: rows[0]}, 1)
        for node in range(nodes):
            executor.run(0, node)
        executor.close(0)
        return
    for _ in range(2):
        executor.open(0, dict(enumerate(rows[:half])), half)
        for node in range(nodes // 2):
            executor.run(0, node)
        executor.open(1, dict(enumerate(rows[half:], half)), ROWS_MAX - half)
        for node in range(nodes // 2):
            executor.run(1, node)
        executor.merge(1, 0)
        for node in range(nodes // 2, nodes):
            executor.run(1, node)
        executor.close(1)


def child(name: str) -> dict[str, Any]:
    """Load, plan, serve; returns what was planned and what memory grew by. Everything else was loaded before."""
    warm = subject("ppocr-cls").load()  # imports, thread pool and arena are not the model's
    rehearsed: Any = warm.executor(max_batch_size=1)
    rehearsed.plan(warm.admit(subject("ppocr-cls").rows(1)[0]))
    target = subject(name)
    rows_bytes = sum(array.nbytes for array in target.batch(ROWS_MAX, 0).values())
    before = resident_bytes()
    model = target.load()
    executor: Any = model.executor(max_batch_size=ROWS_MAX)
    executor.plan(model.admit(target.rows(1)[0]))  # rows of this shape, where the model leaves it open
    _serve(model, executor, target)
    plan = executor.memory()
    # The inputs themselves, and the callers' copies of them, are rows in the queue: no part of the executor's plan.
    grown = resident_bytes() - before - 2 * rows_bytes
    return {
        "what": "memory",
        "model": name,
        "max_batch_size": ROWS_MAX,
        "planned_mib": plan.total_bytes / MIB,
        "weights_mib": plan.weights_bytes / MIB,
        "buffers_mib": plan.buffers_bytes / MIB,
        "scratch_mib": plan.scratch_bytes / MIB,
        "grown_mib": grown / MIB,
        "grown_over_planned": grown / plan.total_bytes,
    }


def measure_memory(name: str) -> dict[str, Any]:
    """Run `child` in a fresh process. Raises `InvalidInput` when it fails."""
    subject(name).load()  # partitioned and cached here, so that the child only loads
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise InvalidInput(f"measuring the memory of {name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(child(sys.argv[1])))
