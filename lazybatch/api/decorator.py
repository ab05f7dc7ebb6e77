"""The decorator: a callable that batches its concurrent callers.

Owns: `batched` and what it makes, `BatchedFunction`.
Must not know: anything a `LazyBatcher` does not offer.

Decorated functions and methods work: a method gets one batcher per instance, which ends with the instance. Threads
start with the first call, so decorating at import time costs nothing and survives a later fork.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, overload

from lazybatch.api.batcher import LazyBatcher
from lazybatch.config import BatcherOptions, ModelOptions
from lazybatch.engine import Stats
from lazybatch.errors import InvalidInput
from lazybatch.executors.callable import CallableModel
from lazybatch.explanation import Explanation

BatchFunction = Callable[..., Sequence[Any]]

_MODEL_OPTIONS = ("max_batch_size", "queue_capacity", "sla", "allowed_batch_sizes", "late")
_BATCHER_OPTIONS = ("policy", "max_delay", "size_budget", "workers", "levels", "ageing", "isolate_failures")
_CALLABLE_OPTIONS = ("size_fn", "length_bucket_width", "copy")
_OTHER_OPTIONS = ("table", "observers", "trace", "name", "allow_foreign_table")


class BatchedFunction:
    """A decorated ``list[inputs] -> list[outputs]``, called with one input: ``embed("one")`` waits for its output.

    ``submit, submit_batch, predict, predict_batch, apredict, apredict_batch, stats, decisions, shutdown`` are those of
    the `LazyBatcher` behind it. After `shutdown` it stays shut down. ``__wrapped__`` is the function itself.
    """

    def __init__(self, fn: BatchFunction, options: dict[str, Any]) -> None:
        _check(options)
        self._fn = fn
        self._options = options
        self._model = CallableModel(
            fn, name=options.get("name"), **{key: options[key] for key in _CALLABLE_OPTIONS if key in options}
        )
        self._lock = threading.Lock()
        self._started: LazyBatcher | None = None
        self._attribute: str | None = None
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<batched {self._model.name}>"

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
        started = self._started
        if started is not None and not started.abandoned:
            return started
        with self._lock:
            if self._started is None or self._started.abandoned:
                passed = {key: value for key, value in self._options.items() if key not in _CALLABLE_OPTIONS}
                self._started = LazyBatcher(self._model, **passed)
            return self._started

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: object, owner: type | None = None) -> BatchedFunction:
        """For methods: the instance's own batched function, kept in the instance's ``__dict__``."""
        if instance is None or self._attribute is None:
            return self
        if not hasattr(instance, "__dict__"):
            raise InvalidInput(f"{type(instance).__name__} objects have no __dict__ to keep a batched method in")
        own: BatchedFunction | None = vars(instance).get(self._attribute)
        if own is None:
            bound = BatchedFunction(_weakly_bound(self._fn, instance), self._options)
            own = vars(instance).setdefault(self._attribute, bound)
        return own


def _weakly_bound(fn: BatchFunction, instance: object) -> BatchFunction:
    """The method bound to its instance, without keeping it: the engine's thread outlives everything it refers to."""
    reference = weakref.ref(instance)

    @functools.wraps(fn)
    def method(inputs: list[Any]) -> Sequence[Any]:
        found = reference()
        if found is None:
            raise ReferenceError(f"the object whose method {fn.__name__!r} was called no longer exists")
        return fn(found, inputs)

    return method


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
