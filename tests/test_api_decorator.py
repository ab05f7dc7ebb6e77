"""The decorator: functions and methods that batch their callers."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref

import pytest

import lazybatch as lb
from tests.engine.kit import LONG_S, upper


def test_a_decorated_function_batches_its_callers() -> None:
    """Calling it waits for one output; everything else is the batcher's; the function's own face is kept."""

    @lb.batched(max_batch_size=16, max_delay=0.001)
    def embed(texts: list[str]) -> list[str]:
        """Embeds."""
        return upper(texts)

    assert embed("one") == "ONE"
    assert embed("one", timeout=LONG_S) == "ONE"
    assert embed.submit("a").result(LONG_S) == "A"
    assert embed.submit_batch(["a"])[0].result(LONG_S) == "A"
    assert embed.predict("a") == "A"
    assert embed.predict_batch(["a", "b"]) == ["A", "B"]
    assert asyncio.run(embed.apredict("a")) == "A"
    assert asyncio.run(embed.apredict_batch(["a", "b"])) == ["A", "B"]
    assert embed.stats().completed == 10
    assert (embed.__name__, embed.__doc__) == ("embed", "Embeds.")
    assert embed.__wrapped__(["x"]) == ["X"]
    assert repr(embed) == "<batched embed>"
    assert embed.shutdown(timeout=LONG_S)
    with pytest.raises(lb.ShuttingDown):
        embed("two")


def test_decorating_needs_no_parentheses_and_takes_all_options() -> None:
    """Bare, and with options of the batcher and of the callable."""
    with lb.batched(upper) as plain:
        assert plain("a") == "A"
    chosen = lb.batched(size_fn=len, length_bucket_width=4, copy=False, name="up", workers=2, observers=[])
    with chosen(upper) as fancy:
        assert fancy.predict_batch(["a", "abcdef"]) == ["A", "ABCDEF"]
        assert set(fancy.stats().models) == {"up"}


def test_decorating_starts_nothing_and_refuses_bad_options() -> None:
    """Import time costs no thread, and mistakes are found there rather than at the first call."""
    before = threading.active_count()
    lb.batched(upper)
    assert threading.active_count() <= before
    with pytest.raises(lb.InvalidInput, match="does not take 'max_batch'"):
        lb.batched(max_batch=3)(upper)
    with pytest.raises(lb.InvalidInput, match="max_batch_size must be"):
        lb.batched(max_batch_size=0)(upper)
    with pytest.raises(lb.InvalidInput, match="belongs to policy 'graph'"):
        lb.batched(policy="serial", max_delay=0.1)(upper)


def test_late_rows_can_be_dropped() -> None:
    """With a table the option works as for models; without one it is refused where it is written."""

    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    table = lb.LatencyTable("double", ("call",), (1, 16), ((1_000_000, 2_000_000),), ((1_000_000, 2_000_000),))
    with lb.batched(late="drop", table=table, policy="graph")(double) as batched:
        assert isinstance(batched.submit(1, sla=0.0005).exception(60), lb.DeadlineExceeded)
        assert batched(2) == 4
        assert batched.stats().dropped == 1
    with pytest.raises(lb.InvalidInput, match="late='drop' needs table="):
        lb.batched(late="drop")(double)


class Scaler:
    """An object with a batched method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @lb.batched(max_batch_size=4)
    def scale(self, values: list[int]) -> list[int]:
        """Multiply."""
        return [value * self.factor for value in values]


def test_methods_batch_per_instance_and_end_with_it() -> None:
    """Two objects never share a call; an object that is dropped is collected, with its batcher."""
    two, three = Scaler(2), Scaler(3)
    assert two.scale(5) == 10
    assert three.scale.predict_batch([1, 2]) == [3, 6]
    assert two.scale is two.scale
    assert two.scale.stats().completed == 1
    assert two.scale.__name__ == "scale"
    assert isinstance(Scaler.scale, lb.BatchedFunction)
    reference = weakref.ref(three)
    del three
    gc.collect()
    assert reference() is None


class Doubler(Scaler):
    """One that goes by its parent's."""

    @lb.batched(max_batch_size=4)
    def scale(self, values: list[int]) -> list[int]:
        """Twice what the parent says."""
        return [2 * super(Doubler, self).scale(value) for value in values]


def test_a_method_and_its_parents_are_two() -> None:
    """Under one name each class has its own, also for the same object."""
    assert Doubler(3).scale(5) == 30


def test_copies_of_an_object_have_methods_of_their_own() -> None:
    """A copy answers for itself, however it was made, also after the first call; the object holds nothing of ours."""
    one = Scaler(2)
    assert one.scale(5) == 10
    assert vars(one) == {"factor": 2}
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        other.factor = 3
        assert other.scale(5) == 15
        assert other.scale.stats().completed == 1
    assert one.scale(5) == 10


def test_a_method_keeps_its_object_while_it_is_needed() -> None:
    """While somebody has the method, or a row is on its way, the object is there, and no longer."""
    assert Scaler(2).scale(5) == 10
    assert Scaler(2).scale.submit(5).result(LONG_S) == 10
    assert asyncio.run(Scaler(2).scale.apredict(5)) == 10
    kept = Scaler(4)
    reference, scale, future = weakref.ref(kept), kept.scale, kept.scale.submit(1)
    batcher = scale.batcher
    del kept
    assert scale(2) == 8
    assert scale.__wrapped__([3]) == [12]
    assert future.result(LONG_S) == 4
    del scale
    assert batcher.shutdown(timeout=LONG_S)
    gc.collect()
    assert reference() is None
    assert future.result() == 4
    with pytest.raises(lb.InvalidInput, match="whose method 'scale' was called no longer exists"):
        batcher.predict(1)


def test_the_batcher_of_a_method_ends_with_its_object() -> None:
    """When the object goes its batcher closes and its thread ends, although the class stays."""
    one = Scaler(2)
    one.scale(5)
    engine = one.scale.batcher._engine
    del one
    gc.collect()
    assert engine._ended.wait(LONG_S)


def test_methods_of_objects_that_cannot_be_watched_are_refused() -> None:
    """Nobody would know when to end the batcher; the error says what to do. Slots alone are no obstacle."""

    class Slotted:
        __slots__ = ()

        @lb.batched
        def call(self, values: list[int]) -> list[int]:
            return values

    class Watched(Slotted):
        __slots__ = ("__weakref__",)

    with pytest.raises(lb.InvalidInput, match=r"Slotted objects cannot be referred to weakly.*'__weakref__'"):
        Slotted().call(1)
    assert Watched().call(1) == 1


class Namesake:
    """A callable whose attributes are called like those of what wraps it."""

    def __init__(self) -> None:
        self._model = self._fn = self._lock = self._started = self._behind = self._bound = None
        self.stats = self.predict = self.batcher = "mine"

    def __call__(self, values: list[int]) -> list[int]:
        """Double."""
        return [2 * value for value in values]


def test_a_callables_attributes_are_its_own() -> None:
    """They stay where they are, whatever they are called."""
    with lb.batched(Namesake()) as double:
        assert double(2) == 4
        assert double.predict(3) == 6
        assert double.stats().completed == 2
        assert double.__wrapped__.stats == "mine"
