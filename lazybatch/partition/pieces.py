"""The outcome of partitioning, as data: what an executor needs in order to run a model node by node.

Owns: `Partition` and its parts, independent of the framework the model came from.
Must not know: onnx, torch or any runtime; how cuts were chosen; how nodes are run.

A *boundary tensor* is a value that crosses a cut (or is an input or output of the whole model). Cuts are only made
where every live boundary tensor has a proven `Kind`, so that sub-batches can be merged there by copying rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lazybatch.core.graph import Node, NodeGraph
from lazybatch.errors import ModelError


class Kind(StrEnum):
    """How a boundary tensor relates to the rows of a sub-batch."""

    ROWS = "rows"
    """Row i of the request order owns an equal, contiguous share of axis `axis`, in order: merging appends."""
    SHARED = "shared"
    """The same for every row of one signature: it depends on unbatched inputs and fixed sizes only."""
    SIZE = "size"
    """Integers computed from the number of rows: each element is a multiple of it or independent of it."""
    OPAQUE = "opaque"
    """Nothing proven. Only in partitions that are not joinable."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary tensor. dtype is NumPy's name ("float32", "int64", "bool", "object" for strings).

    axis: the axis rows lie on, for ROWS; None otherwise.
    unit: for ROWS: whether a row owns exactly one index of the axis, so that the axis is dropped for callers. Where it
    owns several, a caller gets its share with the axis kept, as a single run gives it.
    proportional: for SIZE, per element in flat order: whether the element is a fixed multiple of the number of rows
    (True) or does not depend on it (False). So a value seen at n rows gives the value at any other number of rows.
    dims: an int per dimension, or None where it varies (batch axis included); None if nothing is known. Of the model's
    inputs, and of outputs where rows may not join, as declared; of every other tensor as seen at all sizes that were
    tried.
    """

    name: str
    dtype: str
    kind: Kind
    axis: int | None = None
    dims: tuple[int | None, ...] | None = None
    unit: bool = True
    proportional: tuple[bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """The runnable side of one node: a model file of its own.

    inputs, outputs: boundary tensor names, in the file's order; `outputs` includes nothing that no later piece needs.
    in_place: (input, output) pairs whose buffers may be one and the same: the input's last use anywhere is the final
    elementwise add inside this piece (the fused residual of a convolution, an Add), so the runtime may write over it.
    """

    name: str
    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: int = 1
    in_place: tuple[tuple[str, str], ...] = ()
    weights_bytes: int = 0
    cost_share: float = 0.0
    """Measured share of the whole model's time at one row, when the cut was chosen; 0 where not measured."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A model cut into pieces, with the proof (or refusal) of joinability.

    inputs, outputs: names as callers see them, in the model's order. An input of Kind.ROWS is given per request without
    its batch axis; a SHARED input is given whole and must be equal for rows to join. An output of Kind.ROWS is
    returned without its batch axis; any other output is returned exactly as a single run gives it.
    joinable: whether different requests may share a sub-batch; reason: why not (None where joinable).
    fingerprint: sha256 over the original model, the runtime's version, the cuts, and for torch the kind of device.
    directory: where the pieces lie.
    """

    model: str
    fingerprint: str
    directory: Path
    pieces: tuple[Piece, ...]
    boundaries: Mapping[str, Boundary]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    joinable: bool
    reason: str | None
    max_abs_diff: float | None = None
    """Largest |joined - alone| seen by the probe over all outputs; None where no joined run succeeded."""
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pieces:
            raise ModelError(f"model {self.model!r}: the partition has no pieces")
        if self.joinable == (self.reason is not None):
            raise ModelError(f"model {self.model!r}: a partition has a reason exactly when it is not joinable")

    def graph(self) -> NodeGraph:
        """The chain the scheduler sees."""
        return NodeGraph(self.model, tuple(Node(piece.name, piece.operators) for piece in self.pieces))
