"""What each operator of an ONNX graph costs at one row.

Owns: the reading of the runtime's own per-operator profile, and the cost of one dispatch.
Must not know: how cuts are chosen from it.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from lazybatch.partition.costs import SURROUNDINGS_S, Costs, least_seconds, runs_of
from lazybatch.partition.onnx.optimise import Opener
from lazybatch.partition.proof.rows import Feeds


def measure(path: Path, proto: onnx.ModelProto, feeds: Feeds, scratch: Path, opener: Opener) -> Costs:
    """Time the whole graph, and share its time among its nodes as the profile shows it."""
    plain = opener(path, optimise=False)
    names = [output.name for output in plain.get_outputs()]
    whole = least_seconds(partial(plain.run, names, feeds))
    profiled = opener(path, optimise=False, profile_to=scratch / "profile")
    for _ in range(runs_of(whole)):
        profiled.run(names, feeds)
    file = Path(profiled.end_profiling())
    times: dict[str, list[float]] = {}
    for event in json.loads(file.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault(event["name"][: -len("_kernel_time")], []).append(event["dur"] * 1e-6)
    file.unlink()
    seen = [min(times[node.name]) if node.name in times else 0.0 for node in proto.graph.node]
    return Costs.shared_out(tuple(seen), whole, dispatch_seconds(opener))


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
    return SURROUNDINGS_S + least_seconds(partial(session.run_with_iobinding, binding), runs=101)
