"""Policies: one small file each. They look at lanes and choose; they change nothing.

Owns: the registry of names. A policy is any object with `decide` (see `base.Policy`).
Must not know: the default, which consults what is solved (`lazybatch.policies`).
"""

from __future__ import annotations

from collections.abc import Callable

from lazybatch.core.policies.aimd import Aimd
from lazybatch.core.policies.base import Choice, Policy, Start, View, Wait
from lazybatch.core.policies.cellular import Cellular
from lazybatch.core.policies.continuous import Continuous
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.policies.lazy_batching import LazyBatching
from lazybatch.core.policies.oracle import Oracle
from lazybatch.core.policies.serial import Serial
from lazybatch.errors import InvalidInput

__all__ = [
    "Aimd",
    "Cellular",
    "Choice",
    "Continuous",
    "GraphBatching",
    "LazyBatching",
    "Oracle",
    "Policy",
    "Serial",
    "Start",
    "View",
    "Wait",
    "by_name",
    "names",
]

_REGISTRY: dict[str, Callable[..., Policy]] = {
    "serial": Serial,
    "graph": GraphBatching,
    "cellular": Cellular,
    "continuous": Continuous,
    "aimd": Aimd,
    "lazy": LazyBatching,
    "oracle": Oracle,
}


def names() -> tuple[str, ...]:
    """Names that `by_name` knows."""
    return tuple(_REGISTRY)


def by_name(name: str, **options: int | None) -> Policy:
    """A policy by its public name. Raises `InvalidInput` for an unknown name or an option it does not take."""
    try:
        make = _REGISTRY[name]
    except (KeyError, TypeError):
        raise InvalidInput(f"unknown policy {name!r}; known are {', '.join(_REGISTRY)}") from None
    try:
        return make(**options)
    except TypeError:
        raise InvalidInput(f"policy {name!r} does not take the options {sorted(options)}") from None
