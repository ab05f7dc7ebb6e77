"""Listening: every step of a row reaches whoever asked for it once, in order, before its result."""

from __future__ import annotations

from typing import Any

import pytest

from lazybatch.core.policies import Continuous, GraphBatching, Policy
from lazybatch.engine import Engine
from lazybatch.engine.listening import Heard, Listener
from tests.engine.kit import LONG_S, errors_of, run_dry, running, stepped
from tests.engine.loop_kit import Given, Rounds, admitted, expected, steps_of


def listen(engine: Engine, model: Rounds, given: Given) -> tuple[Any, list[int]]:
    """Hand a row in; its future, and the values its steps bring."""
    heard: list[int] = []
    (future,) = engine.submit(model.name, admitted(model, given), sink=lambda step: heard.append(int(step["value"])))
    return future, heard


def test_a_listener_hears_a_step_once() -> None:
    """After a rewind the steps it has heard are passed over."""
    listener = Listener(print)
    assert [listener.hears() for _ in range(3)] == [True] * 3
    listener.rewind()
    assert [listener.hears() for _ in range(5)] == [False] * 3 + [True] * 2
    listener.rewind()
    assert not listener.hears()


def test_a_sink_that_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also when it raises what is no ordinary exception; it is logged."""
    heard: list[Any] = []

    def broken(step: Any) -> None:
        raise SystemExit("no")

    Heard([(Listener(broken), {"x": 1}), (Listener(heard.append), {"x": 2})]).tell()
    assert heard == [{"x": 2}]
    assert "could not be passed on" in caplog.text


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
