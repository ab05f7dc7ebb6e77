"""What a program is: stages in order, what goes into them, and how those that loop repeat.

Owns: `Program` and `Stage`, checked when they are made.
Must not know: files, how models are loaded or run. What can only be told with the models in hand is checked where the
program meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lazybatch.errors import InvalidInput
from lazybatch.program.checks import check_program, check_stage
from lazybatch.program.parts import Carry, Feed, Reference, Repeat


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a program: a chain, whose model runs once per row, or a loop.

    name: without dots and slashes. model: whatever `lazybatch.load` takes and cuts into nodes, or a loaded model.
    inputs: by the model's input: a `Feed`; a plain string stands for ``Feed(string)``. Of a loop: those that stay the
    same in all iterations of a row.
    loop: how it repeats; None: it is a chain.
    examples: what the model accepts, to probe it with: as ``example_inputs`` of `lazybatch.load`, or the path of an
    ``.npz`` file with one array per input as the model takes it, batch axis included.
    batch_axes, tolerance: as for `lazybatch.load`.

    Raises `InvalidInput`, naming the stage and the tensor, for descriptions that contradict themselves.
    """

    name: str
    model: Any
    inputs: Mapping[str, Feed | str] = field(default_factory=dict)
    loop: Repeat | None = None
    examples: Any = None
    batch_axes: Mapping[str, int | None] | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_stage(self)

    @property
    def feeds(self) -> dict[str, Feed]:
        """``inputs`` with every shorthand spelt out."""
        return {name: Feed(one) if isinstance(one, str) else one for name, one in self.inputs.items()}

    def references(self) -> list[tuple[str, Reference]]:
        """All that the stage reads from outside, as (words for where, reference)."""
        found: list[tuple[str, Reference]] = []
        for name, feed in self.feeds.items():
            found.append((f"input {name!r}", Reference.of(feed.of or feed.length_of or "")))
        if self.loop is not None:
            for name, state in self.loop.states.items():
                if isinstance(state, Carry) and isinstance(state.start, str):
                    found.append((f"the start of state {name!r}", Reference.of(state.start)))
            found += [
                (f"input {name!r} of each iteration", Reference.of(text)) for name, text in self.loop.each.items()
            ]
            if isinstance(self.loop.trips, Feed | str):
                counted = self.loop.counted
                assert counted is not None, "trips are given"
                found.append(("trips", Reference.of(counted.of or counted.length_of or "")))
        return found

    def offers(self) -> frozenset[str] | None:
        """Tensors that later stages and outputs may name; None where only the model tells (a chain)."""
        return None if self.loop is None else frozenset((*self.loop.collect, *self.loop.carry))


@dataclass(frozen=True, slots=True)
class Program:
    """A model made of stages. outputs: by the name callers see: a reference.

    Raises `InvalidInput`, naming the stage and the tensor, for references to nothing, to later stages, and for tensors
    whose length differs from row to row where rows of one length are needed.
    """

    name: str
    stages: tuple[Stage, ...]
    outputs: Mapping[str, str]

    def __post_init__(self) -> None:
        stages: object = self.stages
        listed = tuple(stages) if isinstance(stages, Iterable) else (stages,)
        if not isinstance(stages, Iterable) or not all(isinstance(one, Stage) for one in listed):
            raise InvalidInput(f"program {self.name!r}: stages must be a list of Stages, got {stages!r:.80}")
        object.__setattr__(self, "stages", listed)
        check_program(self)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the program's inputs, in the order in which the stages read them."""
        read = [reference for stage in self.stages for _, reference in stage.references()]
        read += [Reference.of(text) for text in self.outputs.values()]
        return tuple(dict.fromkeys(reference.tensor for reference in read if reference.stage is None))

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises `InvalidInput` where there is none."""
        for one in self.stages:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.stages)
        raise InvalidInput(f"program {self.name!r} has no stage {name!r}; it has {known}")
