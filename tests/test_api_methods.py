"""What belongs to one object: kept by identity, as long as it lives, and brought along by every row."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from lazybatch.api.methods import Instances, MethodModel
from lazybatch.errors import InvalidInput


class Equal:
    """Objects of which all are equal, and none has a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def __eq__(self, other: object) -> bool:
        """Always."""
        return True

    def call(self, values: list[int]) -> list[int]:
        """Double, and remember what came."""
        self.calls.append(values)
        return [2 * value for value in values]


def test_each_object_has_its_own_for_as_long_as_it_lives() -> None:
    """Equal objects are told apart; what is kept for one goes with it, before another can be taken for it."""
    instances, one, other = Instances[Equal](), Equal(), Equal()
    kept = instances.of(one, lambda _: Equal())
    assert instances.of(one, lambda _: Equal()) is kept
    assert instances.of(other, lambda _: Equal()) is not kept
    gone = weakref.ref(kept)
    del kept, one
    assert gone() is None
    assert len(instances._kept) == 1


def test_threads_that_come_at_once_agree() -> None:
    """Only one of what several of them make is kept, and it is not forgotten for the sake of the others."""
    instances, one, both = Instances[Equal](), Equal(), threading.Barrier(2, timeout=30)
    got: list[Equal] = []

    def make(_: object) -> Equal:
        both.wait()
        return Equal()

    threads = [threading.Thread(target=lambda: got.append(instances.of(one, make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got[0] is got[1] is instances.of(one, make)


def test_what_cannot_be_referred_to_weakly_is_refused() -> None:
    """With what to do about it."""
    with pytest.raises(InvalidInput, match="int objects cannot be referred to weakly"):
        Instances[Equal]().of(3, lambda _: Equal())


def test_the_object_goes_with_its_rows() -> None:
    """A row is copied and measured like any other, the object is not; when it is gone nothing is admitted."""
    one = Equal()
    model = MethodModel(Equal.call, weakref.ref(one), size_fn=lambda value: value + 1, length_bucket_width=2)
    rows = [model.admit(value) for value in (2, 3)]
    assert [(row.size, row.signature) for row in rows] == [(3, 1), (4, 2)]
    assert all(row.values[0] is one for row in rows)
    executor = model.executor(max_batch_size=4)
    executor.open(7, dict(enumerate(rows)), 3)
    executor.run(7, 0)
    assert executor.close(7) == {0: 4, 1: 6}
    assert one.calls == [[2, 3, 3]]
    del one, rows
    with pytest.raises(InvalidInput, match="the object whose method 'call' was called no longer exists"):
        model.admit(1)
