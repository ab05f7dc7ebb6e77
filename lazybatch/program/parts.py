"""The small parts of a program: references, what inputs are given, states, and how a stage repeats.

Owns: `Reference`, `Feed`, `Carry`, `Append`, `Repeat`: plain frozen records, checked by the stage that holds them.
Must not know: files, models, stages.

Every row of a program has its tensors, without a batch axis, under two kinds of names: ``"x"`` is an input of the
program, ``"stage.t"`` is tensor ``t`` of an earlier stage. Of a chain these are the outputs of its model. Of a loop
they are what it collects, stacked on a new first axis with one entry per iteration, and its states (by the name of the
body's input), as they are after the row's last iteration; of a state that grows, the part that was filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

COUNT_MAX = (1 << 31) - 1
"""The most iterations of a row, and the largest size that may be named: executors count in 64 bits, with sums."""


class Reference(NamedTuple):
    """A tensor of a row: of an earlier stage, or, where stage is None, an input of the program."""

    stage: str | None
    tensor: str

    @classmethod
    def of(cls, text: str) -> Reference:
        """Read ``"x"`` or ``"stage.t"``; only the first dot counts, names of tensors may have their own."""
        stage, dot, tensor = text.partition(".")
        return cls(stage, tensor) if dot else cls(None, text)

    def __str__(self) -> str:
        return self.tensor if self.stage is None else f"{self.stage}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class Feed:
    """What an input of a stage is given. Exactly one of ``of`` and ``length_of``.

    of: a reference; the row's tensor. pad: append zeros to its first axis, up to the smallest of these sizes that is
    enough; rows join when their padded sizes agree. Empty: as it is.
    length_of: a reference; the length of that tensor's first axis, before any padding, as one integer.
    """

    of: str | None = None
    pad: tuple[int, ...] = ()
    length_of: str | None = None


@dataclass(frozen=True, slots=True)
class Carry:
    """A state that the body replaces in every iteration.

    next: the body's output that becomes the state of the next iteration.
    start: a reference to its first value, or a number that fills it.
    in_place: the body writes the next value over the state, in the same memory, so an iteration copies nothing of it.
    For bodies that change little of a large state (GroupQueryAttention's past and present, ScatterND into a cache). The
    state must have a fixed shape. It is tried with made-up rows when the program is loaded, and again for a larger
    maximum batch, and refused where anything that is read would differ. Rows that are tried have the shapes of the
    stage's examples; as many run together as will be served, or as half a gigabyte holds, but two at least; each for a
    few iterations, from anywhere up to the loop's maximum (where there is none: up to the states' smallest dimension).
    What a body does with inputs of other shapes, or with more rows, is then taken to be the same.
    """

    next: str
    start: str | float = 0
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """A state that grows by a slice per iteration. The body is given the whole room, zeros where it is not filled yet.

    slice: the body's output that is written at the row's own iteration; it has the state's shape without ``axis``.
    axis: counts without the batch axis. room: the state's size on that axis, the most iterations a row can make.
    """

    slice: str
    axis: int
    room: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """How a stage loops: its model, the body, runs once per iteration of a row, at least once.

    carry: by the body's input: a `Carry` or an `Append`; a plain string stands for ``Carry(string)``.
    each: by the body's input: a reference whose first axis has one entry per iteration.
    iteration: the body's input that is given the number of the row's own iteration, from 0.
    done: the body's output that says that this was the row's last iteration (bool, or 0 and 1; one per row).
    trips: what says beforehand how many iterations a row makes: a `Feed` with ``length_of``, or a reference (or `Feed`
    of it) to an input of the program that holds one integer. None with ``each`` and without ``done``: the length of the
    first tensor of ``each``. With ``each`` and ``done`` a row also ends when ``each`` does.
    trips_max: the most iterations of any row; needed with ``done`` unless there is ``each``.
    at_max: what becomes of a row that is not done by then: its result as it is, marked as truncated, or an error.
    collect: outputs of the body that are kept, and streamed, for every iteration.
    """

    carry: Mapping[str, Carry | Append | str] = field(default_factory=dict)
    each: Mapping[str, str] = field(default_factory=dict)
    iteration: str | None = None
    done: str | None = None
    trips: Feed | str | None = None
    trips_max: int | None = None
    at_max: Literal["truncate", "error"] = "truncate"
    collect: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        collect: Sequence[str] | str = self.collect
        if isinstance(collect, str):
            object.__setattr__(self, "collect", (collect,))
        elif isinstance(collect, Iterable):  # anything else is refused by the stage, which has a name
            object.__setattr__(self, "collect", tuple(collect))

    @property
    def states(self) -> dict[str, Carry | Append]:
        """``carry`` with every shorthand spelt out."""
        return {name: Carry(one) if isinstance(one, str) else one for name, one in self.carry.items()}

    @property
    def most(self) -> int | None:
        """The most iterations of any row, by ``trips_max`` or by the room of states that grow; None: no limit."""
        limits = [one.room for one in self.states.values() if isinstance(one, Append)]
        return min([*limits, *(() if self.trips_max is None else (self.trips_max,))], default=None)

    @property
    def counted(self) -> Feed | None:
        """What says beforehand how many iterations a row makes; None where only its run tells."""
        if self.trips is None:
            return None if self.done is not None or not self.each else Feed(length_of=next(iter(self.each.values())))
        return Feed(self.trips) if isinstance(self.trips, str) else self.trips
