"""Loops live: rows join and leave at every step, each with the right answer, and what fails fails alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lazybatch.core.policies import Continuous, GraphBatching, LazyBatching, Policy
from lazybatch.core.request import Request
from lazybatch.core.task import Completion, Reason, Task
from lazybatch.engine import Engine
from lazybatch.engine.loops import Stepped, run_node
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Row
from lazybatch.metrics import Observer, Outcome
from tests.engine.kit import AddChain, accounts, errors_of, rows, run_dry, served, stepped
from tests.engine.loop_kit import Given, Rounds, RoundsExecutor, admitted, expected, givens


def serve(
    model: Rounds, *given: Given, policy: Policy | None = None, isolate_failures: bool = True, **limits: Any
) -> tuple[Engine, list[Any], RoundsExecutor]:
    """An engine without a thread, and rows handed in together."""
    engine, _ = stepped(model.served(**limits), policy=policy or Continuous(), isolate_failures=isolate_failures)
    return engine, engine.submit(model.name, admitted(model, *given)), model.made[0]


def ends_well(engine: Engine, model: Rounds) -> None:
    """Nothing is left in scheduler, engine and executor."""
    run_dry(engine)
    engine.scheduler.validate()
    assert engine.scheduler.idle
    assert engine._driver._held.members == {}
    assert engine._driver._rows.entries == {}
    assert model.made[0].batches == {}
    accounts(engine.stats())


def test_futures_resolve_at_the_step_at_which_their_row_is_done() -> None:
    """Rows that make one, two and three iterations of the last loop end after as many steps."""
    model = Rounds(2, (1, 2))
    given = givens((5, 1), (6, 2), (7, 3))
    engine, futures, _ = serve(model, *given)
    engine.step()
    done = []
    for _ in given:
        engine.step()
        done.append([future.done() for future in futures])
    assert done == [[True, False, False], [True, True, False], [True, True, True]]
    assert [future.result() for future in futures] == [expected(model, one) for one in given]
    stats = engine.stats()
    assert (stats.steps, stats.iterations, stats.left_early, stats.truncated) == (3, 6, 2, 0)
    assert (stats.dispatches, stats.batches, stats.completed) == (4, 1, 3)
    ends_well(engine, model)


SHAPES: dict[str, Callable[[], Rounds]] = {
    "loop only": lambda: Rounds(2, (0, 2)),
    "chain, loop": lambda: Rounds(3, (1, 3)),
    "loop, chain": lambda: Rounds(3, (0, 1)),
    "chain, loop, chain": lambda: Rounds(4, (1, 2)),
    "loop, loop": lambda: Rounds(3, (0, 1), (1, 3)),
    "chain, loop, chain, loop": lambda: Rounds(5, (1, 2), (3, 5)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", [Continuous, LazyBatching, GraphBatching])
def test_every_shape_gives_the_answers_of_rows_alone(shape: str, policy: Callable[[], Policy]) -> None:
    """Whatever comes before and behind loops, and whoever joins on the way, each row passes what it would alone."""
    model = SHAPES[shape]()
    model.whole = policy is GraphBatching
    loops = len(model.graph.loops)
    given = [Given(k, (1 + k % 4, 1 + k % 3)[:loops], (k % 2 == 0, k % 5 == 0)[:loops]) for k in range(12)]
    engine, futures, _ = serve(model, *given[:4], policy=policy(), max_batch_size=6)
    for one in given[4:]:
        engine.step()
        futures += engine.submit(model.name, admitted(model, one))
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, one) for one in given]


def test_newcomers_join_a_loop_that_comes_first_before_its_next_step() -> None:
    """They are opened and merged at once; the books count a sub-batch and a merge, and no iteration is lost."""
    model = Rounds(2, (0, 1))
    first, second = Given(3, (4,)), Given(4, (2,), (True,))
    engine, futures, executor = serve(model, first)
    engine.step()
    futures += engine.submit(model.name, admitted(model, second))
    engine.step()
    assert executor.calls[2:5] == [("open", 1, 1), ("merge", 0, 1), ("run", 0, 0)]
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, first), expected(model, second)]
    assert (engine.stats().batches, engine.stats().merges) == (2, 1)


def test_a_loop_that_never_ends_is_cut_off_and_counted() -> None:
    """Rows that are not done when the maximum is reached leave truncated, at the same step as those just done."""
    model = Rounds(2, (0, 1), trips_max=3)
    given = givens((1, 9), (2, 3), (3, 1))
    engine, futures, _ = serve(model, *given)
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, one) for one in given]
    assert [future.result().truncated for future in futures] == [True, False, False]
    assert engine.stats().truncated == 1


def test_whole_batches_wait_for_their_longest_row() -> None:
    """Under graph batching nobody leaves early, and what a row made after it was done counts for nothing."""
    model = Rounds(2, (0, 1), whole=True)
    given = givens((1, 1), (2, 4))
    engine, futures, _ = serve(model, *given, policy=GraphBatching())
    for _ in range(4):
        engine.step()
        assert not any(future.done() for future in futures)
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, one) for one in given]
    assert (engine.stats().left_early, engine.stats().iterations) == (0, 8)


def test_rows_that_wait_for_one_that_is_cancelled_get_their_answers() -> None:
    """In a whole batch the longest row is withdrawn when all others are done: they leave with the next step."""
    for spans in ((0, 1), (0, 2)):
        model = Rounds(2, spans, whole=True)
        given = givens((1, 1), (2, 10**9), (3, 2))
        engine, futures, _ = serve(model, *given, policy=GraphBatching())
        for _ in range(5):
            engine.step()
        assert futures[1].cancel()
        ends_well(engine, model)
        assert errors_of(futures) == [None, "cancelled", None]
        assert [futures[k].result() for k in (0, 2)] == [expected(model, given[k]) for k in (0, 2)]


def test_a_row_cancelled_in_a_loop_makes_room_at_the_next_boundary() -> None:
    """Its place in the batch goes to the next row that waits, and its mates do not notice."""
    model = Rounds(2, (0, 1))
    given = givens((1, 50), (2, 5), (3, 2))
    engine, futures, executor = serve(model, *given, max_batch_size=2)
    engine.step()
    assert len(executor.batches[0].lines) == 2
    assert futures[0].cancel()
    engine.step()
    assert ("evict", 0, 1) in executor.calls
    assert len([line for batch in executor.batches.values() for line in batch.lines]) == 2, "the third is in"
    ends_well(engine, model)
    assert errors_of(futures) == ["cancelled", None, None]
    assert [futures[k].result() for k in (1, 2)] == [expected(model, given[k]) for k in (1, 2)]


def test_the_last_row_cancelled_ends_the_sub_batch() -> None:
    """No further step is made for nobody."""
    model = Rounds(1, (0, 1))
    engine, (future,), executor = serve(model, Given(1, (10**9,)))
    for _ in range(3):
        engine.step()
    assert future.cancel()
    ends_well(engine, model)
    assert executor.calls[-1] == ("discard", 0, 0)


@pytest.mark.parametrize("bad", [(0, 0), (1, 0), (1, 2), (2, 0)])
def test_a_row_whose_step_raises_fails_alone(bad: tuple[int, int]) -> None:
    """Wherever it makes its batch fail, the others are run again and get their answers."""
    model = Rounds(3, (1, 2))
    given = [Given(1, (3,)), Given(2, (4,), bad=bad), Given(3, (5,)), Given(4, (1,))]
    engine, futures, _ = serve(model, *given)
    ends_well(engine, model)
    assert errors_of(futures) == [None, "ExecutionError", None, None]
    assert [futures[k].result() for k in (0, 2, 3)] == [expected(model, given[k]) for k in (0, 2, 3)]
    error = futures[1].exception()
    assert f"'rounds', node 'node{bad[0]}': ValueError: row 2 cannot bear node {bad[0]}" in str(error)
    assert engine.stats().failed == 1


def test_without_isolation_the_step_fails_all_its_rows() -> None:
    """isolate_failures=False: no second run. Who had left before keeps the answer."""
    model = Rounds(1, (0, 1))
    given = [Given(1, (1,)), Given(2, (9,), bad=(0, 1)), Given(3, (3,))]
    engine, _ = stepped(model.served(), policy=Continuous(), isolate_failures=False)
    futures = engine.submit(model.name, admitted(model, *given))
    ends_well(engine, model)
    assert errors_of(futures) == [None, "ExecutionError", "ExecutionError"]
    assert engine.stats().retried == 0


@pytest.mark.parametrize(
    ("call", "spans", "errors", "text"),
    [
        ("leave", (1, 2), ["ExecutionError"] * 3, "taking rows out of a loop failed"),
        ("split", (0, 1), ["ExecutionError"] * 3, "splitting a sub-batch failed"),
        ("close", (1, 2), [None, "ExecutionError", "ExecutionError"], "RuntimeError: close is broken"),
    ],
)
def test_an_executor_that_cannot_follow_fails_the_rows_concerned(
    call: str, spans: tuple[int, int], errors: list[str | None], text: str
) -> None:
    """Rows the executor cannot take out, split off or scatter end with the reason; the next ones are served."""
    model = Rounds(2, spans)
    given = givens((1, 1), (2, 3), (3, 3))
    engine, futures, executor = serve(model, *given)
    executor.broken = {call}
    ends_well(engine, model)
    assert errors_of(futures) == errors
    assert text in str(futures[2].exception())
    executor.broken = set()
    futures = engine.submit(model.name, admitted(model, *given))
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, one) for one in given]


def test_newcomers_that_cannot_be_merged_end_with_those_they_should_have_joined() -> None:
    """A node that cannot begin has failed; everybody is run again by themselves, and nothing stays behind."""
    model = Rounds(1, (0, 1))
    first, second = Given(3, (4,)), Given(4, (2,))
    engine, futures, executor = serve(model, first)
    engine.step()
    executor.broken = {"merge"}
    futures += engine.submit(model.name, admitted(model, second))
    engine.step()
    executor.broken = set()
    ends_well(engine, model)
    assert [future.result() for future in futures] == [expected(model, first), expected(model, second)]
    assert engine.stats().retried == 2


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("cancelled", [(), (0,), (2,), (0, 1), (2, 3)])
def test_newcomers_that_cannot_be_gathered_cost_the_running_loop_nothing(
    isolate: bool, cancelled: tuple[int, ...]
) -> None:
    """Those in the loop go on from where they stood, and no step of theirs is made again; the newcomers are run again
    by themselves. Rows that are withdrawn at that moment, on either side, are gone."""
    model = Rounds(1, (0, 1))
    given = givens((3, 9), (4, 7), (5, 2), (6, 3))
    engine, futures, executor = serve(model, *given[:2], isolate_failures=isolate)
    engine.step()
    engine.step()
    futures += engine.submit(model.name, admitted(model, *given[2:]))
    opened = executor.open

    def broken(*arguments: Any) -> None:
        for number in cancelled:
            futures[number].cancel()
        while len(engine._mailbox):
            engine._driver._handle(engine._mailbox.next(), engine._clock.now_ns())
        raise MemoryError("no room for newcomers")

    executor.open = broken  # type: ignore[method-assign]
    engine.step()
    executor.open = opened  # type: ignore[method-assign]
    ends_well(engine, model)
    for number, (future, one) in enumerate(zip(futures, given, strict=True)):
        if number in cancelled:
            assert future.cancelled()
        elif number < 2 or isolate:
            assert future.result() == expected(model, one)
        else:
            assert "MemoryError: no room for newcomers" in str(future.exception())
    stats = engine.stats()
    newcomers = 2 - sum(number >= 2 for number in cancelled)
    assert (stats.retried, stats.failed) == ((newcomers, 0) if isolate else (0, newcomers))


def test_an_eviction_that_fails_in_a_loop_fails_the_rows_that_stayed() -> None:
    """Whatever else the scheduler had decided of that sub-batch is void, and the books still balance."""
    model = Rounds(3, (1, 2))
    engine, futures, executor = serve(model, *givens((1, 5), (2, 6), (3, 7)))
    engine.step()
    engine.step()
    executor.broken = {"evict", "discard"}
    futures[0].cancel()
    engine.step()
    executor.broken = set()
    executor.batches.clear()
    ends_well(engine, model)
    assert errors_of(futures) == ["cancelled", "ExecutionError", "ExecutionError"]


def test_shutdown_without_drain_ends_rows_in_endless_loops() -> None:
    """At the next boundary nothing is left in the executor, and every future has failed with the reason."""
    model = Rounds(3, (1, 2))
    engine, futures, _ = serve(model, *givens((1, 10**9), (2, 10**9), (3, 1)))
    for _ in range(4):
        engine.step()
    futures += engine.submit(model.name, admitted(model, Given(4, (10**9,))))
    engine.step()
    assert engine.shutdown(drain=False)
    assert set(errors_of(futures)) <= {"ShuttingDown", None}
    assert model.made[0].ended
    accounts(engine.stats())


def test_a_scheduler_that_fails_mid_loop_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Its rows fail with the reason, their sub-batches are discarded, and the next rows are served."""
    model = Rounds(3, (1, 2))
    engine, futures, executor = serve(model, *givens((1, 5), (2, 6)))
    engine.step()
    engine.step()
    engine.scheduler.complete = None  # type: ignore[assignment, method-assign]
    engine.step()
    assert executor.batches == {}
    futures += engine.submit(model.name, admitted(model, Given(3, (2,))))
    ends_well(engine, model)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError", None]


