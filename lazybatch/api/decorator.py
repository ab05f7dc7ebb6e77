"""The decorator: a callable that batches its concurrent callers.

Owns: `batched` and what it makes, `BatchedFunction`.
Must not know: anything a `LazyBatcher` does not offer.

Decorated functions and methods work: a method gets one batcher per instance, which ends with the instance; nothing is
put into the instance, so copies of it, and methods of the same name in its parents, are batched apart. Threads
start with the first call, so decorating at import time costs nothing and survives a later fork.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import MethodType, TracebackType
from typing import Any, Self, overload

from lazybatch.api.batcher import LazyBatcher
from lazybatch.api.methods import BatchFunction, Instances, MethodModel
from lazybatch.config import BatcherOptions, ModelOptions
from lazybatch.engine import Stats
from lazybatch.errors import InvalidInput
from lazybatch.executors.callable import CallableModel
from lazybatch.explanation import Explanation

_MODEL_OPTIONS = ("max_batch_size", "queue_capacity", "sla", "allowed_batch_sizes", "late")
_BATCHER_OPTIONS = ("policy", "max_delay", "size_budget", "workers", "levels", "ageing", "isolate_failures")
_CALLABLE_OPTIONS = ("size_fn", "length_bucket_width", "copy")
_OTHER_OPTIONS = ("table", "observers", "trace", "name", "allow_foreign_table")


class _Behind:
    """The batcher behind a function, which starts with the first use."""

    def __init__(self, model: CallableModel, options: dict[str, Any]) -> None:
        self.model = model
        self._options = {key: value for key, value in options.items() if key not in _CALLABLE_OPTIONS}
        self._locks: dict[int, threading.Lock] = {}
        self._started: LazyBatcher | None = None

    def batcher(self) -> LazyBatcher:
        """Started if it is not; anew in a forked child."""
        started = self._started
        if started is not None and not started.abandoned:
            return started
        # By process: a lock that somebody held at a fork stays held in the child for ever.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._started is None or self._started.abandoned:
                self._started = LazyBatcher(self.model, **self._options)
            return self._started


class BatchedFunction:
    """A decorated ``list[inputs] -> list[outputs]``, called with one input: ``embed("one")`` waits for its output.

    ``submit, submit_batch, predict, predict_batch, apredict, apredict_batch, stats, decisions, shutdown`` are those of
    the `LazyBatcher` behind it. After `shutdown` it stays shut down. ``__wrapped__`` is the function itself.

    Of a method, every object has one of its own. While somebody has that, or one of its rows is on its way, the object
    is kept.
    """

    def __init__(self, fn: BatchFunction, options: dict[str, Any]) -> None:
        _check(options)
        self._fn = fn
        self._options = options
        self._of_callable = {key: options[key] for key in _CALLABLE_OPTIONS if key in options}
        self._behind = _Behind(CallableModel(fn, name=options.get("name"), **self._of_callable), options)
        self._is_method = False
        self._of_instances = Instances[_OfInstance]()
        self._look_like(fn)

    def _look_like(self, fn: Callable[..., Any]) -> None:
        # Not the attributes of a callable object: they may be called like our own.
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        return f"<batched {self._behind.model.name}>"

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """One input; waits for its output. Options as of `LazyBatcher.submit`."""
        return self.batcher.predict(inputs, **options)

    def submit(self, inputs: Any, **options: Any) -> Future[Any]:
        """See `LazyBatcher.submit`."""
        return self.batcher.submit(inputs, **options)

    def submit_batch(self, inputs: Iterable[Any], **options: Any) -> list[Future[Any]]:
        """See `LazyBatcher.submit_batch`."""
        return self.batcher.submit_batch(inputs, **options)

    def predict(self, inputs: Any, **options: Any) -> Any:
        """See `LazyBatcher.predict`; the same as calling the object."""
        return self.batcher.predict(inputs, **options)

    def predict_batch(self, inputs: Iterable[Any], **options: Any) -> list[Any]:
        """See `LazyBatcher.predict_batch`."""
        return self.batcher.predict_batch(inputs, **options)

    async def apredict(self, inputs: Any, **options: Any) -> Any:
        """See `LazyBatcher.apredict`."""
        return await self.batcher.apredict(inputs, **options)

    async def apredict_batch(self, inputs: Iterable[Any], **options: Any) -> list[Any]:
        """See `LazyBatcher.apredict_batch`."""
        return await self.batcher.apredict_batch(inputs, **options)

    def stats(self) -> Stats:
        """See `LazyBatcher.stats`."""
        return self.batcher.stats()

    def decisions(self, last: int = 50) -> list[Explanation]:
        """See `LazyBatcher.decisions`."""
        return self.batcher.decisions(last)

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> bool:
        """See `LazyBatcher.shutdown`."""
        return self.batcher.shutdown(drain, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def batcher(self) -> LazyBatcher:
        """The batcher behind it, started with the first use; anew in a forked child."""
        return self._behind.batcher()

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: object, owner: type | None = None) -> BatchedFunction:
        """For methods: the instance's own. Raises `InvalidInput` for instances that cannot be referred to weakly."""
        if instance is None or not self._is_method:
            return self
        return self._of_instances.of(instance, self._new_behind).method(self._fn, instance)

    def _new_behind(self, instance: weakref.ref[Any]) -> _OfInstance:
        model = MethodModel(self._fn, instance, name=self._options.get("name"), **self._of_callable)
        return _OfInstance(_Behind(model, self._options))


