"""The driver, turn by turn on a stepped clock: rows leave, fail and join without harming their mates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lazybatch.core.infq import PriorityLevel
from lazybatch.core.policies import GraphBatching, LazyBatching, Start, View, Wait
from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Reason, Task
from lazybatch.engine import Engine, SteppedClock
from lazybatch.errors import ExecutionError
from lazybatch.metrics import Observer, Outcome
from tests.engine.kit import AddChain, accounts, errors_of, rows, run_dry, served, stepped


def test_a_batch_runs_node_by_node_and_resolves_at_its_end() -> None:
    """Rows submitted together run as one sub-batch, one node per step, and get their own results."""
    model = AddChain()
    engine, _ = stepped(served(model))
    futures = engine.submit("chain", rows(1, 2, 3))
    assert engine.step()
    assert engine.step()
    assert not any(future.done() for future in futures)
    assert futures[0].cancel() is True
    run_dry(engine)
    assert [future.result() for future in futures[1:]] == [113.0, 114.0]
    stats = engine.stats()
    assert (stats.batches, stats.dispatches, stats.completed, stats.cancelled) == (1, 3, 2, 1)
    accounts(stats)


def test_a_cancelled_row_leaves_at_the_next_node_boundary() -> None:
    """Cancelling in flight takes the row out of the executor before the next node; its mates go on."""
    sizes: list[int] = []
    model = AddChain(before=lambda node, values: sizes.append(len(values)))
    engine, _ = stepped(served(model))
    futures = engine.submit("chain", rows(1, 2, 3))
    engine.step()
    assert futures[1].cancel()
    assert futures[1].cancelled()
    run_dry(engine)
    assert sizes == [3, 2, 2]
    assert [futures[0].result(), futures[2].result()] == [112.0, 114.0]


def test_cancelling_every_row_ends_the_sub_batch() -> None:
    """A sub-batch without rows is discarded, no further node runs, and the engine is idle."""
    model = AddChain()
    engine, _ = stepped(served(model))
    futures = engine.submit("chain", rows(1, 2))
    engine.step()
    assert all(future.cancel() for future in futures)
    assert not engine.step()
    assert model.made[0].batches == {}
    assert engine.scheduler.idle
    engine.scheduler.validate()
    assert engine.stats().dispatches == 1


def test_a_row_cancelled_in_the_queue_is_never_run() -> None:
    """It gives its place up at once: the next row is admitted although no turn was taken in between."""
    model = AddChain()
    engine, _ = stepped(served(model, max_batch_size=2, queue_capacity=2))
    futures = engine.submit("chain", rows(1, 2))
    assert errors_of(engine.submit("chain", rows(9))) == ["Overloaded"]
    futures[0].cancel()
    futures += engine.submit("chain", rows(3))
    run_dry(engine)
    assert errors_of(futures) == ["cancelled", None, None]
    assert engine.stats().batches == 1
    assert engine.stats().rejected["overloaded"] == 1


def fail_on(bad: float, node: int) -> Callable[[int, np.ndarray], None]:
    """A node that raises while the bad row is in its batch."""
    offset = sum(10**k for k in range(node))

    def before(at: int, values: np.ndarray) -> None:
        if at == node and bad + offset in values:
            raise ValueError(f"cannot bear {bad}")

    return before


@pytest.mark.parametrize("node", [0, 1, 2])
def test_one_bad_row_fails_alone(node: int) -> None:
    """Wherever it makes its batch fail, the bad row gets the error with its cause, and every mate its result."""
    model = AddChain(before=fail_on(5, node))
    engine, _ = stepped(served(model))
    futures = engine.submit("chain", rows(4, 5, 6))
    run_dry(engine)
    assert [futures[0].result(), futures[2].result()] == [115.0, 117.0]
    error = futures[1].exception()
    assert isinstance(error, ExecutionError)
    assert isinstance(error.__cause__, ValueError)
    assert f"'chain', node 'add{node}': ValueError: cannot bear 5" in str(error)
    stats = engine.stats()
    assert (stats.completed, stats.failed, stats.retried) == (2, 1, 3)
    accounts(stats)


def test_without_isolation_the_batch_fails_together_each_row_with_its_own_error() -> None:
    """isolate_failures=False: no second run, and no exception object is shared between rows."""
    engine, _ = stepped(served(AddChain(before=fail_on(5, 1))), isolate_failures=False)
    futures = engine.submit("chain", rows(4, 5))
    run_dry(engine)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError"]
    assert futures[0].exception() is not futures[1].exception()
    assert engine.stats().retried == 0


@pytest.mark.parametrize("call", ["open", "close"])
def test_an_executor_that_fails_to_open_or_close_fails_its_rows_only(call: str) -> None:
    """Gathering and scattering are part of the run: their errors are the rows', and the next rows are served."""
    model = AddChain()
    engine, _ = stepped(served(model))
    model.made[0].broken = {call}
    futures = engine.submit("chain", rows(1, 2))
    run_dry(engine)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError"]
    model.made[0].broken = set()
    (after,) = engine.submit("chain", rows(3))
    run_dry(engine)
    assert after.result() == 114.0
    engine.scheduler.validate()
    accounts(engine.stats())


