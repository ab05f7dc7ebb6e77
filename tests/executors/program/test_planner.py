"""Programs and models put together: every refusal names its stage and tensor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program import Append, Carry, Feed, Program, Repeat, Stage
from tests.executors.program import bodies
from tests.executors.program.test_model import STEP, changed, models, single, translate

__all__ = ["models"]


@pytest.mark.parametrize(
    ("loop", "inputs", "says"),
    [
        (STEP, {"memory": None}, "stage 'decoder': input 'memory' of its model is given nothing"),
        (STEP, {"extra": Feed(length_of="source")}, "stage 'decoder': its model has no input 'extra'"),
        (STEP, {"memory": "encoder.nothing"}, "stage 'decoder': .*stage 'encoder' makes no such tensor"),
        (
            STEP,
            {"memory": "encoder.h"},
            r"stage 'decoder': input 'memory' has the shape \[any, 6\] per row, but .* \[6\]",
        ),
        (changed(carry={"h": Carry("token", "encoder.h")}), {}, "stage 'decoder': state 'h' is float32, but 'token'"),
        (changed(carry={"h": Carry("missing")}), {}, "stage 'decoder': its model has no output 'missing'"),
        (changed(carry={"h": Carry("h_next", "encoder.memory")}), {}, "the start of state 'h' has the shape"),
        (changed(carry={"keys": Append("key", 0, 8)}), {}, "state 'keys' has the shape .* with room for 8"),
        (changed(carry={"keys": Append("key", 1, 7)}), {}, "state 'keys' has the shape"),
        (
            changed(carry={"keys": Append("token", 0, 7)}),
            {},
            "state 'keys' is float32, but 'token', its slice, is int64",
        ),
        (changed(done="h_next"), {}, "stage 'decoder': done 'h_next' is float32"),
        (changed(done="nothing"), {}, "stage 'decoder': its model has no output 'nothing'"),
        (changed(collect=("token", "nothing")), {}, "stage 'decoder': its model has no output 'nothing'"),
        (
            changed(iteration="memory"),
            {"memory": None, "position": Feed(length_of="source")},
            "stage 'decoder': input 'memory' takes",
        ),
        (
            changed(each={"memory": "source"}, done=None),
            {"memory": None},
            r"expected \[any, any, 6\] \(read by stage 'decoder' as 'memory'\)",
        ),
    ],
)
def test_what_does_not_fit(models: dict[str, Any], loop: Repeat, inputs: dict[str, Any], says: str) -> None:
    """A carry whose shape or type differs, a flag that is none, a name of nothing: refused, naming stage and tensor."""
    with pytest.raises((ModelError, InvalidInput), match=says):
        translate(models, loop, **inputs).admit({"source": np.zeros((2, 4), np.float32)})


@pytest.mark.parametrize("start", [0.5, 2**63, 2**70, 1e300])
def test_numbers_that_cannot_start_a_state(models: dict[str, Any], start: float) -> None:
    """A state of whole numbers does not start as a half, nor as what its type does not hold."""
    loop = Repeat(carry={"n": Carry("n_next", start)}, done="finished", trips_max=5)
    says = f"stage 'step': state 'n' is int64 and cannot start as {start}"
    with pytest.raises(ModelError, match=re.escape(says)):
        single(models, "counter", loop, "n", target="to")


def test_a_cache_is_not_what_another_state_is_next(tmp_path: Path) -> None:
    """A body that returns its cache under the cache's own name: whoever is given that would be given what was written
    since."""
    sums = bodies.node("ReduceSum", ["keys", "axes"], ["key"], keepdims=0)
    shape = "int64", ["N", 4, 1]
    path = bodies.save(
        tmp_path / "returning.onnx",
        [sums],
        {"keys": shape, "seen": shape},
        {"key": ("int64", ["N", 1]), "keys": shape},
        {"axes": np.array([1])},
    )
    loop = Repeat(carry={"keys": Append("key", 0, 4), "seen": Carry("keys")}, trips="n")
    with pytest.raises(ModelError, match="stage 'step': state 'seen' is given 'keys', which has grown by then"):
        single({"it": lb.load(path, cache=False)}, "it", loop, "seen")


def test_models_that_are_no_stages(models: dict[str, Any]) -> None:
    """A stage is something that can be cut into nodes; a callable is not."""
    stage = Stage(
        "step", models["counter"], {"target": "to"}, Repeat(carry={"n": "n_next"}, done="finished", trips_max=5)
    )
    program = Program("single", (stage,), {"n": "step.n"})
    with pytest.raises(ModelError, match="stage 'step': its model cannot be cut into nodes"):
        ProgramModel(program, {"step": lb.load(lambda rows: rows)})  # type: ignore[dict-item]
