"""Methods that batch their callers: what belongs to one object, and the object that goes with every row.

Owns: `Instances` (things kept for objects, for as long as these live) and `MethodModel` (a method as a model).
Must not know: batchers, engines.

The threads of a batcher outlive everything they refer to, and so does the class that a method belongs to. So neither
keeps an object: its rows do while they are on their way, and whoever has the method.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Row
from lazybatch.executors.callable import CallableExecutor, CallableModel

BatchFunction = Callable[..., Sequence[Any]]
"""``list[inputs] -> list[outputs]``, or such a method."""

Kept = TypeVar("Kept")


class Instances(Generic[Kept]):
    """One thing per object, gone with the object. By identity: objects need neither a hash nor a ``__dict__``."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], Kept]] = {}

    def of(self, instance: object, make: Callable[[weakref.ref[Any]], Kept]) -> Kept:
        """What is kept for the object, made when first asked for. What is made must not keep the object.

        Raises `InvalidInput` for objects that cannot be referred to weakly.
        """
        key = id(instance)
        found = self._kept.get(key)
        if found is None:
            kept = self._kept

            def forget(gone: weakref.ref[Any]) -> None:
                if key in kept and kept[key][0] is gone:
                    del kept[key]

            try:
                reference = weakref.ref(instance, forget)
            except TypeError:
                raise InvalidInput(
                    f"{type(instance).__name__} objects cannot be referred to weakly, as a batched method needs; "
                    "add '__weakref__' to their __slots__"
                ) from None
            found = kept.setdefault(key, (reference, make(reference)))  # several threads may come at once
        return found[1]


class MethodModel(CallableModel):
    """A method ``(self, list[inputs]) -> list[outputs]`` of one object. Options as of `CallableModel`."""

    def __init__(self, fn: BatchFunction, instance: weakref.ref[Any], **options: Any) -> None:
        super().__init__(fn, **options)
        self._method = fn
        self._instance = instance

    def admit(self, inputs: Any) -> Row:
        """Copy and measure one row, with which the object goes. Raises `InvalidInput`, also when that is gone."""
        instance = self._instance()
        if instance is None:
            raise InvalidInput(f"the object whose method {self.name!r} was called no longer exists")
        row = super().admit(inputs)
        return replace(row, values=(instance, row.values))

    def executor(self, *, max_batch_size: int) -> CallableExecutor:
        """A fresh executor."""
        return CallableExecutor(self.name, self._call)

    def _call(self, rows: list[tuple[Any, Any]]) -> Sequence[Any]:
        instance = rows[0][0]
        return self._method(instance, [values for _, values in rows])