def test_a_row_without_result_and_a_row_with_an_exception_as_result_fail_alone() -> None:
    """Results are taken per request: a hole or an exception instance in them is that row's failure."""
    model = AddChain(nodes=1)
    one = served(model)
    close = model.made[0].close

    def spoilt(sub_batch: int) -> dict[int, Any]:
        results = close(sub_batch)
        first, second, *_ = results
        del results[first]
        results[second] = KeyError("row")
        return results

    model.made[0].close = spoilt  # type: ignore[method-assign]
    engine, _ = stepped(one)
    futures = engine.submit("chain", rows(1, 2, 3))
    run_dry(engine)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError", None]
    assert "no result" in str(futures[0].exception())
    assert isinstance(futures[1].exception().__cause__, KeyError)  # type: ignore[union-attr]


def preempting(**limits: Any) -> tuple[AddChain, Engine, SteppedClock]:
    """An engine under `lazy`, with lax targets: newcomers always preempt."""
    model = AddChain()
    engine, clock = stepped(served(model, **limits), policy=LazyBatching())
    return model, engine, clock


def test_newcomers_preempt_catch_up_and_merge() -> None:
    """A later row runs the first node alone, joins the earlier one, and both finish in one sub-batch."""
    _, engine, _ = preempting()
    first = engine.submit("chain", rows(1), sla_ns=10**12)
    engine.step()
    second = engine.submit("chain", rows(2), sla_ns=10**12)
    run_dry(engine)
    assert [first[0].result(), second[0].result()] == [112.0, 113.0]
    stats = engine.stats()
    assert (stats.preemptions, stats.merges, stats.batches, stats.dispatches) == (1, 1, 2, 4)


def test_a_parked_row_is_cancelled_without_disturbing_the_newcomer() -> None:
    """The parked sub-batch ends when its only row is withdrawn; the newcomer goes on by itself."""
    model, engine, _ = preempting()
    (first,) = engine.submit("chain", rows(1), sla_ns=10**12)
    engine.step()
    engine.step()
    (second,) = engine.submit("chain", rows(2), sla_ns=10**12)
    engine.step()
    assert first.cancel()
    run_dry(engine)
    assert second.result() == 113.0
    assert model.made[0].batches == {}
    assert engine.stats().merges == 0


def test_a_merge_that_fails_fails_the_two_it_should_have_joined() -> None:
    """When the executor cannot join, the rows of both end with the reason, and later rows are served."""
    model, engine, _ = preempting()
    futures = engine.submit("chain", rows(1), sla_ns=10**12)
    engine.step()
    model.made[0].broken = {"merge"}
    futures += engine.submit("chain", rows(2), sla_ns=10**12)
    run_dry(engine)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError"]
    assert "merging" in str(futures[0].exception())
    model.made[0].broken = set()
    (after,) = engine.submit("chain", rows(3))
    run_dry(engine)
    assert after.result() == 114.0
    engine.scheduler.validate()
    accounts(engine.stats())


