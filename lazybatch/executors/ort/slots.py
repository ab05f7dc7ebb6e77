"""Which boundary tensor lies in which buffer: slots by liveness.

Owns: `SlotPlan` and `assign_slots`: one slot per tensor, reused as soon as its tensor is dead.
Must not know: sizes, memory, any runtime.

A chain that carries one tensor from node to node needs two slots (read one, write the other), and one where the nodes
work in place. More are used exactly where more tensors are alive at once.

Where rows go round (`Cycle`), a carried input and the output that it is next have a slot each, which nothing else ever
uses: in every second iteration the two change places, so that carrying a state moves nothing. Where the output is
written over the input (`Cycle.in_place`), both have one slot and stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lazybatch.executors.cycle import Cycle, lives
from lazybatch.partition.pieces import Boundary, Partition


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """slot_of: tensor name -> slot. live, moved: see `Lives`; they cover tensors without a slot, too.

    turned: ``slot_of`` in every second iteration. swapped: carried input -> output, of those that change places then.
    stayed: carried inputs that share their slot with their output.
    """

    slot_of: Mapping[str, int]
    count: int
    live: tuple[frozenset[str], ...]
    moved: tuple[frozenset[str], ...]
    turned: Mapping[str, int]
    swapped: Mapping[str, str]
    stayed: frozenset[str] = frozenset()


def assign_slots(partition: Partition, slotted: Collection[str], cycle: Cycle | None = None) -> SlotPlan:
    """Give every tensor of ``slotted`` a slot that no other live tensor has.

    An in-place pair shares its slot when the input is dead afterwards and grows with the rows as the output does (a
    bias that is the same for all rows has the output's shape at one row, and no other); a pair that does not is not
    believed.
    """
    known = lives(partition, cycle)
    paired = {} if cycle is None else _paired(partition, slotted, cycle, known.alive[0])
    seats = _Seats(partition, slotted, known.alive, paired, frozenset() if cycle is None else cycle.in_place)
    slots = seats.slot_of
    swapped = {name: output for name, output in paired.items() if slots[name] != slots[output]}
    turned = dict(slots)
    for name, output in swapped.items():
        turned[name], turned[output] = slots[output], slots[name]
    return SlotPlan(
        slots, seats.count, known.alive, known.moved, turned, swapped, frozenset(paired) - frozenset(swapped)
    )


def _paired(partition: Partition, slotted: Collection[str], cycle: Cycle, first: frozenset[str]) -> dict[str, str]:
    """Carried inputs that can share memory, or change places, with their output: nobody else is given the same one."""
    sources = list(cycle.carried.values())
    return {
        name: output
        for name, output in cycle.carried.items()
        if {name, output} <= set(slotted)
        and name in first
        and output not in partition.inputs
        and sources.count(output) == 1
    }


class _Seats:
    """Hands out the slots, once, when made."""

    def __init__(
        self,
        partition: Partition,
        slotted: Collection[str],
        live: tuple[frozenset[str], ...],
        paired: Mapping[str, str],
        in_place: Collection[str],
    ) -> None:
        self.slot_of: dict[str, int] = {}
        self.count = 0
        self._live = live
        self._own: set[int] = set()
        taken: set[int] = set()
        for name in partition.inputs:
            if name in slotted and name in live[0]:
                self._place(name, taken)
        for name, output in paired.items():
            if name in in_place:
                self.slot_of[output] = self.slot_of[name]
            if output not in self.slot_of:
                self._place(output, taken)
            self._own |= {self.slot_of[name], self.slot_of[output]}
        for index, piece in enumerate(partition.pieces):
            taken = {self.slot_of[name] for name in live[index] | live[index + 1] if name in self.slot_of} | self._own
            partner = {made: used for used, made in piece.in_place}
            for name in piece.outputs:
                if name not in slotted or name in self.slot_of:
                    continue
                used = partner.get(name)
                if (
                    used is not None
                    and self._ends(partition, piece.inputs, used, name, index)
                    and self.slot_of[used] not in self._own
                ):
                    self.slot_of[name] = self.slot_of[used]
                else:
                    self._place(name, taken)

    def _place(self, name: str, taken: set[int]) -> None:
        slot = next(slot for slot in range(self.count + 1) if slot not in taken)
        self.count = max(self.count, slot + 1)
        self.slot_of[name] = slot
        taken.add(slot)

    def _ends(self, partition: Partition, inputs: Collection[str], used: str, made: str, index: int) -> bool:
        """Whether what is made may be written over what is used there."""
        dies = used in self.slot_of and used in inputs and used not in self._live[index + 1]
        return dies and _alike(partition.boundaries[used], partition.boundaries[made])


def _alike(one: Boundary, other: Boundary) -> bool:
    """Whether two tensors that were equal in shape at one row are so at any number and any size: both grow alike, or
    neither does, and what is known of their sizes is the same."""
    return one.dims is not None and (one.kind, one.axis, one.unit, one.dims) == (
        other.kind,
        other.axis,
        other.unit,
        other.dims,
    )
