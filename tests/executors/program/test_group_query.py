"""A cache that the body itself writes at each row's own position: ONNX Runtime's GroupQueryAttention in a loop.

Its past and present are an ordinary state of one shape; rows at different iterations share a batch because the lengths
of their pasts are an input with a batch axis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.program import Carry, Program, Repeat, Stage
from tests.onnx_models import F32, I32, I64, build, const, floats, op, save, value

HEADS, SLOTS, WIDTH = 2, 8, 8
ALL = HEADS * WIDTH
Q, K, V = (floats(seed, ALL, ALL, scale=0.3) for seed in (1, 2, 3))


def write_body(path: Path) -> None:
    """One attention layer over a cache of `SLOTS` positions."""
    cache = ["B", HEADS, SLOTS, WIDTH]
    layers = [op("MatMul", f"x {name}", f"{name}_flat") for name in "qkv"]
    layers += [op("Unsqueeze", f"{name}_flat one", f"{name}_step") for name in "qkv"]
    attention = op(
        "GroupQueryAttention",
        "q_step k_step v_step past_k past_v lengths total",
        "attended present_k present_v",
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
    )
    nodes = [*layers, op("Cast", "position", "lengths", to=I32), attention, op("Squeeze", "attended one", "y")]
    inputs = [value("x", F32, ["B", ALL]), value("position", I64, ["B"])]
    inputs += [value("past_k", F32, cache), value("past_v", F32, cache)]
    outputs = [value("y", F32, ["B", ALL]), value("present_k", F32, cache), value("present_v", F32, cache)]
    consts = [const("q", Q), const("k", K), const("v", V), const("one", [1]), const("total", [SLOTS], np.int32)]
    save(build(nodes, inputs, outputs, consts, domains={"com.microsoft": 1}), path)


def attend(steps: np.ndarray) -> np.ndarray:
    """The same in NumPy, for one row."""
    q, k, v = (np.reshape(steps @ weights, (-1, HEADS, WIDTH)) for weights in (Q, K, V))
    answers = []
    for at in range(len(steps)):
        scores = np.einsum("hw,thw->ht", q[at], k[: at + 1]) / np.sqrt(WIDTH)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        answers.append(np.einsum("ht,thw->hw", weights / weights.sum(1, keepdims=True), v[: at + 1]).ravel())
    return np.array(answers)


@pytest.mark.parametrize("policy", ["continuous", "lookahead", "graph"])
def test_rows_at_different_positions_share_a_batch(tmp_path: Path, policy: str) -> None:
    """Every row gets what attention over its own past gives, whoever it ran with."""
    write_body(tmp_path / "attention.onnx")
    loop = Repeat(
        carry={"past_k": Carry("present_k"), "past_v": Carry("present_v")},
        each={"x": "steps"},
        iteration="position",
        trips_max=SLOTS,
        collect=("y",),
    )
    stage = Stage("attention", tmp_path / "attention.onnx", loop=loop)
    model = lb.load(Program("attention", (stage,), {"y": "attention.y"}), require_joinable=True)
    assert not model.graph.loops[0].same_iteration
    given = [floats(seed, 1 + seed % SLOTS, ALL) for seed in range(24)]
    with lb.LazyBatcher(model, policy=policy, max_batch_size=6) as batcher:
        futures = [batcher.submit({"steps": steps}) for steps in given]
        for future, steps in zip(futures, given, strict=True):
            np.testing.assert_allclose(future.result(60)["y"], attend(steps), atol=1e-4)
        assert batcher.stats().mean_rows > 1