def test_an_eviction_that_fails_fails_the_rows_that_stayed() -> None:
    """An executor that cannot take a row out cannot be trusted with the rest of that sub-batch."""
    model = AddChain()
    engine, _ = stepped(served(model))
    futures = engine.submit("chain", rows(1, 2))
    engine.step()
    model.made[0].broken = {"evict", "discard"}
    futures[0].cancel()
    run_dry(engine)
    assert errors_of(futures) == ["cancelled", "ExecutionError"]
    engine.scheduler.validate()
    accounts(engine.stats())


class Broken:
    """A policy that lets the scheduler fail, once or always."""

    needs_table = False

    def __init__(self, times: int) -> None:
        self.times = times

    def decide(self, view: View, now: int) -> Start | Wait | None:
        """Raises what the scheduler does not catch, then behaves."""
        if self.times > 0:
            self.times -= 1
            raise KeyboardInterrupt("policy")
        return GraphBatching().decide(view, now)


def test_a_scheduler_that_fails_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """The rows it held fail with the reason; the engine lives on with a fresh scheduler and serves the next row."""
    model = AddChain()
    engine, _ = stepped(served(model), policy=Broken(1))
    futures = engine.submit("chain", rows(1, 2))
    run_dry(engine)
    assert errors_of(futures) == ["ExecutionError", "ExecutionError"]
    assert "the scheduler failed: KeyboardInterrupt" in str(futures[0].exception())
    (after,) = engine.submit("chain", rows(3))
    run_dry(engine)
    assert after.result() == 114.0
    accounts(engine.stats())


def test_a_policy_that_waits_for_arrivals_cannot_hang_a_shutdown() -> None:
    """Once no row can come, a policy that waits for one is overruled; the row is served and the engine ends."""

    class Waiting:
        needs_table = False

        def decide(self, view: View, now: int) -> Wait:
            return Wait(None)

    engine, _ = stepped(served(AddChain()), policy=Waiting())
    futures = engine.submit("chain", rows(1))
    assert not engine.step()
    assert engine.shutdown()
    assert errors_of(futures) == [None]


def test_queue_timeouts_reject_or_demote() -> None:
    """A level that rejects ends its rows as expired when their wait is over, with the wait in the error."""
    levels = {1: PriorityLevel(1_000_000, "reject"), 2: PriorityLevel(1_000_000, "demote")}
    model = AddChain(nodes=1, before=lambda *_: None)
    engine, clock = stepped(served(model, max_batch_size=1, levels=levels), policy=GraphBatching())
    model.before = lambda *_: clock.advance(2_000_000)
    futures = [engine.submit("chain", rows(k), priority=priority)[0] for k, priority in ((0, 3), (1, 1), (2, 2))]
    run_dry(engine)
    assert errors_of(futures) == [None, "DeadlineExceeded", None]
    assert "2.0 ms in the queue" in str(futures[1].exception())
    assert engine.stats().expired == 1
    accounts(engine.stats())


def test_hopeless_rows_fail_under_a_reason_of_their_own() -> None:
    """Where late rows are dropped: at the moment they are hopeless, with the wait and the target in the error."""
    model = AddChain(nodes=1)
    alone_ns = model.table().whole_ns(1)
    engine, clock = stepped(
        served(model, late="drop", sla_ns=alone_ns + 2_000_000), policy=GraphBatching(window_ns=60_000_000)
    )
    now = clock.now_ns()
    (dropped,), (kept,) = (engine.submit("chain", rows(k), sla_ns=sla_ns) for k, sla_ns in ((1, None), (2, 1 << 60)))
    assert not engine.step()
    assert engine.next_wakeup_ns() == now + 2_000_001
    clock.advance(2_000_000)
    assert not engine.step()
    assert not dropped.done()
    clock.advance(1)
    assert not engine.step()
    assert errors_of([dropped]) == ["DeadlineExceeded"]
    assert "waited 2.0 ms in the queue and could no longer be done" in str(dropped.exception())
    engine.close(drain=True)
    run_dry(engine)
    assert errors_of([kept]) == [None]
    stats = engine.stats()
    assert (stats.dropped, stats.expired, stats.completed, stats.violations) == (1, 0, 1, 0)
    accounts(stats)


