"""Callables as models: copied, measured, counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lazybatch.errors import ExecutionError, InvalidInput
from lazybatch.executors.base import Row
from lazybatch.executors.callable import CallableModel, default_size


def run(fn: Callable[[list[Any]], Any], *values: Any, padded_rows: int | None = None) -> dict[int, Any]:
    """One call through the executor, request ids 10, 11, ..."""
    executor = CallableModel(fn, name="fn").executor(max_batch_size=8)
    rows = {10 + k: Row(value) for k, value in enumerate(values)}
    executor.open(3, rows, padded_rows or len(rows))
    executor.run(3, 0)
    return executor.close(3)


@pytest.mark.parametrize(
    ("inputs", "size"),
    [
        ("abc", 3),
        ("é", 2),
        ("\ud800", 3),
        (b"abcd", 4),
        (np.zeros((2, 3)), 6),
        ({"id": "ab", "question": "cd", "options": ["e", "fg"]}, 7),
        (["ab", ["c"], ("d", 5)], 5),
        (7, 1),
        (None, 1),
        ("", 0),
    ],
)
def test_size_is_the_utf8_bytes_of_all_text(inputs: Any, size: int) -> None:
    """A cheap stand-in for tokens: bytes of text wherever it is nested, elements of arrays, 1 for anything else."""
    assert default_size(inputs) == size
    assert CallableModel(len).admit(inputs).size == size


def test_rows_share_a_call_only_within_a_bucket() -> None:
    """Size divided by the width is the signature; without a width there is one bucket."""
    model = CallableModel(len, length_bucket_width=4)
    assert [model.admit("x" * k).signature for k in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert CallableModel(len).admit("xxx").signature is None
    own = CallableModel(len, length_bucket_width=10, size_fn=lambda text: 7 * len(text))
    assert own.admit("ab") == Row("ab", 1, 14)


@pytest.mark.parametrize(
    ("size_fn", "text"),
    [
        (lambda _: 1 / 0, "size_fn failed .ZeroDivisionError"),
        (lambda _: -1, "must not be negative"),
        (lambda _: 1.5, "size_fn failed"),
    ],
)
def test_a_size_fn_that_fails_is_the_callers_error(size_fn: Callable[[Any], int], text: str) -> None:
    """It is raised where the row is handed in, not in a loop that serves others."""
    with pytest.raises(InvalidInput, match=text):
        CallableModel(len, size_fn=size_fn).admit("x")


def test_inputs_are_copied_when_admitted() -> None:
    """Later changes by the caller reach neither arrays nor nested lists; with copy=False they do."""
    array, nested = np.zeros(3), {"a": [1]}
    model = CallableModel(len)
    first, second = model.admit(array), model.admit(nested)
    shared = CallableModel(len, copy=False).admit(array)
    array[0] = 9
    nested["a"].append(2)
    assert first.values.tolist() == [0, 0, 0]
    assert second.values == {"a": [1]}
    assert shared.values is array
    objects = np.array([[1]], dtype=object)
    objects[0, 0] = [1]
    copied = model.admit(objects)
    objects[0, 0].append(2)
    assert copied.values[0, 0] == [1]


def test_what_cannot_be_copied_is_refused_with_advice() -> None:
    """A generator has no copy; the error says how to go on."""
    with pytest.raises(InvalidInput, match=r"type generator cannot be copied.*copy=False"):
        CallableModel(len).admit(x for x in "ab")


def test_outputs_go_back_by_request() -> None:
    """Lists, tuples and arrays of outputs are taken in order."""
    assert run(lambda values: [value * 2 for value in values], 1, 2) == {10: 2, 11: 4}
    assert run(tuple, 1, 2) == {10: 1, 11: 2}
    result = run(np.array, [1, 2], [3, 4])
    assert result[11].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda values: values[:-1], "got 2 inputs and returned 1 outputs"),
        (lambda values: [*values, 1], "returned 3 outputs"),
        (lambda _: None, "returned NoneType; a list of as many outputs is expected"),
        (lambda _: "ab", "returned str"),
        (lambda _: {1: 1, 2: 2}, "returned dict"),
        (set, "returned set"),
        (iter, "returned list_iterator"),
        (lambda _: np.array(3.0), "returned ndarray"),
        (lambda values: values.clear() or values, "returned 0 outputs"),
    ],
)
def test_a_wrong_number_of_outputs_fails_every_row_and_says_so(fn: Callable[[list[Any]], Any], text: str) -> None:
    """Nobody gets somebody else's output; each row fails with what came instead."""
    results = run(fn, 1, 2)
    assert all(isinstance(result, ExecutionError) for result in results.values())
    assert set(results) == {10, 11}
    assert text in str(results[10])


