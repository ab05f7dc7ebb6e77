"""A small real model for tests of engine and API: a chain of nodes that add numbers to NumPy arrays.

Owns: `AddChain` and its executor, with a hook before every node through which tests fail, block or cancel; a few
callables; `Gate`; engines with (`running`) and without (`stepped`) a thread; `accounts` (the books must balance).
Must not know: the scheduler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching, Policy
from lazybatch.engine import Engine, ServedModel, Stats, SteppedClock
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Row
from lazybatch.executors.callable import BatchFunction, CallableModel

Hook = Callable[[int, np.ndarray], None]


class AddChain:
    """Node k adds 10**k to every row: three nodes turn x into x + 111. ``before(node, values)`` runs before each."""

    def __init__(
        self, nodes: int = 3, *, name: str = "chain", joinable: bool = True, before: Hook | None = None
    ) -> None:
        self.name = name
        self.graph = NodeGraph.chain(name, [f"add{k}" for k in range(nodes)])
        self.joinable = joinable
        self.reason = None if joinable else "asked to be served alone"
        self.fingerprint = f"{name}-{nodes}"
        self.added = sum(10**k for k in range(nodes))
        self.before = before
        self.made: list[AddExecutor] = []

    def admit(self, inputs: Any) -> Row:
        """A number."""
        if not isinstance(inputs, int | float):
            raise InvalidInput(f"input 'x' must be a number, got {inputs!r}")
        return Row(float(inputs))

    def sample_row(self, seed: int) -> float:
        """A row to measure with."""
        return float(seed)

    def executor(self, *, max_batch_size: int) -> AddExecutor:
        """A fresh executor."""
        self.made.append(AddExecutor(self, max_batch_size))
        return self.made[-1]

    def table(self, node_ns: int = 1_000_000) -> LatencyTable:
        """A flat table: every node takes ``node_ns`` at any size."""
        names = tuple(node.name for node in self.graph.nodes)
        times = ((node_ns, node_ns),) * len(names)
        return LatencyTable(self.name, names, (1, 16), times, times, {"fingerprint": self.fingerprint})


class AddExecutor:
    """Runs an `AddChain`. ``broken`` names calls that raise: "open", "close", "evict", "merge", "discard"."""

    def __init__(self, model: AddChain, max_batch_size: int) -> None:
        self.model = model
        self.max_batch_size = max_batch_size
        self.broken: set[str] = set()
        self.batches: dict[int, tuple[list[int], np.ndarray]] = {}
        self.ended = False

    def _check(self, call: str) -> None:
        if call in self.broken:
            raise RuntimeError(f"{call} is broken")

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Gather."""
        self._check("open")
        assert len(rows) <= padded_rows <= self.max_batch_size
        self.batches[sub_batch] = (list(rows), np.array([row.values for row in rows.values()]))

    def run(self, sub_batch: int, node: int) -> None:
        """Add."""
        requests, values = self.batches[sub_batch]
        if self.model.before is not None:
            self.model.before(node, values)
        self.batches[sub_batch] = (requests, values + 10**node)

    def merge(self, target: int, source: int) -> None:
        """Append."""
        self._check("merge")
        requests, values = self.batches.pop(source)
        before, others = self.batches[target]
        self.batches[target] = (before + requests, np.concatenate([others, values]))

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Keep the others."""
        self._check("evict")
        before, values = self.batches[sub_batch]
        kept = [k for k, request in enumerate(before) if request not in requests]
        assert kept
        self.batches[sub_batch] = ([before[k] for k in kept], values[kept])

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Scatter."""
        self._check("close")
        requests, values = self.batches.pop(sub_batch)
        return dict(zip(requests, values.tolist(), strict=True))

    def discard(self, sub_batch: int) -> None:
        """Forget."""
        self._check("discard")
        self.batches.pop(sub_batch, None)

    def shutdown(self) -> None:
        """Nothing may be left."""
        self.ended = True
        self._check("shutdown")


def served(model: AddChain, **limits: Any) -> ServedModel:
    """The model with its lane, under a flat latency table."""
    spec = LaneSpec(model.graph, latency=model.table(), joinable=model.joinable, **limits)
    return ServedModel(spec, model.executor(max_batch_size=spec.max_batch_size))


def stepped(*models: ServedModel, policy: Policy | None = None, **options: Any) -> tuple[Engine, SteppedClock]:
    """An engine that moves only by `step`, and its clock."""
    clock = SteppedClock(1_000)
    return Engine(models, policy or GraphBatching(), clock=clock, threaded=False, **options), clock


def rows(*values: float) -> list[Row]:
    """Rows as `AddChain.admit` makes them."""
    return [Row(float(value)) for value in values]


def run_dry(engine: Engine) -> None:
    """Step until nothing runs any more."""
    while engine.step():
        pass


def accounts(stats: Stats, *, drained: bool = True) -> None:
    """The books balance, in total and per model; once drained nothing is left in the middle."""
    for part in (stats, *stats.models.values()):
        ended = part.completed + part.failed + part.cancelled + part.expired + part.dropped
        assert part.accepted == part.queued + part.in_flight + ended
        if drained:
            assert (part.queued, part.in_flight) == (0, 0)
    ends = ("completed", "failed", "cancelled", "expired", "dropped")
    for name in ("accepted", "queued", "in_flight", "dispatches", *ends):
        assert getattr(stats, name) == sum(getattr(part, name) for part in stats.models.values())


def errors_of(futures: Sequence[Any]) -> list[str | None]:
    """Class names of the futures' errors, None for a result, "cancelled" for cancelled ones; all must be done."""
    assert all(future.done() for future in futures)
    return [
        "cancelled" if future.cancelled() else None if (e := future.exception()) is None else type(e).__name__
        for future in futures
    ]


LONG_S = 60.0
"""Far longer than anything here takes; only a hang reaches it."""


class Gate:
    """A node, or a callable, that stands still until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *_: Any) -> None:
        """Stand still."""
        self.entered.set()
        assert self.opened.wait(LONG_S)


@contextmanager
def running(*models: ServedModel, policy: Policy | None = None, **options: Any) -> Iterator[Engine]:
    """An engine with its thread, ended whatever happens."""
    engine = Engine(models, policy or GraphBatching(), **options)
    try:
        yield engine
    finally:
        assert engine.shutdown(timeout=LONG_S)


def pooled(fn: BatchFunction, **limits: Any) -> ServedModel:
    """A callable served by workers."""
    model = CallableModel(fn, name="fn")
    spec = LaneSpec(NodeGraph.chain("fn", ["call"]), **limits)
    return ServedModel(spec, model.executor(max_batch_size=spec.max_batch_size), pooled=True)


def gated(gate: Gate, nodes: int = 3, **limits: Any) -> tuple[AddChain, ServedModel]:
    """A chain whose first node stands still until the gate opens."""
    model = AddChain(nodes, before=lambda node, _: gate() if node == 0 else None)
    return model, served(model, **limits)


def upper(texts: list[str]) -> list[str]:
    """A callable."""
    return [text.upper() for text in texts]


def held(gate: Gate) -> BatchFunction:
    """A callable that stands still at the gate, then returns its inputs."""

    def fn(values: list[Any]) -> list[Any]:
        gate()
        return values

    return fn