def test_a_row_that_is_hopeless_when_it_comes_is_accepted_and_fails_at_once() -> None:
    """Submit raises nothing; the row never runs, its mates do, and it no longer takes a place in the queue."""
    model = AddChain(nodes=1)
    alone_ns = model.table().whole_ns(1)
    engine, _ = stepped(served(model, late="drop", queue_capacity=2, max_batch_size=2))
    (hopeless,) = engine.submit("chain", rows(1), sla_ns=alone_ns - 1)
    (limited,) = engine.submit("chain", rows(2), limit_ns=1_000 + alone_ns)
    assert engine.step()
    assert errors_of([hopeless, limited]) == ["DeadlineExceeded", None]
    assert not hopeless.cancel()
    stats = engine.stats()
    assert (stats.accepted, stats.dropped, stats.completed, stats.queued) == (2, 1, 1, 0)
    accounts(stats)


def test_hard_limits_end_waiting_and_running_rows() -> None:
    """A limit ends a row wherever it is; the message says where; its mates are not disturbed."""
    model = AddChain()
    engine, clock = stepped(served(model, max_batch_size=2))
    now = clock.now_ns()
    (running,) = engine.submit("chain", rows(1), limit_ns=now + 5_000_000)
    (mate,) = engine.submit("chain", rows(2))
    (waiting,) = engine.submit("chain", rows(3), limit_ns=now + 5_000_000)
    engine.step()
    assert engine.next_wakeup_ns() == now + 5_000_000
    clock.advance(5_000_000)
    run_dry(engine)
    assert errors_of([running, mate, waiting]) == ["DeadlineExceeded", None, "DeadlineExceeded"]
    assert "the limit of 5.0 ms passed while it was being run" in str(running.exception())
    assert "while it waited in the queue" in str(waiting.exception())
    assert engine.stats().expired == 2
    accounts(engine.stats())


class Log(Observer):
    """Writes down what it is told; ``rude`` makes every hook raise."""

    def __init__(self, rude: bool = False) -> None:
        self.lines: list[str] = []
        self.rude = rude

    def _note(self, line: str) -> None:
        self.lines.append(line)
        if self.rude:
            raise SystemExit("observer")

    def arrived(self, now_ns: int, request: Request) -> None:
        """Note."""
        self._note(f"arrived {request.id}")

    def opened(self, now_ns: int, task: Task) -> None:
        """Note."""
        self._note(f"opened {task.opened}")

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Note."""
        self._note(f"ran {task.node}{' failed' if failed else ''}")

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Note."""
        self._note(f"{outcome.value} {request.id}")


@pytest.mark.parametrize("rude", [False, True])
def test_observers_see_everything_and_can_break_nothing(rude: bool) -> None:
    """Every arrival, node and end is reported in order; an observer that raises only loses itself."""
    log = Log(rude)
    engine, _ = stepped(served(AddChain(nodes=2), max_batch_size=2, queue_capacity=2), observers=[log])
    futures = engine.submit("chain", rows(1, 2))
    futures += engine.submit("chain", rows(3))
    engine.step()
    futures[1].cancel()
    run_dry(engine)
    assert errors_of(futures) == [None, "cancelled", "Overloaded"]
    assert log.lines == [
        "arrived 0",
        "arrived 1",
        "rejected 2",
        "opened (0, 1)",
        "ran 0",
        "cancelled 1",
        "ran 1",
        "completed 0",
    ]


