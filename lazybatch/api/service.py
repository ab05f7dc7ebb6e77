"""An engine at work for a batcher: with its executors, its observers, its trace and a policy of its own.

Owns: `Service` and `start`: that nothing is left running or open when one of them cannot be had.
Must not know: requests; what the options mean (`api.assembly`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lazybatch.api import assembly, claims
from lazybatch.config import BatcherOptions
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import Policy
from lazybatch.engine import Engine, MonotonicClock, ServedModel
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Executor
from lazybatch.metrics import Observer
from lazybatch.trace import TraceWriter

_log = logging.getLogger("lazybatch.api")


class Service(NamedTuple):
    """A running engine. executors: by the names callers use. called: from lanes to those names."""

    engine: Engine
    executors: dict[str, Executor]
    called: dict[str, str]


def start(
    served: Sequence[assembly.Served],
    lanes: Sequence[LaneSpec],
    policy: Policy,
    options: BatcherOptions,
    *,
    observers: Iterable[Observer],
    trace: str | Path | None,
    clock: MonotonicClock,
    name: str | None,
) -> Service:
    """Claim the policy, plan the models' memory, and start the engine.

    Raises `InvalidInput` for a policy that serves another batcher, for what is no observer and for a trace that cannot
    be written; `ModelError` for a model without an executor.
    """
    opened: list[Executor] = []
    with claims.claim(policy) as claimed:
        try:
            models = assembly.to_engine(served, lanes, opened.append)
            engine = _engine(models, policy, options, observers, trace, clock, name)
        except BaseException:
            _shut_down(opened)
            raise
        claimed(engine)
    executors = {one.called: one.executor for one in models}
    return Service(engine, executors, {one.spec.graph.model: one.called for one in models})


def _shut_down(executors: Iterable[Executor]) -> None:
    """All of them. What one of them says neither hides why there is no engine nor keeps the others open."""
    for executor in executors:
        try:
            executor.shutdown()
        except Exception:
            _log.exception("shutting down an executor whose engine could not start failed")


def _engine(
    models: list[ServedModel],
    policy: Policy,
    options: BatcherOptions,
    observers: Iterable[Observer],
    trace: str | Path | None,
    clock: MonotonicClock,
    name: str | None,
) -> Engine:
    writer: TraceWriter | None = None
    try:
        watching = [*observers]
        for observer in watching:
            if not isinstance(observer, Observer):
                raise InvalidInput(f"observers must derive from lazybatch.metrics.Observer, got {observer!r}")
        if trace is not None:
            writer = TraceWriter(trace, [one.spec.graph for one in models])
            watching.append(writer)
        return Engine(
            models,
            policy,
            processors=options.workers,
            isolate_failures=options.isolate_failures,
            observers=watching,
            clock=clock,
            name=name or "lazybatch",
            on_end=None if writer is None else writer.close,
        )
    except BaseException:
        if writer is not None:
            writer.close()
        raise