class Log(Observer):
    """What was reported, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def opened(self, now_ns: int, task: Task) -> None:
        """Note."""
        self.lines.append(f"opened {task.opened} in {task.sub_batch if task.joined is None else task.joined}")

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note."""
        self.lines.append(f"ran {task.node} of {task.sub_batch}")

    def stepped(self, now_ns: int, task: Task, completion: Completion) -> None:
        """Note."""
        split = completion.split
        self.lines.append(f"stepped: {completion.finished} {None if split is None else (split.target, split.requests)}")

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Note."""
        self.lines.append(f"{outcome.value} {request.id}")


def test_observers_see_every_step_before_what_follows_from_it() -> None:
    """Iterations are told with who leaves, ahead of the ends of those rows; nodes outside of loops are no steps."""
    log = Log()
    model = Rounds(2, (0, 1))
    engine, _ = stepped(model.served(), policy=Continuous(), observers=[log])
    futures = engine.submit(model.name, admitted(model, *givens((1, 1), (2, 2))))
    engine.step()
    futures += engine.submit(model.name, admitted(model, Given(3, (1,))))
    ends_well(engine, model)
    assert errors_of(futures) == [None] * 3
    assert log.lines[:4] == ["opened (0, 1) in 0", "ran 0 of 0", "stepped: () (1, (0,))", "ran 1 of 1"]
    assert log.lines[4:] == [
        "completed 0",
        "opened (2,) in 2",
        "ran 0 of 0",
        "stepped: () None",
        "ran 1 of 0",
        "completed 1",
        "completed 2",
    ]


def test_a_static_model_beside_one_with_loops() -> None:
    """Both are served by one engine, each in its own way."""
    chain, model = AddChain(), Rounds(2, (0, 1))
    engine, _ = stepped(served(chain), model.served(), policy=Continuous())
    given = givens((1, 3), (2, 1))
    futures = engine.submit("chain", rows(1, 2)) + engine.submit("rounds", admitted(model, *given))
    run_dry(engine)
    assert [future.result() for future in futures] == [112.0, 113.0, *(expected(model, one) for one in given)]
    assert (engine.stats().models["chain"].steps, engine.stats().models["rounds"].steps) == (0, 3)
    accounts(engine.stats())


def test_trips_that_a_row_knows_reach_the_scheduler() -> None:
    """`Row.trips` becomes `Request.trips`; rows whose trips do not fit the graph fail and harm nobody."""
    model = Rounds(1, (0, 1))
    engine, futures, _ = serve(model, Given(1, (2,), (True,)))
    futures += engine.submit(model.name, [Row(Given(2, (2,)), trips=(2, 3))])
    engine.step()
    (entry,) = engine.scheduler.stack
    assert entry.requests[0].trips == (2,)
    ends_well(engine, model)
    assert errors_of(futures) == [None, "ExecutionError"]
    assert "2 numbers of trips, the graph has 1 loops" in str(futures[1].exception())


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_running_a_node_never_raises(kind: type[BaseException]) -> None:
    """Whatever a step raises is its outcome; listening asks the executor what was emitted, otherwise not."""
    model = Rounds(1, (0, 1))
    executor = model.executor(max_batch_size=2)
    task = Task("rounds", 0, 0, 1, 1, (7,), None, Reason.START_IDLE)
    entered: list[int] = []
    ran = run_node(task, executor, {7: model.admit(Given(1, (3,)))}, False, lambda: entered.append(1))
    assert ran == Stepped()
    assert entered == [1]
    ran = run_node(task._replace(opened=()), executor, None, True, lambda: None)
    assert ran.emitted[7]["iteration"] == 1

    def fail(node: int, rows: int) -> None:
        raise kind("no")

    model.before = fail
    assert type(run_node(task, executor, None, True, lambda: None).error) is kind


def test_an_error_as_result_fails_that_row_alone() -> None:
    """A row that leaves a loop with an exception for a result has failed; those beside it have not."""
    model = Rounds(1, (0, 1))
    engine, futures, executor = serve(model, *givens((1, 1), (2, 1), (3, 2)))
    leave = executor.leave

    def spoilt(sub_batch: int, requests: Any) -> dict[int, Any]:
        return {**leave(sub_batch, requests), 0: ExecutionError("cut off")}

    executor.leave = spoilt  # type: ignore[method-assign]
    ends_well(engine, model)
    assert errors_of(futures) == ["ExecutionError", None, None]
    assert "cut off" in str(futures[0].exception())
