"""Compares planned memory with what a process really grows by: run in a process of its own, prints one JSON object.

    python -m tests.executors.ort.memory_use PARTITION_DIRECTORY MAX_BATCH_SIZE DIMS...

The load is what a scheduler does: full batches through to results, each preempted half way by another that catches up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from lazybatch.executors.ort.model import OrtModel
from lazybatch.executors.ort.session import runtime
from lazybatch.executors.resident import resident_bytes
from lazybatch.partition.manifest import load_partition


def main(directory: str, max_batch_size: str, *dims: str) -> None:
    """Plan for rows of these dims, serve some, and print both figures in bytes."""
    partition = load_partition(Path(directory))
    runtime()  # the library itself is not the model's
    capacity, shape = int(max_batch_size), tuple(map(int, dims))
    made = [np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in range(capacity)]
    before = resident_bytes()
    assert before is not None
    model = OrtModel(partition)
    rows = {seed: model.admit({partition.inputs[0]: array}) for seed, array in enumerate(made)}
    executor = model.executor(max_batch_size=capacity)
    plan = executor.plan(rows[0])
    half = {seed: rows[seed] for seed in range(capacity // 2)}
    nodes = range(len(partition.pieces))
    for turn in range(3):
        low, high = 2 * turn, 2 * turn + 1
        executor.open(low, rows, capacity)
        for node in nodes[: len(nodes) // 2]:
            executor.run(low, node)
        executor.open(high, half, len(half))
        for node in nodes:
            executor.run(high, node)
        executor.close(high)
        for node in nodes[len(nodes) // 2 :]:
            executor.run(low, node)
        results = executor.close(low)
    after = resident_bytes()
    assert after is not None
    assert len(results) == capacity
    print(json.dumps({"planned": plan.total_bytes, "grown": after - before, "sets": executor.buffer_sets}))


if __name__ == "__main__":
    main(*sys.argv[1:])
