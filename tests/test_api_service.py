"""An engine at work for a batcher: nothing is left running, open or claimed where it cannot start."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.api import assembly
from lazybatch.api.service import start
from lazybatch.config import BatcherOptions
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.policies import Serial
from lazybatch.engine import MonotonicClock
from lazybatch.metrics import Observer
from tests.engine.kit import AddChain


def started(*models: AddChain, policy: Serial, **options: Any) -> Any:
    """A service over these models, called by their own names."""
    chosen = BatcherOptions(policy="serial")
    named = {model.name: model for model in models}
    served = assembly.assemble(named, chosen, table=None, allow_foreign_table=False, limits={})
    watched = {"observers": (), "trace": None, "clock": MonotonicClock(), "name": None}
    return start(served, assembly.to_lanes(served, chosen), policy, chosen, **{**watched, **options})


def test_what_has_started() -> None:
    """The engine runs, and says whose executor and whose lanes it has."""
    model = AddChain()
    engine, executors, called = started(model, policy=Serial())
    assert executors == {"chain": model.made[0]}
    assert called == {"chain": "chain"}
    assert engine.shutdown(True, None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"observers": [Observer(), 3]}, "observers must derive from lazybatch.metrics.Observer, got 3"),
        ({"trace": Path("/nonexistent/folder/trace.json")}, "trace"),
    ],
)
def test_what_could_not_start_is_gone(options: dict[str, Any], text: str) -> None:
    """The executor is shut down, no thread is left, and the policy is free for another."""
    ends: list[str] = []
    model, policy, before = AddChain(), Serial(), threading.active_count()
    executor = model.executor

    def watched(**limits: Any) -> Any:
        made = executor(**limits)
        made.shutdown = lambda: ends.append("executor")
        return made

    model.executor = watched  # type: ignore[method-assign]
    with pytest.raises(lb.InvalidInput, match=text):
        started(model, policy=policy, **options)
    assert ends == ["executor"]
    assert threading.active_count() <= before
    engine, _, _ = started(AddChain(), policy=policy)
    with pytest.raises(lb.InvalidInput, match="serves another batcher"):
        started(AddChain(), policy=policy)
    assert engine.shutdown(True, None)


class _Refusing(AddChain):
    """Has no executor to give."""

    def executor(self, *, max_batch_size: int) -> Any:
        """No."""
        raise lb.ModelError(f"{self.name} cannot be loaded")


class _Looping(AddChain):
    """Says that it has a loop, but its executor knows of none."""

    def __init__(self) -> None:
        super().__init__(name="looping")
        self.graph = NodeGraph.chain("looping", ["a", "b"], [Loop("again", 0, 2)])


@pytest.mark.parametrize(
    ("last", "error", "text"),
    [
        (_Refusing(name="bad"), lb.ModelError, "bad cannot be loaded"),
        (_Looping(), lb.InvalidInput, "'looping' has loops, but its executor AddExecutor has no leave"),
    ],
)
def test_a_model_that_cannot_be_served_leaves_no_other_open(
    last: AddChain, error: type[Exception], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The executors made before it, and its own, are shut down, even though one of them fails in that."""
    models, policy, before = [AddChain(name="first"), AddChain(name="second")], Serial(), threading.active_count()
    make = models[0].executor

    def failing(**limits: Any) -> Any:
        made = make(**limits)
        made.shutdown = _fail  # type: ignore[method-assign]
        return made

    models[0].executor = failing  # type: ignore[method-assign]
    with pytest.raises(error, match=text):
        started(*models, last, policy=policy)
    assert all(made.ended for model in [models[1], last] for made in model.made)
    assert models[1].made
    assert "shutting down an executor" in caplog.text
    assert threading.active_count() <= before
    engine, _, _ = started(AddChain(), policy=policy)
    assert engine.shutdown(True, None)


def _fail() -> None:
    raise RuntimeError("does not go away")


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the system has no thread left, executor and trace are closed, and the policy is free again."""
    model, policy = AddChain(), Serial()
    with monkeypatch.context() as at_first:
        at_first.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no new thread")))
        with pytest.raises(RuntimeError, match="no new thread"):
            started(model, policy=policy, trace=tmp_path / "trace.json")
    assert model.made[0].ended
    assert isinstance(json.loads((tmp_path / "trace.json").read_text()), list)
    engine, _, _ = started(AddChain(), policy=policy)
    assert engine.shutdown(True, None)


def test_a_trace_is_closed_where_the_engine_cannot_be_had(tmp_path: Path) -> None:
    """The engine refuses the lanes when the trace is open already: what is written of it is whole."""
    with pytest.raises(lb.InvalidInput, match="needs a latency table"):
        started(AddChain(), policy=_Planner(), trace=tmp_path / "trace.json")
    assert isinstance(json.loads((tmp_path / "trace.json").read_text()), list)


class _Planner(Serial):
    """Wants what the model has not."""

    needs_table = True
