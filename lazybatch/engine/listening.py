"""Listening: what rows in loops collect step by step, on its way to whoever asked for it.

Owns: `Listener` (one row's: which steps it has heard) and `Heard` (steps that are due).
Must not know: the scheduler, executors, how steps are waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_log = logging.getLogger("lazybatch.engine")

Step = Mapping[str, Any]
"""What a row collected in one iteration: arrays by name."""


class Listener:
    """Whoever listens to one row. A row that is run again from its start repeats no step to it.

    sink: called with every new step, in order, on a thread of the engine's; it must be quick and never wait.
    """

    __slots__ = ("_at", "_heard", "sink")

    def __init__(self, sink: Callable[[Step], object]) -> None:
        self.sink = sink
        self._at = self._heard = 0

    def rewind(self) -> None:
        """The row starts again."""
        self._at = 0

    def hears(self) -> bool:
        """The row makes its next step; whether that is a new one."""
        self._at += 1
        if self._at <= self._heard:
            return False
        self._heard = self._at
        return True


class Heard(NamedTuple):
    """New steps of one iteration, each with the listener it is for."""

    steps: list[tuple[Listener, Step]]

    def tell(self) -> None:
        """Pass them on; a sink that raises costs nobody else anything."""
        for listener, step in self.steps:
            try:
                listener.sink(step)
            except BaseException:
                _log.error("a step could not be passed on", exc_info=True)
