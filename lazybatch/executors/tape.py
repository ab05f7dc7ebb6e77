"""Sequences of arrays, one per row, that grow step by step: what rows collect, and what they are given, per iteration.

Owns: `Tape`: memory in pages, so that rows of any length lie side by side and none is moved when another ends.
Must not know: sub-batches, stages, what the arrays mean.

A row's steps lie in pages of its own. A step of many rows, each at its own position, is one indexed read or write;
which pages a row has is looked at only where it comes to a new one. Several tensors share pages and positions: each has
a track of its own, with memory for all pages.
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
_WITHIN = np.array(_LAST)
"""An array: see `executors.tally`."""


class Tape:
    """See the module's text. A place is a row's number here; it has one from `begin` to `end`. rows: that have one."""

    def __init__(self) -> None:
        self._tracks: dict[str, Array] = {}
        self._pages: list[list[int]] = []  # by place
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
        while len(free) < count:
            free.append(len(self._pages))
            self._pages.append([])
        places = np.array(free[-count:], np.int64)
        del free[-count:]
        return places

    def end(self, places: Ints) -> None:
        """These rows are gone; their pages serve others."""
        gone = places.tolist()
        self.rows -= len(gone)
        for place in gone:
            self._free_pages += self._pages[place]
            self._pages[place] = []
        self._free_places += gone

    def spots(self, places: Ints, positions: Ints) -> Ints:
        """Where the steps at these positions lie, one per place. Each must have been claimed or recorded."""
        pages = self._pages
        return np.array(
            [
                (pages[place][position >> PAGE_BITS] << PAGE_BITS) + (position & _LAST)
                for place, position in zip(places.tolist(), positions.tolist(), strict=True)
            ],
            np.int64,
        )

    def follow(self, places: Ints, positions: Ints, spots: Ints, pace: Ints | None) -> int:
        """Claim anew what has come to the first step of a page; other ``spots``, counted on with positions, are right.

        pace: 0 for rows that go on no more, else 1; None where all go on. Returns for how many steps, this one
        included, nobody comes to another page.
        """
        low = np.bitwise_and(positions, _WITHIN)
        if pace is not None:
            np.multiply(low, pace, low)
        lows: list[int] = low.tolist()
        turned, row = lows.count(0), -1
        if turned:
            at, steps = places.tolist(), positions.tolist()
            for _ in range(turned):
                row = lows.index(0, row + 1)
                spots[row] = self._claim(at[row], steps[row])
        return PAGE - max(lows)

    def claim(self, places: Ints, positions: Ints) -> Ints:
        """`spots` for steps to write. A row's steps are claimed one after the other, from 0."""
        pairs = zip(places.tolist(), positions.tolist(), strict=True)
        return np.array([self._claim(place, position) for place, position in pairs], np.int64)

    def _claim(self, place: int, position: int) -> int:
        own, page = self._pages[place], position >> PAGE_BITS
        if page == len(own):
            self._add_page(place)
        return (own[page] << PAGE_BITS) + (position & _LAST)

    def _add_page(self, place: int) -> None:
        """One more page, that was nobody's."""
        if self._free_pages:
            self._pages[place].append(self._free_pages.pop())
        else:
            self._pages[place].append(self._pages_made)
            self._pages_made += 1

    def write(self, name: str, spots: Ints, values: Array) -> None:
        """One step per spot. Raises `ValueError` for another shape than the track's other steps have."""
        track = self._tracks.get(name)
        if track is None or len(track) < self._pages_made << PAGE_BITS or track.shape[1:] != values.shape[1:]:
            track = self._track(name, values)
        track[spots] = values

    def read(self, name: str, spots: Ints) -> Array:
        """The steps at these spots, as an array of their own."""
        return self._tracks[name].take(spots, 0)

    def record(self, name: str, place: int, steps: Array) -> None:
        """All steps of a row at once, of one tensor."""
        pages = self._pages[place]
        while len(pages) << PAGE_BITS < len(steps):
            self._add_page(place)
        track = self._track(name, steps)
        for start, page in zip(range(0, len(steps), PAGE), pages, strict=False):
            part = steps[start : start + PAGE]
            track[page << PAGE_BITS :][: len(part)] = part

    def sequences(self, names: Sequence[str], places: Ints, lengths: Sequence[int]) -> list[list[Array]]:
        """The first steps of several rows, arrays of their own: per name, one per place."""
        wanted = list(zip(places.tolist(), lengths, strict=True))
        return [[self._sequence(self._tracks[name], place, length) for place, length in wanted] for name in names]

    def _sequence(self, track: Array, place: int, length: int) -> Array:
        pages = self._pages[place]
        first = pages[0] << PAGE_BITS
        if length <= PAGE:
            return track[first : first + length].copy()
        whole = np.empty((length, *track.shape[1:]), track.dtype)
        for start, page in zip(range(0, length, PAGE), pages, strict=False):
            part = whole[start : start + PAGE]
            part[:] = track[page << PAGE_BITS :][: len(part)]
        return whole

    def _track(self, name: str, values: Array) -> Array:
        """Where all pages of a tensor lie, with room for all there are."""
        track = self._tracks.get(name)
        if track is None or len(track) < self._pages_made << PAGE_BITS:
            track = self._grow(name, values)
        if track.shape[1:] != values.shape[1:]:
            raise ValueError(f"a step has the shape {list(values.shape[1:])}, others have {list(track.shape[1:])}")
        return track

    def _grow(self, name: str, values: Array) -> Array:
        """Room for all pages there are, and as many again: growing copies."""
        old = self._tracks.get(name)
        shape = values.shape[1:] if old is None else old.shape[1:]
        track = np.empty((2 * self._pages_made << PAGE_BITS, *shape), values.dtype if old is None else old.dtype)
        if old is not None:
            track[: len(old)] = old
        self._tracks[name] = track
        return track
