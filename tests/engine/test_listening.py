"""Listening: every step of a row reaches whoever asked for it once, in order, before its result."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lazybatch.core.policies import Continuous, GraphBatching, Policy
from lazybatch.core.request import Request
from lazybatch.engine import Engine, ServedModel, listening
from lazybatch.engine.listening import Heard, Listener
from lazybatch.errors import ExecutionError
from lazybatch.metrics import Observer, Outcome
from tests.engine.kit import LONG_S, accounts, errors_of, run_dry, running, stepped
from tests.engine.loop_kit import Given, Rounds, RoundsExecutor, admitted, expected, steps_of


def listen(engine: Engine, model: Rounds, given: Given) -> tuple[Any, list[int]]:
    """Hand a row in; its future, and the values its steps bring."""
    heard: list[int] = []
    (future,) = engine.submit(model.name, admitted(model, given), sink=lambda step: heard.append(int(step["value"])))
    return future, heard


def test_a_listener_hears_a_step_once() -> None:
    """After a rewind the steps it has heard are passed over."""
    listener = Listener(print)
    steps = [{"x": k} for k in range(5)]
    assert [listener.hears(step) for step in steps[:3]] == [True] * 3
    listener.rewind()
    assert [listener.hears(step) for step in steps] == [False] * 3 + [True] * 2
    listener.rewind()
    assert not listener.hears(steps[0])
    assert not listener.strayed


class Opaque:
    """What is no array and cannot be made one."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        """It raises."""
        raise RuntimeError("opaque")


WIDE = np.linspace(-1, 1, 10_000)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (np.int64(3), np.int64(3), True),
        (np.int64(3), np.int64(4), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        (np.array([1]), np.array([1, 1]), False),
        (np.array([1]), np.array([1.0]), False),
        (np.array([]), np.array([]), True),
        (np.array([1.0, np.nan, np.inf]), np.array([1.0 + 1e-6, np.nan, np.inf]), True),
        (np.array([1.0, np.nan, np.inf]), np.array([1.5, np.nan, np.inf]), False),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), False),
        (np.float32(0.0), np.float32(-1.19e-07), True),
        (np.float32(-1.19e-07), np.float32(0.0), True),
        (np.float32(-1.19e-07), np.float32(-0.7), False),
        (np.zeros(3), np.zeros(3), True),
        (np.zeros(3), np.full(3, -1e-7), True),
        (np.zeros(3), np.array([0.0, 0.0, 0.5]), False),
        (np.float64(10.0), np.float64(10.1005), True),
        (np.float64(10.1005), np.float64(10.0), True),
        (WIDE, WIDE + 1e-6, True),
        (WIDE, -WIDE, False),
        (Opaque(), Opaque(), True),
        (np.array([np.array([1, 2]), None], object), np.array([np.array([1, 2]), None], object), True),
    ],
)
def test_a_step_that_differs_from_what_was_heard_is_noticed(before: Any, after: Any, same: bool) -> None:
    """Whole numbers and texts exactly, floats up to what another batch size does to them, which near zero is all of
    them; what cannot be compared is taken for the same. From the first difference on nothing is heard."""
    listener = Listener(print)
    assert listener.hears({"x": before})
    assert listener.hears({"x": 1})
    listener.rewind()
    assert not listener.hears({"x": after})
    assert listener.strayed is not same
    assert [listener.hears({"x": 1}), listener.hears({"x": 2})] == [False, same]


def test_what_a_listener_does_with_its_steps_is_its_own_affair() -> None:
    """Steps are the listener's to keep and to change: what was heard is remembered apart."""
    listener, step = Listener(print), {"x": np.array([1, 2, 3])}
    listener.hears(step)
    step["x"][:] = 0
    listener.rewind()
    assert not listener.hears({"x": np.array([1, 2, 3])})
    assert not listener.strayed
    assert not listener.short
    listener.rewind()
    assert listener.short


