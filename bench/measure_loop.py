"""What a loop costs besides its model: a decoder step through a program against a loop written by hand.

Owns: the decoder (an ONNX model built here, random weights), the loop by hand, and the measurement.
Must not know: figures and their targets.

By hand: the whole optimised body as one ONNX Runtime session on the same threads, both turns of its state bound to
memory beforehand, flags read and tokens kept in every step, results handed out per row. That is the least a loop can
do. Through the program: an executor with the same rows, one dispatch per step and node.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lazybatch as lb
from bench.common import CACHE, interleave, ratio

WIDTH, LAYERS, VOCABULARY = 512, 4, 4000
STEPS = 16
"""Iterations of each measured row."""

Ports = dict[str, tuple[int, list[Any]]]
"""Element type and shape, by name."""


def build_decoder(path: Path, width: int = WIDTH, layers: int = LAYERS, vocabulary: int = VOCABULARY) -> Path:
    """One greedy step of a recurrent decoder: token [N]; h, c [N, layers, width] -> the next ones, and finished [N]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node, rng = helper.make_node, np.random.default_rng(0)
    held: dict[str, Any] = {"zero": np.array([0]), "one": np.array([1]), "end": np.array(0)}

    def weight(name: str, *shape: int) -> str:
        held[name] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return name

    nodes = [node("Gather", [weight("table", vocabulary, width), "token"], ["x"])]
    nodes += [node("Transpose", [state], [f"{state}_first"], perm=[1, 0, 2]) for state in "hc"]
    nodes += [
        node("Split", [f"{state}_first", "each"], [f"{state}{k}" for k in range(layers)], axis=0) for state in "hc"
    ]
    held["each"] = np.ones(layers, np.int64)
    nodes.append(node("Unsqueeze", ["x", "zero"], ["x0"]))
    for k in range(layers):
        w, r = weight(f"w{k}", 1, 4 * width, width), weight(f"r{k}", 1, 4 * width, width)
        outputs = ["", f"h{k}_out", f"c{k}_out"]
        nodes.append(node("LSTM", [f"x{k}", w, r, "", "", f"h{k}", f"c{k}"], outputs, hidden_size=width))
        nodes.append(node("Identity", [f"h{k}_out"], [f"x{k + 1}"]))
    for state in "hc":
        nodes.append(node("Concat", [f"{state}{k}_out" for k in range(layers)], [f"{state}_all"], axis=0))
        nodes.append(node("Transpose", [f"{state}_all"], [f"{state}_next"], perm=[1, 0, 2]))
    nodes += [
        node("Squeeze", [f"x{layers}", "zero"], ["top"]),
        node("MatMul", ["top", weight("out", width, vocabulary)], ["logits"]),
        node("ArgMax", ["logits"], ["token_next"], axis=1, keepdims=0),
        node("Less", ["token_next", "end"], ["finished"]),
    ]

    def ports(named: Ports) -> list[Any]:
        return [helper.make_tensor_value_info(name, dtype, dims) for name, (dtype, dims) in named.items()]

    states: Ports = {state: (TensorProto.FLOAT, ["N", layers, width]) for state in "hc"}
    given: Ports = {"token": (TensorProto.INT64, ["N"]), **states}
    made: Ports = {
        "token_next": (TensorProto.INT64, ["N"]),
        "finished": (TensorProto.BOOL, ["N"]),
        **{f"{state}_next": value for state, value in states.items()},
    }
    graph = helper.make_graph(
        nodes, "decoder", ports(given), ports(made), [numpy_helper.from_array(v, name) for name, v in held.items()]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def program(path: Path) -> Any:
    """The decoder as a program; rows bring h and the first token, and are cut off after `STEPS`."""
    loop = lb.Repeat(
        carry={"token": lb.Carry("token_next", "token"), "h": lb.Carry("h_next", "h"), "c": "c_next"},
        done="finished",
        trips_max=STEPS,
        collect=("token_next",),
    )
    outputs = {"tokens": "decoder.token_next", "h": "decoder.h"}
    return lb.load(lb.Program("decoder", (lb.Stage("decoder", str(path), loop=loop),), outputs))


def sample(seed: int) -> dict[str, Any]:
    """One row: what an encoder would have left, and the first token."""
    rng = np.random.default_rng(seed)
    return {
        "token": np.array(rng.integers(1, VOCABULARY)),
        "h": (rng.standard_normal((LAYERS, WIDTH)) / 4).astype(np.float32),
    }


def through_program(model: Any, executor: Any, rows: list[dict[str, Any]]) -> Callable[[], dict[int, Any]]:
    """A call that takes the rows through all their steps, as one sub-batch."""
    admitted = {k: model.admit(row) for k, row in enumerate(rows)}
    nodes = range(len(model.graph))

    def run() -> dict[int, Any]:
        executor.open(0, admitted, len(admitted))
        for _ in range(STEPS):
            for node in nodes:
                executor.run(0, node)
        results: dict[int, Any] = executor.close(0)
        return results

    return run


def by_hand(session: Any, rows: list[dict[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """The same by hand; see the module's text."""
    count = len(rows)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "token": (np.int64, (count,)),
        "h": (np.float32, (count, LAYERS, WIDTH)),
        "c": (np.float32, (count, LAYERS, WIDTH)),
    }
    turns = [{name: np.empty(shape, dtype) for name, (dtype, shape) in shapes.items()} for _ in range(2)]
    finished = np.empty(count, np.bool_)
    bindings = []
    for here, there in (turns, turns[::-1]):
        binding = session.io_binding()
        for name, array in here.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in {**{f"{name}_next": one for name, one in there.items()}, "finished": finished}.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        bindings.append(binding)

    def run() -> list[dict[str, Any]]:
        first = turns[0]
        first["c"][...] = 0
        for name in ("token", "h"):
            np.stack([row[name] for row in rows], out=first[name])
        tokens = np.empty((STEPS, count), np.int64)
        for step in range(STEPS):
            session.run_with_iobinding(bindings[step % 2])
            tokens[step] = turns[1 - step % 2]["token"]
            if finished.any():
                break
        last = turns[STEPS % 2]["h"]
        return [{"tokens": tokens[:, k].copy(), "h": last[k].copy()} for k in range(count)]

    return run


def measure_loop(batch_sizes: tuple[int, ...], within_s: float) -> list[dict[str, Any]]:
    """Program over hand, per batch size. within_s: seconds of measuring for each, warm-up apart."""
    path = build_decoder(CACHE / "bench" / "decoder.onnx")
    model = program(path)
    session = model.models["decoder"].whole_session()
    executor = model.executor(max_batch_size=max(batch_sizes))
    measured = []
    try:
        for size in batch_sizes:
            rows = [sample(seed) for seed in range(size)]
            ours, theirs = through_program(model, executor, rows), by_hand(session, rows)
            results = ours()
            identical = all(
                np.array_equal(results[k][name], row[name]) for k, row in enumerate(theirs()) for name in row
            )
            times = interleave({"program": ours, "hand": theirs}, 400, warm_up=3, within_s=within_s)
            medians = {name: statistics.median(values) / STEPS for name, values in times.items()}
            measured.append(
                {
                    "what": "loop",
                    "batch": size,
                    "nodes": len(model.graph),
                    "rounds": len(times["program"]),
                    "program_step_us": medians["program"] / 1e3,
                    "hand_step_us": medians["hand"] / 1e3,
                    "program_over_hand": ratio(times["program"], times["hand"]),
                    # Fastest against fastest: where neighbours disturb, closer to the truth than medians.
                    "program_over_hand_fastest": min(times["program"]) / min(times["hand"]),
                    "identical": identical,
                }
            )
    finally:
        executor.shutdown()
    return measured