def test_padding_repeats_the_last_input_and_is_dropped() -> None:
    """The callable sees the padded size, the callers see their rows."""
    seen: list[Any] = []

    def fn(values: list[Any]) -> list[Any]:
        seen.extend(values)
        return values

    assert run(fn, 1, 2, padded_rows=4) == {10: 1, 11: 2}
    assert seen == [1, 2, 2, 2]


def test_an_exception_among_the_outputs_is_that_rows_result() -> None:
    """It is passed on as it is; whoever drives the executor fails that row alone."""
    error = ValueError("second")
    assert run(lambda values: [values[0], error], 1, 2) == {10: 1, 11: error}


def test_what_the_callable_raises_fails_the_run_and_discard_forgets() -> None:
    """The executor holds nothing of a sub-batch that failed; another one is not disturbed."""
    executor = CallableModel(lambda values: [1 / value for value in values]).executor(max_batch_size=4)
    executor.open(1, {0: Row(0)}, 1)
    executor.open(2, {1: Row(2)}, 1)
    with pytest.raises(ZeroDivisionError):
        executor.run(1, 0)
    executor.discard(1)
    executor.discard(1)
    executor.run(2, 0)
    assert executor.close(2) == {1: 0.5}
    executor.shutdown()


def test_rows_can_join_and_leave_before_the_call() -> None:
    """Merging appends, evicting removes; padding of either is dropped."""
    executor = CallableModel(lambda values: [value * 10 for value in values]).executor(max_batch_size=8)
    executor.open(1, {0: Row(0), 1: Row(1)}, 4)
    executor.open(2, {2: Row(2), 3: Row(3)}, 4)
    executor.merge(1, 2)
    executor.evict(1, [1])
    executor.run(1, 0)
    assert executor.close(1) == {0: 0, 2: 20, 3: 30}


async def coroutine(values: list[Any]) -> list[Any]:
    """Not what is wanted."""
    return values


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3,), "expected a callable"),
        ((coroutine,), "coroutine function"),
        ((len, {"size_fn": 3}), "size_fn must be callable"),
        ((len, {"length_bucket_width": -1}), "length_bucket_width must be"),
        ((len, {"length_bucket_width": True}), "length_bucket_width must be"),
        ((len, {"length_bucket_width": 0.5}), "length_bucket_width must be"),
    ],
)
def test_bad_callables_and_options_are_refused(arguments: tuple[Any, ...], text: str) -> None:
    """At construction, naming what is wrong."""
    fn, options = (*arguments, {})[:2]
    with pytest.raises(InvalidInput, match=text):
        CallableModel(fn, **options)


def test_names_and_fingerprints() -> None:
    """A callable is called by its name; its identity is where it was defined, for partials and objects too."""

    class Model:
        def __call__(self, values: list[Any]) -> list[Any]:
            return values

    assert CallableModel(coroutine_free).name == "coroutine_free"
    assert CallableModel(coroutine_free, name="other").name == "other"
    assert CallableModel(Model()).name == "Model"
    assert CallableModel(functools.partial(coroutine_free)).name == "partial"
    prints = {CallableModel(fn).fingerprint for fn in (coroutine_free, Model(), functools.partial(coroutine_free))}
    assert len(prints) == 3
    assert CallableModel(Model()).fingerprint == CallableModel(Model()).fingerprint
    model = CallableModel(coroutine_free)
    assert (model.joinable, model.reason, len(model.graph)) == (True, None, 1)
    assert repr(model) == "CallableModel('coroutine_free')"


def coroutine_free(values: list[Any]) -> list[Any]:
    """A module-level function."""
    return values