def test_a_sink_that_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also when it raises what is no ordinary exception; it is logged."""
    heard: list[Any] = []

    def broken(step: Any) -> None:
        raise SystemExit("no")

    Heard([(Listener(broken), {"x": 1}), (Listener(heard.append), {"x": 2})]).tell()
    assert heard == [{"x": 2}]
    assert "could not be passed on" in caplog.text


def test_a_log_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink raises, and so does the log that is told so: whoever listens next hears its step."""
    heard: list[Any] = []

    def fail(*_: object, **__: object) -> None:
        raise SystemExit("no")

    monkeypatch.setattr(listening._log, "error", fail)
    Heard([(Listener(fail), {"x": 1}), (Listener(heard.append), {"x": 2})]).tell()
    assert heard == [{"x": 2}]


@pytest.mark.parametrize("policy", [Continuous(), GraphBatching()])
def test_steps_come_as_they_are_made_and_only_to_those_who_listen(policy: Policy) -> None:
    """Every step in order; the executor is asked only while somebody in the sub-batch listens."""
    model = Rounds(4, (0, 1), (2, 3), whole=isinstance(policy, GraphBatching))
    engine, _ = stepped(model.served(), policy=policy)
    given = [Given(1, (4, 2)), Given(2, (2, 3)), Given(3, (6, 1))]
    silent = engine.submit(model.name, admitted(model, given[0]))
    future, heard = listen(engine, model, given[1])
    other = engine.submit(model.name, admitted(model, given[2]))
    engine.step()
    assert heard == steps_of(model, given[1])[:1]
    run_dry(engine)
    assert heard == steps_of(model, given[1])
    assert [one.result() for one in (*silent, future, *other)] == [expected(model, one) for one in given]
    asked = [call for call in model.made[0].calls if call[0] == "emitted"]
    assert 5 <= len(asked) < engine.stats().steps + model.whole


def test_without_listeners_nobody_is_asked() -> None:
    """Streaming costs nothing where it is not used."""
    model = Rounds(1, (0, 1))
    engine, _ = stepped(model.served(), policy=Continuous())
    engine.submit(model.name, admitted(model, Given(1, (4,))))
    run_dry(engine)
    assert not any(call[0] == "emitted" for call in model.made[0].calls)


def test_a_row_that_is_run_again_repeats_no_step() -> None:
    """Its batch fails in the middle; run again alone it makes the same steps, and only the new ones are heard."""
    model = Rounds(2, (0, 2))
    engine, _ = stepped(model.served(), policy=Continuous())
    given = Given(1, (5,))
    future, heard = listen(engine, model, given)
    bad = engine.submit(model.name, admitted(model, Given(2, (9,), bad=(1, 2))))
    run_dry(engine)
    assert errors_of([future, *bad]) == [None, "ExecutionError"]
    assert heard == steps_of(model, given)
    assert engine.stats().retried == 2


class Fickle(RoundsExecutor):
    """Runs its rows another way once one has failed. after: the iteration from which on; trips: how many it makes."""

    after = 0
    trips: int | None = None

    def run(self, sub_batch: int, node: int) -> Collection[int] | None:
        """Another value after a failure."""
        failed = any(call[0] == "discard" for call in self.calls)
        for line in self.batches[sub_batch].lines:
            if failed and line.iteration == self.after and node == 0:
                self.batches[sub_batch].values += 1
            if failed and self.trips is not None:
                line.given = replace(line.given, trips=(self.trips,))
        return super().run(sub_batch, node)


def fickle(after: int, trips: int | None = None) -> tuple[Rounds, Engine, list[Outcome]]:
    """An engine with such a model; and how rows ended."""
    ends: list[Outcome] = []

    class Ends(Observer):
        """Notes."""

        def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
            """It."""
            ends.append(outcome)

    model = Rounds(2, (0, 2))
    served = model.served()
    one = Fickle(model, 16)
    one.after, one.trips = after, trips
    model.made[0] = one
    engine, _ = stepped(ServedModel(served.spec, one), policy=Continuous(), observers=[Ends()])
    return model, engine, ends


