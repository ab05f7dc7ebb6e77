"""Served models: a lane with the executor that runs its nodes.

Owns: `ServedModel`. Must not know: the scheduler's state, threads, futures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lazybatch.core.lane import LaneSpec
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Executor

_OF_LOOPS = ("leave", "split", "emitted")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its executor. pooled: its (one) node runs on worker threads instead of the engine's own.

    name: what callers call the model; None: as its graph. A model whose rows are padded to several lengths has several
    lanes, with one executor.
    last: number of the graph's last node. ends: the last node of each loop's body; empty for a graph without loops.

    Raises `InvalidInput` for a graph with loops that is pooled, or whose executor is no `LoopExecutor`.
    """

    spec: LaneSpec
    executor: Executor
    pooled: bool = False
    name: str | None = None
    last: int = field(init=False)
    ends: frozenset[int] = field(init=False)

    @property
    def called(self) -> str:
        """What callers call the model."""
        return self.name or self.spec.graph.model

    def __post_init__(self) -> None:
        graph = self.spec.graph
        object.__setattr__(self, "last", len(graph) - 1)
        object.__setattr__(self, "ends", frozenset(loop.stop - 1 for loop in graph.loops))
        if not self.ends:
            return
        if self.pooled:
            raise InvalidInput(f"model {graph.model!r} has loops: its nodes cannot run on worker threads")
        missing = [call for call in _OF_LOOPS if not callable(getattr(self.executor, call, None))]
        if missing:
            raise InvalidInput(
                f"model {graph.model!r} has loops, but its executor {type(self.executor).__name__} has no {missing[0]}"
            )
