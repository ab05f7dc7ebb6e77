"""How the tensors of a chain go round, where its rows run it again and again.

Owns: `Cycle` and `Growth`, and which tensors are alive at each cursor of a chain, whether it goes round or not.
Must not know: memory, any runtime, how many iterations a row makes.

A row that goes round gives its carried outputs the names of the inputs they are next; held inputs stay as they are;
fed inputs are written afresh before each iteration, so nobody moves them while rows wait at the first node; grown
inputs are held, and get one slice per iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lazybatch.partition.pieces import Partition


@dataclass(frozen=True, slots=True)
class Growth:
    """A held input that grows: the output ``slice`` is written at the row's own iteration.

    axis: of the input, as one row has it (without batch axis).
    """

    slice: str
    axis: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """What becomes of each tensor from one iteration to the next.

    carried: input -> the output (or, unchanged, the input) that it is in the next iteration.
    fed: inputs written before each iteration. grown: see `Growth`. All other inputs are held.
    read: outputs that are looked at after each iteration, slices among them.
    in_place: carried inputs whose output is written over them.
    """

    carried: Mapping[str, str] = field(default_factory=dict)
    fed: frozenset[str] = frozenset()
    grown: Mapping[str, Growth] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()

    def held(self, partition: Partition) -> frozenset[str]:
        """Inputs that must outlive every iteration, those that grow among them."""
        return frozenset(partition.inputs) - self.fed - frozenset(self.carried)


@dataclass(frozen=True, slots=True)
class Lives:
    """Per cursor 0 .. nodes: tensors that are alive, and those among them that move with their rows.

    They differ at cursor 0, where fed inputs are not written yet, and behind the last node, where rows only ever are on
    their way back to the first.
    """

    alive: tuple[frozenset[str], ...]
    moved: tuple[frozenset[str], ...]


def lives(partition: Partition, cycle: Cycle | None) -> Lives:
    """Which boundary tensors are alive at each cursor: they exist then and are still needed."""
    if cycle is None:
        needed = frozenset(partition.outputs)
        held: frozenset[str] = frozenset()
    else:
        held = cycle.held(partition) | {source for source in cycle.carried.values() if source in partition.inputs}
        needed = held | cycle.read | frozenset(cycle.carried.values())
    alive = [needed]
    for piece in reversed(partition.pieces):
        needed = (needed - frozenset(piece.outputs)) | frozenset(piece.inputs) | held
        alive.append(needed)
    alive.reverse()
    moved = list(alive)
    if cycle is not None:
        moved[0] = alive[0] - cycle.fed
    return Lives(tuple(alive), tuple(moved))
