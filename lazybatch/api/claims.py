"""Whose policy object is whose: one serves one batcher at a time, because it may remember what it saw.

Owns: `claim`. Must not know: policies, engines beyond whether they have ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from lazybatch.core.policies import Policy
from lazybatch.engine import Engine
from lazybatch.errors import InvalidInput

# By identity: an engine keeps its policy, so an entry's key stays that policy's for as long as the entry exists.
_owners: WeakValueDictionary[int, Engine] = WeakValueDictionary()
_starting: set[int] = set()
_lock = threading.Lock()


@contextmanager
def claim(policy: Policy) -> Iterator[Callable[[Engine], None]]:
    """Within the block, tell what is yielded which engine has the policy from now on.

    Raises `InvalidInput` where an engine that has not ended has it.
    """
    key = id(policy)
    with _lock:
        owner = _owners.get(key)
        if key in _starting or (owner is not None and not owner.ended):
            raise InvalidInput(f"policy {policy!r} serves another batcher; give each batcher an object of its own")
        _starting.add(key)

    def claimed(engine: Engine) -> None:
        _owners[key] = engine

    try:
        yield claimed
    finally:
        _starting.discard(key)


def _after_fork() -> None:
    """In a forked child: batchers that other threads were starting, and whoever held the lock, stayed behind."""
    global _lock
    _lock = threading.Lock()
    _starting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
