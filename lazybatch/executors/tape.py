"""Sequences of arrays, one per row, that grow step by step: what rows collect, and what they are given, per iteration.

Owns: `Tape`: memory in pages, so that rows of any length lie side by side and none is moved when another ends.
Must not know: sub-batches, stages, what the arrays mean.

A row's steps lie in pages of its own. A step of many rows, each at its own position, is one indexed read or write.
Several tensors share pages and positions: each has a track of its own, with memory for all pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = NDArray[np.int64]

PAGE_BITS = 4
PAGE = 1 << PAGE_BITS
"""Steps per page."""
_LAST = PAGE - 1
_NONE = -1
"""In the table of pages: not there."""


class Tape:
    """See the module's text. A place is a row's number here; it has one from `begin` to `end`. rows: that have one."""

    def __init__(self) -> None:
        self._tracks: dict[str, Array] = {}
        self._table: Ints = np.full((0, 4), _NONE)
        self._free_places: list[int] = []
        self._free_pages: list[int] = []
        self._pages_made = 0
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(track.nbytes for track in self._tracks.values())

    def begin(self, count: int) -> Ints:
        """Places for so many rows, without steps."""
        self.rows += count
        free = self._free_places
        if len(free) < count:
            had = len(self._table)
            self._resize(max(had + count, 2 * had), self._table.shape[1])
            free[:0] = range(len(self._table) - 1, had - 1, -1)
        places = np.array(free[-count:], np.int64)
        del free[-count:]
        return places

    def end(self, places: Ints) -> None:
        """These rows are gone; their pages serve others."""
        self.rows -= len(places)
        pages = self._table[places]
        self._free_pages += pages[pages != _NONE].tolist()
        self._table[places] = _NONE
        self._free_places += places.tolist()

    def spots(self, places: Ints, positions: Ints) -> Ints:
        """Where the steps at these positions lie, one per place. Each must have been claimed or recorded."""
        spots: Ints = self._table[places, positions >> PAGE_BITS]
        spots <<= PAGE_BITS
        spots += positions & _LAST
        return spots

    def follow(self, places: Ints, positions: Ints, spots: Ints, pace: Ints | None) -> int:
        """Claim anew what has come to the first step of a page; other ``spots``, counted on with positions, are right.

        pace: 0 for rows that go on no more, else 1; None where all go on. Returns for how many steps, this one
        included, nobody comes to another page.
        """
        low = positions & _LAST
        if pace is not None:
            low *= pace
        turned = (low == 0).nonzero()[0]
        if len(turned):
            spots[turned] = self.claim(places[turned], positions[turned])
        return PAGE - int(low[low.argmax()])

    def claim(self, places: Ints, positions: Ints) -> Ints:
        """`spots` for steps to write. A row's steps are claimed one after the other, from 0."""
        numbers = positions >> PAGE_BITS
        most = numbers[numbers.argmax()] if len(numbers) else 0
        if most >= self._table.shape[1]:
            self._resize(len(self._table), max(int(most) + 1, 2 * self._table.shape[1]))
        spots: Ints = self._table[places, numbers]
        missing = (spots == _NONE).nonzero()[0]
        if len(missing):
            pages = self._take_pages(len(missing))
            spots[missing] = pages
            self._table[places[missing], numbers[missing]] = pages
        spots <<= PAGE_BITS
        spots += positions & _LAST
        return spots

    def write(self, name: str, spots: Ints, values: Array) -> None:
        """One step per spot. Raises `ValueError` for another shape than the track's other steps have."""
        track = self._tracks.get(name)
        if track is None or len(track) < self._pages_made << PAGE_BITS:
            track = self._grow(name, values)
        if track.shape[1:] != values.shape[1:]:
            raise ValueError(f"a step has the shape {list(values.shape[1:])}, others have {list(track.shape[1:])}")
        track[spots] = values

    def read(self, name: str, spots: Ints) -> Array:
        """The steps at these spots, as an array of their own."""
        return self._tracks[name].take(spots, 0)

    def record(self, name: str, place: int, steps: Array) -> None:
        """All steps of a row at once, of one tensor."""
        starts = np.arange(0, len(steps), PAGE)
        self.claim(np.full(len(starts), place), starts)
        self.write(name, self._all_spots(place, len(steps)), steps)

    def sequences(self, names: Sequence[str], places: Ints, lengths: Ints) -> list[list[Array]]:
        """The first steps of several rows, arrays of their own: per name, one per place."""
        if len(places) == 1:
            spots = self._all_spots(places[0], int(lengths[0]))
            return [[self.read(name, spots)] for name in names]
        ends = lengths.cumsum()
        starts = ends - lengths
        positions = np.arange(ends[-1]) - starts.repeat(lengths)
        spots = self.spots(places.repeat(lengths), positions)
        parts = list(zip(starts.tolist(), ends.tolist(), strict=True))
        tracks = [self.read(name, spots) for name in names]
        return [[steps[start:end].copy() for start, end in parts] for steps in tracks]

    def _all_spots(self, place: int | np.int64, length: int) -> Ints:
        positions = np.arange(length)
        spots: Ints = self._table[place].take(positions >> PAGE_BITS)
        spots <<= PAGE_BITS
        spots += positions & _LAST
        return spots

    def _take_pages(self, count: int) -> list[int]:
        """So many pages that are nobody's."""
        free = self._free_pages
        if len(free) < count:
            made = self._pages_made
            self._pages_made += count - len(free)
            free.extend(range(made, self._pages_made))
        taken = free[-count:]
        del free[-count:]
        return taken

    def _resize(self, places: int, pages: int) -> None:
        """Room for so many places, with so many pages each."""
        grown = np.full((places, pages), _NONE)
        grown[: len(self._table), : self._table.shape[1]] = self._table
        self._table = grown

    def _grow(self, name: str, values: Array) -> Array:
        """Room for all pages there are, and as many again: growing copies."""
        old = self._tracks.get(name)
        shape = values.shape[1:] if old is None else old.shape[1:]
        track = np.empty((2 * self._pages_made << PAGE_BITS, *shape), values.dtype if old is None else old.dtype)
        if old is not None:
            track[: len(old)] = old
        self._tracks[name] = track
        return track
