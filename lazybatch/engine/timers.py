"""Timers: hard limits of rows, kept to the moment whatever the engine thread is doing.

Owns: `Timers`: a heap of entries by limit, and one thread, started with the first limit, that waits for the next.
Must not know: what happens to a row whose limit has passed (a callable is given for that).
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count
from weakref import ref

from lazybatch.engine.clock import Clock
from lazybatch.engine.entry import Entry

_log = logging.getLogger("lazybatch.engine")

_COMPACT_MIN = 64


class Timers:
    """Calls ``expire`` for every entry whose limit has passed, unless it has ended before.

    start_thread: starts the thread that watches the clock; None: whoever drives the engine calls `fire`.
    Entries are not kept: one that has ended is nobody's any more, and its result must not wait here for its limit.
    """

    def __init__(
        self,
        clock: Clock,
        expire: Callable[[Entry], None],
        start_thread: Callable[[Callable[[], None], str], threading.Thread] | None,
    ) -> None:
        self._clock = clock
        self._expire = expire
        self._start_thread = start_thread
        self._thread: threading.Thread | None = None
        # Condition's own lock is re-entrant: a finalizer run by a garbage collection in here may cancel or submit.
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, ref[Entry]]] = []
        self._sequence = count()
        self._compact_at = _COMPACT_MIN
        self._stopped = False

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """Watch an entry that has a limit."""
        assert entry.limit_ns is not None
        with self._changed:
            if len(self._heap) >= self._compact_at:
                # Entries that ended long before their limit would otherwise pile up until it comes.
                self._heap = [item for item in self._heap if not _over(item[2]())]
                heapq.heapify(self._heap)
                self._compact_at = max(_COMPACT_MIN, 2 * len(self._heap))
            heapq.heappush(self._heap, (entry.limit_ns, next(self._sequence), ref(entry)))
            if self._start_thread is None or self._stopped:
                return
            if self._thread is None:
                try:
                    self._thread = self._start_thread(self._run, "timers")
                except Exception:  # out of threads or memory; the row is admitted, and the next limit tries again
                    _log.warning("no thread for time limits could be started", exc_info=True)
            elif self._heap[0][2]() is entry:
                self._changed.notify()

    def next_ns(self) -> int | None:
        """The earliest limit being watched; None when there is none."""
        with self._changed:
            return self._heap[0][0] if self._heap else None

    def fire(self, now_ns: int) -> None:
        """Expire every entry whose limit is not after ``now_ns``."""
        for entry in self._due(now_ns):
            try:
                self._expire(entry)
            except BaseException:
                _log.error("expiring request %d failed", entry.request.id, exc_info=True)

    def stop(self) -> None:
        """End the thread soon; later entries are not watched."""
        with self._changed:
            self._stopped = True
            self._heap.clear()
            self._changed.notify()

    def _due(self, now_ns: int) -> list[Entry]:
        due: list[Entry] = []
        with self._changed:
            while self._heap and (self._heap[0][0] <= now_ns or _over(self._heap[0][2]())):
                entry = heapq.heappop(self._heap)[2]()
                if entry is not None and not entry.ended:
                    due.append(entry)
        return due

    def _run(self) -> None:
        while True:
            self.fire(self._clock.now_ns())
            with self._changed:
                if self._stopped:
                    return
                if not self._heap:
                    self._changed.wait()
                    continue
                left_ns = self._heap[0][0] - self._clock.now_ns()
                if left_ns > 0:
                    self._changed.wait(min(left_ns / 1e9, 86_400.0))


def _over(entry: Entry | None) -> bool:
    return entry is None or entry.ended
