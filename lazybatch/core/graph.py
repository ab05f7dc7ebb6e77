"""Node graphs: what the scheduler knows of a model.

Owns: `Node`, `Loop` and `NodeGraph`: the scheduled units of one model, in chains and loops.
Must not know: tensors, files, frameworks, time. A node here is a name and a position; the runnable thing behind it
lives in an executor.

A request's *cursor* is the index of the node it runs next; a cursor equal to ``len(graph)`` means done. In a loop it
comes back to the loop's first node once per iteration; which iteration that is, is kept per row (`core.progress`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lazybatch.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Node:
    """The smallest scheduled unit: one or more layers that run without a chance of preemption in between."""

    name: str
    operators: int = 1


@dataclass(frozen=True, slots=True)
class Loop:
    """A contiguous range of nodes, ``first`` to ``stop`` - 1, that a row runs once per iteration, at least once.

    same_iteration: rows join only when they stand at equal iterations (bodies that cannot mix positions).
    trips_max: the most iterations of any row; one that is not done by then leaves all the same, truncated. None: a row
    leaves when it is done, and only then.
    """

    name: str
    first: int
    stop: int
    same_iteration: bool = False
    trips_max: int | None = None


class Stage(NamedTuple):
    """A part of a graph, nodes ``first`` to ``stop`` - 1: a chain (loop is None), or the loop of that number."""

    first: int
    stop: int
    loop: int | None


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """Nodes run first to last; those of a loop again and again before what follows it. Without loops: a static graph.

    Raises `InvalidInput` for no nodes, two nodes or loops of one name, loops that are empty, outside, out of order or
    overlapping, and maxima below 1.
    """

    model: str
    nodes: tuple[Node, ...]
    loops: tuple[Loop, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidInput(f"model {self.model!r}: a node graph needs at least one node")
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"model {self.model!r}: two nodes are called {twice!r}")
        self._check_loops()

    def _check_loops(self) -> None:
        free_from = 0
        for number, loop in enumerate(self.loops):
            if not free_from <= loop.first < loop.stop <= len(self.nodes):
                raise InvalidInput(
                    f"model {self.model!r}: loop {loop.name!r} is the nodes {loop.first}..{loop.stop - 1}, which must "
                    f"be one or more of {free_from}..{len(self.nodes) - 1}"
                )
            if loop.trips_max is not None and loop.trips_max < 1:
                raise InvalidInput(
                    f"model {self.model!r}: loop {loop.name!r} must allow at least 1 iteration, got {loop.trips_max}"
                )
            if loop.name in [other.name for other in self.loops[:number]]:
                raise InvalidInput(f"model {self.model!r}: two loops are called {loop.name!r}")
            free_from = loop.stop

    @classmethod
    def chain(cls, model: str, names: Sequence[str], loops: Sequence[Loop] = ()) -> NodeGraph:
        """Nodes with the given names, one after the other, and the loops over them."""
        return cls(model, tuple(Node(name) for name in names), tuple(loops))

    def stages(self) -> tuple[Stage, ...]:
        """The chains and loops that the graph consists of, in order; together they are all nodes."""
        found: list[Stage] = []
        at = 0
        for number, loop in enumerate(self.loops):
            if at < loop.first:
                found.append(Stage(at, loop.first, None))
            found.append(Stage(loop.first, loop.stop, number))
            at = loop.stop
        if at < len(self.nodes):
            found.append(Stage(at, len(self.nodes), None))
        return tuple(found)

    def __len__(self) -> int:
        return len(self.nodes)