class _OfInstance:
    """What is kept of a method for one object. The method itself keeps the object, so it is not kept."""

    def __init__(self, behind: _Behind) -> None:
        self._behind = behind
        self._method: weakref.ref[_BatchedMethod] | None = None

    def method(self, fn: BatchFunction, instance: object) -> _BatchedMethod:
        """The same one for as long as somebody has it."""
        found = None if self._method is None else self._method()
        if found is None:
            found = _BatchedMethod(fn, instance, self._behind)
            self._method = weakref.ref(found)
        return found


class _BatchedMethod(BatchedFunction):
    """A `BatchedFunction` of one object, which it keeps. Like any bound method, it is bound to no other."""

    def __init__(self, fn: BatchFunction, instance: object, behind: _Behind) -> None:
        self.__self__ = instance
        self._behind = behind
        self._is_method = False
        self._look_like(MethodType(fn, instance))

    def __set_name__(self, owner: type, name: str) -> None:
        """It stays the object's."""


def _check(options: dict[str, Any]) -> None:
    """Refuse bad options where they are written, not at the first call."""
    known = (*_MODEL_OPTIONS, *_BATCHER_OPTIONS, *_CALLABLE_OPTIONS, *_OTHER_OPTIONS)
    unknown = [key for key in options if key not in known]
    if unknown:
        raise InvalidInput(f"batched does not take {unknown[0]!r}; options are {', '.join(sorted(known))}")
    limits = ModelOptions(**{key: options[key] for key in _MODEL_OPTIONS if key in options})
    if limits.late == "drop" and options.get("table") is None:
        raise InvalidInput("late='drop' needs table=: without a latency table nobody knows when a row is hopeless")
    chosen = {key: options[key] for key in _BATCHER_OPTIONS if options.get(key) is not None}
    BatcherOptions(**{"policy": "graph", **chosen})


@overload
def batched(fn: BatchFunction, /) -> BatchedFunction: ...


@overload
def batched(fn: None = None, /, **options: Any) -> Callable[[BatchFunction], BatchedFunction]: ...


def batched(
    fn: BatchFunction | None = None, /, **options: Any
) -> BatchedFunction | Callable[[BatchFunction], BatchedFunction]:
    """Decorate a callable ``list[inputs] -> list[outputs]`` so that concurrent callers share its calls.

    ``@batched`` or ``@batched(max_batch_size=16, max_delay=0.001)``. Options are those of `LazyBatcher`, and of
    `CallableModel` (size_fn, length_bucket_width, copy). Returns a `BatchedFunction`.
    Raises `InvalidInput` for bad options, and for coroutine functions.
    """
    if fn is not None:
        return BatchedFunction(fn, options)
    return lambda function: BatchedFunction(function, options)
