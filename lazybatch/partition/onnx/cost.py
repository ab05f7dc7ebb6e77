"""What each operator of a graph costs at one row.

Owns: the reading of the runtime's own per-operator profile, and the cost of one dispatch.
Must not know: how cuts are chosen from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from lazybatch.partition.onnx.optimise import Opener
from lazybatch.partition.onnx.rows import Feeds

RUNS = 15
SECONDS = 3.0
SURROUNDINGS_S = 40e-6
"""What one more node costs besides the call into the runtime: scheduler and executor in Python, and caches gone cold
between two calls. `bench/overhead.py` shows it: 30 to 70 microseconds per node on two cores."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at one row. per_node sums to whole_s; dispatch_s is what one more node costs by itself."""

    per_node: tuple[float, ...]
    whole_s: float
    dispatch_s: float


def measure(path: Path, proto: onnx.ModelProto, feeds: Feeds, scratch: Path, opener: Opener) -> Costs:
    """Time the whole graph, and share its time among its nodes as the profile shows it."""
    plain = opener(path, optimise=False)
    names = [output.name for output in plain.get_outputs()]
    whole = _least_seconds(partial(plain.run, names, feeds))
    profiled = opener(path, optimise=False, profile_to=scratch / "profile")
    for _ in range(max(2, min(RUNS, int(SECONDS / whole)))):
        profiled.run(names, feeds)
    file = Path(profiled.end_profiling())
    times: dict[str, list[float]] = {}
    for event in json.loads(file.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault(event["name"][: -len("_kernel_time")], []).append(event["dur"] * 1e-6)
    file.unlink()
    seen = [min(times[node.name]) if node.name in times else 0.0 for node in proto.graph.node]
    total = sum(seen)
    scale = whole / total if total > 0 else 0.0
    return Costs(tuple(value * scale for value in seen), whole, dispatch_seconds(opener))


def dispatch_seconds(opener: Opener) -> float:
    """What one call into the runtime costs when there is nothing to compute."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = opener(model.SerializeToString(), optimise=False)
    binding = session.io_binding()
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, (1,), x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, (1,), y.ctypes.data)
    return SURROUNDINGS_S + _least_seconds(partial(session.run_with_iobinding, binding), runs=101)


def _least_seconds(call: Callable[[], object], runs: int = RUNS) -> float:
    """The least of several runs, by the calling thread's own processor time.

    That thread computes its share and spins until the others have done theirs, so on a quiet machine its time is the
    time on the wall; on a busy one, what other processes take away is not counted as the model's.
    """
    call()
    spent: list[float] = []
    begun = time.perf_counter()
    while len(spent) < runs and time.perf_counter() - begun < SECONDS:
        start, wall = time.thread_time(), time.perf_counter()
        call()
        spent.append(time.thread_time() - start or time.perf_counter() - wall)
    return min(spent)
