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
from lazybatch.core.policies import Serial
from lazybatch.engine import MonotonicClock
from lazybatch.metrics import Observer
from tests.engine.kit import AddChain


def started(model: AddChain, policy: Serial, **options: Any) -> Any:
    """A service over one model, called "chain"."""
    chosen = BatcherOptions(policy="serial")
    served = assembly.assemble({"chain": model}, chosen, table=None, allow_foreign_table=False, limits={})
    watched = {"observers": (), "trace": None, "clock": MonotonicClock(), "name": None}
    return start(served, assembly.to_lanes(served, chosen), policy, chosen, **{**watched, **options})


def test_what_has_started() -> None:
    """The engine runs, and says whose executor and whose lanes it has."""
    model = AddChain()
    engine, executors, called = started(model, Serial())
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
        started(model, policy, **options)
    assert ends == ["executor"]
    assert threading.active_count() <= before
    engine, _, _ = started(AddChain(), policy)
    with pytest.raises(lb.InvalidInput, match="serves another batcher"):
        started(AddChain(), policy)
    assert engine.shutdown(True, None)


def test_a_trace_is_closed_where_the_engine_cannot_be_had(tmp_path: Path) -> None:
    """The engine refuses the lanes when the trace is open already: what is written of it is whole."""
    with pytest.raises(lb.InvalidInput, match="needs a latency table"):
        started(AddChain(), _Planner(), trace=tmp_path / "trace.json")
    assert isinstance(json.loads((tmp_path / "trace.json").read_text()), list)


class _Planner(Serial):
    """Wants what the model has not."""

    needs_table = True
