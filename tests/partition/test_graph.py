"""A graph that can be watched: its other ways are opened when they are run, and not where examples take them anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazybatch.executors.ort.session import open_session
from lazybatch.partition.onnx.graph import OnnxGraph
from lazybatch.partition.onnx.join import judge_onnx
from lazybatch.partition.onnx.optimise import Optimised, optimise
from lazybatch.partition.onnx.source import Source, read_source
from lazybatch.partition.plan import Plan
from tests.onnx_models import save
from tests.partition.parts import text_model

FLAGGED = """g (float[N,4] x, bool flag) => (float[N,4] y)
{ y = If (flag) <then_branch = t () => (float[N,4] p) { p = Neg(x) },
                 else_branch = e () => (float[N,4] q) { q = Abs(x) }> }"""


class Counting:
    """Opens sessions, and counts them."""

    def __init__(self) -> None:
        self.opened = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        """See `open_session`."""
        self.opened += 1
        return open_session(*args, **options)


def optimised(folder: Path) -> tuple[Source, Optimised]:
    """The model with a branch by a caller's flag."""
    source = read_source(save(text_model(FLAGGED), folder / "m.onnx"))
    return source, optimise(source, folder, open_session)


def test_ways_are_opened_when_they_are_run(tmp_path: Path) -> None:
    """To know of them costs no session; the first run does, and the next ones use the same."""
    opener = Counting()
    (turn,) = OnnxGraph(optimised(tmp_path)[1], opener).turns(["y"], {"x": 0})
    assert opener.opened == 0
    assert turn.run is not None
    row = np.ones((1, 4), np.float32)
    for flag, want in ((True, row), (False, -row)):
        assert np.array_equal(turn.run({"x": row, "flag": np.array(flag)})["y"], want)
    assert opener.opened == 1


@pytest.mark.parametrize(("flags", "sessions"), [([False], 2), ([False, True], 1)])
def test_ways_that_examples_take_are_not_opened(flags: list[bool], sessions: int, tmp_path: Path) -> None:
    """One session watches the graph as it is; another is needed only for a branch that no example takes."""
    source, model = optimised(tmp_path)
    examples = {"x": [np.arange(4.0)] * len(flags), "flag": [np.array(flag) for flag in flags]}
    verdict = judge_onnx(source, model, None, examples, None, open_session)
    opener = Counting()
    plan = Plan(OnnxGraph(model, opener), verdict, None)
    assert plan.reason is None
    assert opener.opened == sessions
