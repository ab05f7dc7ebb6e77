"""Which values a graph still needs after each of its steps.

Owns: `Step` and `Liveness`: live sets between steps.
Must not know: any framework, what the steps compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One operator of a sorted graph: the values it reads and makes, weights left out, each once."""

    operator: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


class Liveness:
    """Live sets of a sorted graph. Position k is step k; position -1 stands before the first one.

    made, first, last: name -> position where it is made, first read, and read for the last time (the number of steps
    for what the graph returns).
    """

    def __init__(self, inputs: Iterable[str], steps: Sequence[Step], outputs: Iterable[str]) -> None:
        self.steps = steps
        self.made = dict.fromkeys(inputs, -1)
        self.last: dict[str, int] = {}
        self.first: dict[str, int] = {}
        for position, step in enumerate(steps):
            for name in step.reads:
                self.last[name] = position
                self.first.setdefault(name, position)
            self.made.update((name, position) for name in step.makes)
        self.last.update((name, len(steps)) for name in outputs)

    def live_sets(self) -> list[tuple[str, ...]]:
        """Per position: what was made at or before it, inputs included, and is read or returned after it."""
        live: dict[str, None] = {
            name: None for name, at in self.made.items() if at == -1 and self.last.get(name, -1) >= 0
        }
        made_at: list[list[str]] = [[] for _ in self.steps]
        dead_at: list[list[str]] = [[] for _ in range(len(self.steps) + 1)]
        for name, position in self.made.items():
            if name not in self.last:
                continue
            if position >= 0:
                made_at[position].append(name)
            dead_at[self.last[name]].append(name)
        sets = []
        for position in range(len(self.steps)):
            live.update(dict.fromkeys(made_at[position]))
            for name in dead_at[position]:
                live.pop(name, None)
            sets.append(tuple(live))
        return sets

    def readers(self, name: str, positions: Collection[int]) -> list[int]:
        """Positions among the given ones whose step reads the value."""
        return [position for position in positions if name in self.steps[position].reads]

    def ends(self, start: int, end: int) -> tuple[list[str], list[str]]:
        """What the steps from ``start`` up to but not including ``end`` need from before, and what is needed of them
        later."""
        made = [name for step in self.steps[start:end] for name in step.makes]
        own = set(made)
        read = dict.fromkeys(name for step in self.steps[start:end] for name in step.reads if name not in own)
        return list(read), [name for name in made if self.last.get(name, -1) >= end]
