"""What happens to engines nobody ended: at interpreter exit, and in a forked child.

Owns: the set of running engines and the two hooks.
Must not know: how an engine ends.
"""

from __future__ import annotations

import atexit
import os
from time import monotonic
from typing import Protocol
from weakref import WeakSet

_EXIT_WAIT_S = 5.0
"""How long the interpreter waits for running nodes, over all engines."""


class Ending(Protocol):
    """What the hooks need of an engine."""

    def close(self, drain: bool = True) -> None:
        """Ask it to end."""

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Wait for its end."""

    def abandon(self) -> None:
        """Its threads are gone."""


alive: WeakSet[Ending] = WeakSet()
"""Engines whose threads run."""


def _at_exit() -> None:
    """Rows that wait fail, running nodes are let finish: a thread must not be stopped inside native code."""
    engines = list(alive)
    for engine in engines:
        engine.close(drain=False)
    until = monotonic() + _EXIT_WAIT_S
    for engine in engines:
        engine.shutdown(drain=False, timeout=max(0.0, until - monotonic()))


def _after_fork() -> None:
    for engine in list(alive):
        engine.abandon()
    alive.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
