"""Node graphs: what the scheduler knows of a model.

Owns: `Node` and `NodeGraph`, the chain of scheduled units of one model.
Must not know: tensors, files, frameworks, time. A node here is a name and a position; the runnable thing behind it
lives in an executor.

A request's *cursor* is the index of the node it runs next; a cursor equal to ``len(graph)`` means done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lazybatch.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Node:
    """The smallest scheduled unit: one or more layers that run without a chance of preemption in between."""

    name: str
    operators: int = 1


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """A static graph: a chain of nodes, run first to last.

    Raises `InvalidInput` for an empty chain or two nodes of one name.
    """

    model: str
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidInput(f"model {self.model!r}: a node graph needs at least one node")
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"model {self.model!r}: two nodes are called {twice!r}")

    @classmethod
    def chain(cls, model: str, names: Sequence[str]) -> NodeGraph:
        """A chain of nodes with the given names."""
        return cls(model, tuple(Node(name) for name in names))

    def __len__(self) -> int:
        return len(self.nodes)
