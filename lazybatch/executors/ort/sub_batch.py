"""A sub-batch whose rows lie in buffers, and what is prepared for its present number of rows.

Owns: `SubBatch` and `Frame`: data; `RowStore` fills and changes it.
Must not know: how rows move, sessions, the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from lazybatch.executors.columns import Columns
from lazybatch.executors.ort.buffers import BufferSet
from lazybatch.executors.ort.layout import Layout
from lazybatch.executors.tally import Tally

Step = Callable[[], None]


class Landing(NamedTuple):
    """One input that rows bring: its memory with the rows on the first axis; the same and more in records, see `Frame`;
    and how many numbers a row has."""

    name: str
    by_row: NDArray[Any]
    records: NDArray[Any]
    numbers: int


class Frame:
    """All nodes bound to one buffer set for one layout, number of rows and turn; a step is None until first needed.

    views: tensors as nodes see them. by_row: the same memory with the rows on the first axis. records: the same memory
    and more, with one opaque element per row. fed: of ``by_row``, what is written before each iteration.
    growing: by input that grows: it, with rows and positions on the first two axes, and its slices. landing: where rows
    that come are written, empty until first needed. turned: the frame of the other turn.
    """

    __slots__ = ("by_row", "fed", "growing", "landing", "records", "steps", "turned", "views")

    def __init__(self, nodes: int) -> None:
        self.steps: list[Step | None] = [None] * nodes
        self.views: dict[str, NDArray[Any]] = {}
        self.records: dict[str, NDArray[Any]] = {}
        self.by_row: dict[str, NDArray[Any]] = {}
        self.fed: dict[str, NDArray[Any]] = {}
        self.growing: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        self.landing: list[Landing] = []
        self.turned: Frame | None = None


class SubBatch:
    """Rows that move together. rows: executed rows, padding included; the requests' rows come first.

    turn: 1 in every second iteration, where carried tensors have changed places; else 0. tally: where rows go round.
    awaited: what the rows are given, until they lie in buffers; before that, ``buffers`` and ``frame`` mean nothing.
    """

    __slots__ = ("awaited", "buffers", "cursor", "frame", "layout", "requests", "rows", "tally", "turn", "values")

    buffers: BufferSet

    def __init__(self, requests: list[int], rows: int, layout: Layout, frame: Frame) -> None:
        self.requests = requests
        self.rows = rows
        self.layout = layout
        self.frame = frame
        self.awaited: Columns | None = None
        self.values: dict[str, Any] = {}
        self.cursor = 0
        self.turn = 0
        self.tally: Tally | None = None

    @property
    def signature(self) -> Hashable:
        """Rows of different signatures never join."""
        return self.layout.signature
