"""A program and its models, put together: what each stage is given, keeps and gives.

Owns: `StagePlan`, `LoopPlan`, `Given`, and `Board`, on which stages find what those before them offer.
Must not know: how they are found out, rows, memory, any runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from lazybatch.executors.cycle import Cycle
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.partition.pieces import Partition
from lazybatch.program import Program, Reference

Dims = tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class Given:
    """What an input of a model is given when a row comes to its stage.

    reference: the row's tensor, or the one whose length it is (``length``), else None. pad: see `Feed`. largest:
    lengths differ among rows of one signature, so all are padded to the largest size.
    form: an array of the input's type and of one row's shape, where that is known; it is what a row is given that has
    no reference.
    """

    name: str
    reference: Reference | None
    form: NDArray[Any] | None = None
    length: bool = False
    pad: tuple[int, ...] = ()
    largest: bool = False


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """How a stage loops.

    number: among the program's loops. each: by the body's input. forms: of inputs that are not given when a row comes
    (written per iteration, or growing): an array of the type and shape that one row has, without memory behind it.
    ended_by: the tensor whose length or value says how many iterations a row makes; ``by_value``: which of the two.
    states: final values that later stages or outputs name. collected: likewise, of what is collected.
    """

    number: int
    cycle: Cycle
    each: Mapping[str, Reference]
    forms: Mapping[str, NDArray[Any]]
    iteration: str | None
    same_iteration: bool
    done: str | None
    ended_by: Reference | None
    by_value: bool
    most: int | None
    at_max: Literal["truncate", "error"]
    collect: tuple[str, ...]
    states: tuple[str, ...] = ()
    collected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage. outputs: of a chain, those that later stages or outputs name. alone: why its rows cannot be joined."""

    name: str
    model: PartitionedModel
    given: tuple[Given, ...]
    loop: LoopPlan | None
    outputs: tuple[str, ...] = ()
    alone: str | None = None

    @property
    def partition(self) -> Partition:
        """Its model's."""
        return self.model.partition

    @property
    def taken(self) -> tuple[frozenset[Reference], frozenset[Reference]]:
        """Tensors of rows that the model is given as they are, and those that something is made of row by row."""
        whole: set[Reference] = set()
        single: set[Reference] = set()
        for one in self.given:
            if one.reference is not None:
                (single if one.length or one.pad else whole).add(one.reference)
        if self.loop is not None:
            single.update(self.loop.each.values())
            if self.loop.ended_by is not None:
                single.add(self.loop.ended_by)
        return frozenset(whole), frozenset(single)


class Known(NamedTuple):
    """What is known of a row's tensor beforehand. differs: in value among rows of one signature. ragged: in length."""

    dtype: str | None = None
    dims: Dims = None
    differs: bool = True
    ragged: bool = False


@dataclass(slots=True)
class Board:
    """What the stages so far offer. uniform: inputs of the program that rows of one signature have in common.

    lengths: those whose lengths they have in common.
    """

    program: Program
    models: Mapping[str, PartitionedModel]
    known: dict[Reference, Known] = field(default_factory=dict)
    uniform: set[str] = field(default_factory=set)
    lengths: set[str] = field(default_factory=set)