def test_a_row_that_goes_another_way_when_it_is_run_again_fails() -> None:
    """What was heard cannot be taken back, and is not gone on with: the stream ends with the reason at the first
    difference, the row leaves its sub-batch, and a mate nobody listens to gets its answer."""
    model, engine, ends = fickle(after=1)
    given = Given(1, (5,))
    future, heard = listen(engine, model, given)
    bad = engine.submit(model.name, admitted(model, Given(2, (9,), bad=(1, 3))))
    run_dry(engine)
    assert heard == steps_of(model, given)[:3]
    error = future.exception()
    assert isinstance(error, ExecutionError)
    assert "run again" in str(error)
    assert "step 2 " in str(error)
    assert errors_of(bad) == ["ExecutionError"]
    assert ends == [Outcome.FAILED, Outcome.FAILED]
    assert model.made[0].batches == {}
    assert not engine._driver._rows.entries
    accounts(engine.stats())
    assert engine.submit(model.name, admitted(model, Given(3, (1,))))
    run_dry(engine)
    assert engine.stats().completed == 1


def test_a_row_that_goes_another_way_behind_what_was_heard_is_not_noticed() -> None:
    """Whoever listens has heard nothing else: the steps that come are those of the answer."""
    model, engine, ends = fickle(after=3)
    future, heard = listen(engine, model, Given(1, (5,)))
    engine.submit(model.name, admitted(model, Given(2, (9,), bad=(1, 3))))
    run_dry(engine)
    assert heard == list(future.result().steps[0])
    assert ends == [Outcome.COMPLETED, Outcome.FAILED]


def test_a_row_that_ends_before_what_was_heard_fails() -> None:
    """Three of its steps were heard, and now it makes two: the answer is not that of what was heard."""
    model, engine, ends = fickle(after=99, trips=2)
    future, heard = listen(engine, model, Given(1, (5,)))
    engine.submit(model.name, admitted(model, Given(2, (9,), bad=(1, 3))))
    run_dry(engine)
    assert len(heard) == 3
    assert "after 2 steps" in str(future.exception())
    assert ends == [Outcome.FAILED, Outcome.COMPLETED]
    accounts(engine.stats())


@pytest.mark.parametrize("broken", [(), ("close",)])
def test_a_row_that_strays_in_its_last_step_ends_once(
    broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Its last step is another than was heard: it fails for that, once, whatever comes of its result."""
    model, engine, ends = fickle(after=1, trips=2)
    model.made[0].broken = set(broken)
    future, heard = listen(engine, model, Given(1, (5,)))
    engine.submit(model.name, admitted(model, Given(2, (9,), bad=(1, 3))))
    run_dry(engine)
    assert len(heard) == 3
    assert "made another step 2 than was heard" in str(future.exception())
    assert ends == [Outcome.FAILED, Outcome.FAILED if broken else Outcome.COMPLETED]
    assert "resolved from outside" not in caplog.text
    assert not engine._driver._rows.entries
    accounts(engine.stats())


def test_an_executor_that_cannot_say_what_was_emitted_fails_the_step() -> None:
    """The row ends with the reason; rows nobody listens to are run again and do well."""
    model = Rounds(1, (0, 1))
    engine, _ = stepped(model.served(), policy=Continuous())
    given = Given(1, (3,))
    silent = engine.submit(model.name, admitted(model, given))
    future, heard = listen(engine, model, Given(2, (3,)))
    model.made[0].broken = {"emitted"}
    run_dry(engine)
    assert heard == []
    assert errors_of([*silent, future]) == [None, "ExecutionError"]
    assert "emitted is broken" in str(future.exception())
    assert silent[0].result() == expected(model, given)


def test_all_steps_are_there_before_the_result_with_threads() -> None:
    """Steps and answers take one way, so whoever has the result has every step."""
    model = Rounds(2, (0, 1))
    with running(model.served(), policy=Continuous()) as engine:
        given = [Given(k, (1 + k % 7,)) for k in range(40)]
        listened = [listen(engine, model, one) for one in given]
        for one, (future, heard) in zip(given, listened, strict=True):
            assert future.result(LONG_S) == expected(model, one)
            assert heard == steps_of(model, one)
