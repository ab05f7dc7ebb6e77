"""Plain callables as models: a graph of one node, so that graph batching serves them like everything else.

Owns: `CallableModel` (checks and copies rows, measures their size) and its executor (one call per sub-batch).
Must not know: threads, futures, the scheduler. Sub-batches may be run from several threads, one thread each.

The callable gets a list of inputs and returns a list of as many outputs, in the same order. An exception instance in
place of an output fails that row alone; whatever it raises fails the call.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import operator
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np

from lazybatch.core.graph import NodeGraph
from lazybatch.errors import ExecutionError, InvalidInput
from lazybatch.executors.base import Row
from lazybatch.words import said

BatchFunction = Callable[[list[Any]], Sequence[Any]]


def default_size(inputs: Any) -> int:
    """The length of an input, a cheap stand-in for its tokens: UTF-8 bytes of all text in it, elements of arrays.

    Text and bytes count their bytes, an array its elements, containers the sum of what they hold, anything else 1.
    """
    if isinstance(inputs, str):
        return len(inputs.encode("utf-8", "surrogatepass"))
    if isinstance(inputs, bytes | bytearray | memoryview):
        return len(inputs)
    if isinstance(inputs, np.ndarray):
        return inputs.size
    if isinstance(inputs, Mapping):
        return sum(default_size(value) for value in inputs.values())
    if isinstance(inputs, list | tuple | set | frozenset):
        return sum(default_size(value) for value in inputs)
    return 1


def copy_input(inputs: Any) -> Any:
    """A copy that later changes by the caller do not reach. Raises `InvalidInput` for what cannot be copied."""
    if isinstance(inputs, str | bytes | int | float | complex | bool | None):
        return inputs
    try:
        if type(inputs) is np.ndarray and inputs.dtype != object:
            return inputs.copy()
        return copy.deepcopy(inputs)
    except Exception as error:
        raise InvalidInput(
            f"an input of type {type(inputs).__name__} cannot be copied ({said(error)}); "
            "use copy=False and do not change inputs after submitting them"
        ) from error


class CallableModel:
    """A callable ``list[inputs] -> list[outputs]`` as a model of one node.

    name: for stats, traces and errors; the callable's own by default. size_fn: input -> length or tokens, for buckets
    and budgets; by default `default_size`. length_bucket_width: rows share a call only when size // width is equal, 0
    for no buckets. copy: whether inputs are copied when admitted (`copy.deepcopy`; arrays by their own copy), so that
    the caller may change them once `submit` has returned. Rows of a failed call are given to the callable once more, so
    it should not change its inputs, nor have effects that must not happen twice (or use isolate_failures=False).

    Raises `InvalidInput` for what is not callable, for coroutine functions, and for a bad width.
    """

    joinable = True
    reason: str | None = None

    def __init__(
        self,
        fn: BatchFunction,
        *,
        name: str | None = None,
        size_fn: Callable[[Any], int] | None = None,
        length_bucket_width: int = 0,
        copy: bool = True,
    ) -> None:
        if not callable(fn):
            raise InvalidInput(f"expected a callable list[inputs] -> list[outputs], got {fn!r}")
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidInput(f"{fn!r} is a coroutine function; a plain function is needed (it runs on a thread)")
        if size_fn is not None and not callable(size_fn):
            raise InvalidInput(f"size_fn must be callable, got {size_fn!r}")
        if isinstance(length_bucket_width, bool) or not isinstance(length_bucket_width, int) or length_bucket_width < 0:
            raise InvalidInput(f"length_bucket_width must be a whole number, 0 or more, got {length_bucket_width!r}")
        self._fn = fn
        self._name = name or getattr(fn, "__name__", None) or type(fn).__name__
        self._size_fn = size_fn or default_size
        self._width = length_bucket_width
        self._copy = copy
        self._graph = NodeGraph.chain(self._name, ["call"])

    def __repr__(self) -> str:
        return f"CallableModel({self._name!r})"

    @property
    def name(self) -> str:
        """Short name, for stats, traces and errors."""
        return self._name

    @property
    def graph(self) -> NodeGraph:
        """One node, called "call"."""
        return self._graph

    @property
    def fingerprint(self) -> str:
        """Identity of the callable by module and qualified name; its behaviour cannot be hashed."""
        kind = self._fn if hasattr(self._fn, "__qualname__") else type(self._fn)
        text = f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"
        return hashlib.sha256(f"callable {text}".encode()).hexdigest()

    def admit(self, inputs: Any) -> Row:
        """Copy and measure one row. Raises `InvalidInput` when it cannot be copied or measured."""
        size = self._size(inputs)
        values = copy_input(inputs) if self._copy else inputs
        return Row(values, size // self._width if self._width else None, size)

    def _size(self, inputs: Any) -> int:
        try:
            size = operator.index(self._size_fn(inputs))
        except Exception as error:
            raise InvalidInput(f"model {self._name!r}: size_fn failed ({said(error)})") from error
        if size < 0:
            raise InvalidInput(f"model {self._name!r}: size_fn must not be negative, got {size}")
        return size

    def executor(self, *, max_batch_size: int) -> CallableExecutor:
        """A fresh executor; the callable plans its own memory."""
        return CallableExecutor(self._name, self._fn)


class CallableExecutor:
    """Calls the function once per sub-batch. Different sub-batches may run at once on different threads."""

    def __init__(self, name: str, fn: BatchFunction) -> None:
        self._name = name
        self._fn = fn
        self._inputs: dict[int, tuple[tuple[int, ...], list[Any]]] = {}
        self._results: dict[int, dict[int, Any]] = {}

    def open(self, sub_batch: int, rows: Mapping[int, Row], padded_rows: int) -> None:
        """Gather the inputs; padding repeats the last one."""
        values = [row.values for row in rows.values()]
        values += values[-1:] * (padded_rows - len(values))
        self._inputs[sub_batch] = (tuple(rows), values)

    def run(self, sub_batch: int, node: int) -> None:
        """One call. Raises what the callable raises; a wrong number of outputs fails every row, and is not retried."""
        requests, values = self._inputs.pop(sub_batch)
        count = len(values)  # before the call: the list is the callable's to change
        outputs = self._fn(values)
        self._results[sub_batch] = self._scatter(requests, count, outputs)

    def _scatter(self, requests: tuple[int, ...], count: int, outputs: Any) -> dict[int, Any]:
        wrong = _what_is_wrong(outputs, count)
        if wrong is None:
            return dict(zip(requests, outputs, strict=False))
        text = f"model {self._name!r}: the callable got {count} inputs and {wrong}"
        return {request: ExecutionError(text) for request in requests}

    def merge(self, target: int, source: int) -> None:
        """Join two sub-batches that have not run."""
        requests, values = self._inputs.pop(source)
        before, others = self._inputs[target]
        self._inputs[target] = (before + requests, others[: len(before)] + values[: len(requests)])

    def evict(self, sub_batch: int, requests: Collection[int]) -> None:
        """Drop rows that have not run."""
        before, values = self._inputs[sub_batch]
        kept = [(request, value) for request, value in zip(before, values, strict=False) if request not in requests]
        self._inputs[sub_batch] = (tuple(request for request, _ in kept), [value for _, value in kept])

    def close(self, sub_batch: int) -> dict[int, Any]:
        """Outputs by request."""
        return self._results.pop(sub_batch)

    def discard(self, sub_batch: int) -> None:
        """Forget a sub-batch."""
        self._inputs.pop(sub_batch, None)
        self._results.pop(sub_batch, None)

    def shutdown(self) -> None:
        """Nothing to free."""


def _what_is_wrong(outputs: Any, count: int) -> str | None:
    """None when there is one output per input; else how to say what came instead."""
    try:
        ordered = not isinstance(outputs, str | bytes | Mapping | Set)
        length = len(outputs) if ordered else None
    except TypeError:  # no length, or an array without axes
        length = None
    if length is None:
        return f"returned {type(outputs).__name__}; a list of as many outputs is expected"
    return None if length == count else f"returned {length} outputs"