def test_rows_are_let_go_when_they_end() -> None:
    """After the end neither the engine nor the future keeps the inputs or each other alive."""
    engine, _ = stepped(served(AddChain()))
    (future,) = engine.submit("chain", rows(1))
    run_dry(engine)
    assert future.result() == 112.0
    assert engine._driver._rows.entries == {}
    assert engine._driver._held.members == {}
    assert engine._ledger.live == {}
    assert future._withdraw is None


def test_several_models_share_one_engine() -> None:
    """Rows of two models never share a sub-batch, and are counted apart."""
    one, two = AddChain(name="one"), AddChain(2, name="two")
    engine, _ = stepped(served(one), served(two))
    first = engine.submit("one", rows(1, 2))
    second = engine.submit("two", rows(1))
    run_dry(engine)
    assert [future.result() for future in first + second] == [112.0, 113.0, 12.0]
    stats = engine.stats()
    assert {name: part.completed for name, part in stats.models.items()} == {"one": 2, "two": 1}
    assert stats.reasons[Reason.CONTINUE.value] == 3
    accounts(stats)


def test_padding_is_counted_and_dropped() -> None:
    """Executed sizes are padded up to an allowed one; the padding is metered, and no result comes of it."""
    engine, _ = stepped(served(AddChain(nodes=2), max_batch_size=4, allowed_sizes=(1, 4)))
    futures = engine.submit("chain", rows(1, 2, 3))
    run_dry(engine)
    assert [future.result() for future in futures] == [12.0, 13.0, 14.0]
    assert engine.stats().padding_rows == 2


def test_observers_see_preemptions_and_merges() -> None:
    """The two events that make node-level scheduling are reported with their sub-batches."""
    seen: list[str] = []

    class Marks(Observer):
        def preempted(self, now_ns: int, task: Task) -> None:
            seen.append(f"{task.preempted} for {task.sub_batch}")

        def merged(self, now_ns: int, merge: Merge) -> None:
            seen.append(f"{merge.source} into {merge.target}")

    engine, _ = stepped(served(AddChain()), policy=LazyBatching(), observers=[Marks()])
    engine.submit("chain", rows(1), sla_ns=10**12)
    engine.step()
    engine.submit("chain", rows(2), sla_ns=10**12)
    run_dry(engine)
    assert seen == ["0 for 1", "1 into 0"]


def test_a_row_the_scheduler_refuses_is_not_lost() -> None:
    """Admission is exact, so the scheduler has room; should it ever refuse, the row fails instead of hanging."""
    engine, _ = stepped(served(AddChain(), max_batch_size=1, queue_capacity=1))
    engine.scheduler.add(Request(10**9, "chain", 0))
    futures = engine.submit("chain", rows(1))
    engine.step()
    assert errors_of(futures) == ["ExecutionError"]
    assert "refused an admitted row: Overloaded" in str(futures[0].exception())


def test_a_scheduler_that_will_not_run_accepted_rows_cannot_hang_a_shutdown() -> None:
    """While closing, rows that nothing will ever start are a fault of the scheduler: they fail and the engine ends."""
    engine, _ = stepped(served(AddChain()))
    futures = engine.submit("chain", rows(1))
    engine.scheduler.schedule = lambda now: None  # type: ignore[method-assign]
    assert engine.shutdown()
    assert errors_of(futures) == ["ExecutionError"]
    assert "the scheduler failed: InvariantError" in str(futures[0].exception())
    accounts(engine.stats())


def test_a_message_that_fails_does_not_lose_the_others() -> None:
    """Rows whose arrival was not yet handled when the scheduler failed end as well, and their message is harmless."""
    engine, _ = stepped(served(AddChain()))
    first = engine.submit("chain", rows(1))
    second = engine.submit("chain", rows(2))

    def broken(request: Request) -> None:
        raise SystemExit("add")

    engine.scheduler.add = broken  # type: ignore[method-assign]
    run_dry(engine)
    assert errors_of(first + second) == ["ExecutionError", "ExecutionError"]
    third = engine.submit("chain", rows(3))
    run_dry(engine)
    assert third[0].result() == 114.0
    assert engine._driver._rows.entries == {}
