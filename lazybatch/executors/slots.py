"""Which boundary tensor lies in which buffer: slots by liveness.

Owns: `SlotPlan` and `assign_slots`: one slot per tensor, reused as soon as its tensor is dead.
Must not know: sizes, memory, any runtime.

A chain that carries one tensor from node to node needs two slots (read one, write the other), and one where the nodes
work in place. More are used exactly where more tensors are alive at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lazybatch.partition.pieces import Boundary, Partition


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """slot_of: tensor name -> slot. live: per cursor (0 .. nodes), the tensors alive before that node runs.

    The last entry of ``live`` holds the outputs of the whole model. ``live`` covers tensors without a slot, too.
    """

    slot_of: dict[str, int]
    count: int
    live: tuple[frozenset[str], ...]


def liveness(partition: Partition) -> tuple[frozenset[str], ...]:
    """Per cursor 0 .. len(pieces): the boundary tensors that exist then and are still needed."""
    needed = frozenset(partition.outputs)
    live = [needed]
    for piece in reversed(partition.pieces):
        needed = (needed - frozenset(piece.outputs)) | frozenset(piece.inputs)
        live.append(needed)
    return tuple(reversed(live))


def assign_slots(partition: Partition, slotted: Collection[str]) -> SlotPlan:
    """Give every tensor of ``slotted`` a slot that no other live tensor has.

    An in-place pair shares its slot when the input is dead afterwards and grows with the rows as the output does (a
    bias that is the same for all rows has the output's shape at one row, and no other); a pair that does not is not
    believed.
    """
    live = liveness(partition)
    slot_of: dict[str, int] = {}
    count = 0

    def place(name: str, taken: set[int]) -> None:
        nonlocal count
        slot = next(slot for slot in range(count + 1) if slot not in taken)
        count = max(count, slot + 1)
        slot_of[name] = slot
        taken.add(slot)

    taken: set[int] = set()
    for name in partition.inputs:
        if name in slotted and name in live[0]:
            place(name, taken)
    for index, piece in enumerate(partition.pieces):
        taken = {slot_of[name] for name in live[index] | live[index + 1] if name in slot_of}
        partner = {made: used for used, made in piece.in_place}
        for name in piece.outputs:
            if name not in slotted:
                continue
            used = partner.get(name)
            dies = used in slot_of and used in piece.inputs and used not in live[index + 1]
            if used is not None and dies and _alike(partition.boundaries[used], partition.boundaries[name]):
                slot_of[name] = slot_of[used]
            else:
                place(name, taken)
    return SlotPlan(slot_of, count, live)


def _alike(one: Boundary, other: Boundary) -> bool:
    """Whether two tensors that are equal in shape at one row are so at any number: both grow alike, or neither does."""
    return (one.kind, one.axis, one.unit) == (other.kind, other.axis, other.unit)
