"""The engine's own time: told from the nodes' whatever these take, found again where it is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.latency import EngineTime
from lazybatch.core.task import Reason, Task
from lazybatch.errors import ExecutionError
from lazybatch.executors.base import Row
from lazybatch.profiler import Progress, dispatching
from lazybatch.profiler.dispatching import Gap, engine_time
from tests.small_program import ROOM, write_program
from tests.test_profiler import MS, Clock, SpyExecutor, SpyModel, run


class Gathering(SpyExecutor):
    """Opening a sub-batch takes 1 ms and 0.1 ms per row, ending one 0.5 ms: what the engine spends around nodes."""

    def open(self, sub_batch: int, rows: Any, padded_rows: int) -> None:
        """See `Executor.open`."""
        self.model.clock.advance(MS + MS // 10 * len(rows))
        super().open(sub_batch, rows, padded_rows)

    def close(self, sub_batch: int) -> dict[int, Any]:
        """See `Executor.close`."""
        self.model.clock.advance(MS // 2)
        return super().close(sub_batch)


def measured(model: SpyModel, executor: SpyExecutor, budget_ns: int = 1_000 * MS, size: int = 4) -> EngineTime:
    """The engine's time on the model's own clock."""
    return engine_time(model, executor, [Row(k) for k in range(4)], size, budget_ns=budget_ns, clock_ns=model.clock)


def test_what_moving_rows_takes_is_found() -> None:
    """Opening and ending come to a fixed part and one per row; between nodes nothing passes; nodes do not count."""
    for slower in (1, 30):
        model = SpyModel(Clock())
        model.slower = slower
        executor = Gathering(model, 4)
        assert measured(model, executor) == EngineTime(3 * MS // 2, MS // 10, 0, 0)
        assert model.shut_down == 0
        assert executor._open == {}, "nothing is left open, and the executor can be used"
        assert set(model.passes) == {1, 4}


def test_a_device_that_runs_ahead_does_not_wait_between_nodes() -> None:
    """There only the beginning and the end of batches count; what passes between nodes goes on beside them."""

    class Ticking(Clock):
        def __call__(self) -> int:
            self.advance(1_000)
            return super().__call__()

    found = []
    for ahead in (False, True):
        model = SpyModel(Ticking())
        executor: Any = Gathering(model, 4)
        executor.runs_ahead = ahead
        found.append(measured(model, executor))
    in_step, ahead_of_it = found
    assert in_step.continue_ns > 0
    assert (ahead_of_it.continue_ns, ahead_of_it.continue_row_ns) == (0, 0)
    assert (ahead_of_it.open_ns, ahead_of_it.open_row_ns) == (in_step.open_ns, in_step.open_row_ns)


def test_one_row_at_a_time() -> None:
    """Where no two rows share a batch, the time of one row is all there is."""
    model = SpyModel(Clock())
    assert measured(model, Gathering(model, 1), size=1) == EngineTime(8 * MS // 5)


def test_no_more_nodes_run_than_are_needed() -> None:
    """Enough gaps end it long before the budget; where nodes are long, one gap per size does."""
    model = SpyModel(Clock(), fixed_ns=2)
    measured(model, Gathering(model, 4), budget_ns=10**15)
    assert len(model.passes) == 2 * (dispatching.GAPS_MAX + 1)
    slow = SpyModel(Clock(), fixed_ns=10_000 * MS)
    measured(slow, Gathering(slow, 4))
    assert slow.passes == [1, 1, 4, 4]


def test_a_gap_counts_for_what_came_before_it() -> None:
    """Gaps before first nodes and others are told apart; what is not the engine's, and what came before the first node
    of all, is left out."""
    clock = Clock()
    model = SpyModel(clock)
    gaps = dispatching._Gaps(SpyExecutor(model, 4), clock)

    def dispatch(sub_batch: int, node: int, opened: tuple[int, ...] = ()) -> None:
        gaps.run(sub_batch, node)
        gaps.dispatched(0, 0, Task("spy", sub_batch, node, 2, 2, opened, None, Reason.CONTINUE))

    for sub_batch in range(3):
        clock.advance(100)
        gaps.apart(40)
        gaps.open(sub_batch, {2 * sub_batch: Row(0), 2 * sub_batch + 1: Row(1)}, 2)
        clock.advance(10)
        dispatch(sub_batch, 0, (2 * sub_batch, 2 * sub_batch + 1))
        clock.advance(7)
        dispatch(sub_batch, 1)
        gaps.close(sub_batch)
    assert gaps.opening == [Gap(0, 2, 70)] * 2
    assert gaps.continuing == [Gap(1, 2, 7)] * 3
    assert gaps.all == [Gap(1, 2, 7), Gap(0, 2, 70)] * 2 + [Gap(1, 2, 7)]
    assert not gaps.moved, "rows that begin on a chain come to nobody"


@pytest.mark.parametrize(
    ("few", "many", "line"),
    [
        ([(1, 10), (1, 11), (1, 900)], [(4, 40), (4, 41), (3, 42)], (1, 10)),
        ([(1, 50), (1, 60)], [(4, 30), (4, 40)], (45, 0)),
        ([(1, 50)], [(1, 60), (1, 60)], (55, 0)),
        ([(1, 1)], [(4, 100)], (0, 25)),
        ([(1, 5)], [], (0, 0)),
    ],
)
def test_the_line_through_few_and_many_rows(
    few: list[tuple[int, int]], many: list[tuple[int, int]], line: tuple[int, int]
) -> None:
    """Medians of both; never falling with rows, never below 0; flat where rows do not differ; nothing of nothing."""
    assert dispatching._line([Gap(0, *one) for one in few], [Gap(0, *one) for one in many]) == line


def _mixed(moved: dict[int, int], *gaps: Gap) -> Any:
    mixed = dispatching._Gaps(SpyExecutor(SpyModel(Clock()), 4), Clock())
    mixed.moved.update(moved)
    mixed.all.extend(gaps)
    return mixed


BODY = [Loop("body", 1, 3)]


def test_what_moving_rows_in_loops_takes() -> None:
    """Over all of a body's nodes, against quiet iterations: 10 ns quietly, 90 + 5 ns more where one row moved, 130 + 5
    where five did, so 85 and 10 for each; nodes outside of the loop and a hiccup do not count."""
    quiet = [Gap(node, 4, 10, step) for step in (1, 4, 7, 10) for node in (1, 2)]
    moved = {step: 1 if step % 2 else 5 for step in (3, 5, 6, 8, 9, 12)}
    after = [Gap(1, 4, 100 if rows == 1 else 140, step) for step, rows in moved.items()]
    after += [Gap(2, 4, 15, step) for step in moved]
    outside = [Gap(0, 4, 9_000, 3), Gap(3, 4, 9_000, 6)]
    mixed = _mixed({**moved, 11: 1}, *quiet, *after, *outside, Gap(1, 4, 50_000, 11), Gap(2, 4, 10, 11))
    assert dispatching._moving(mixed, BODY) == (85, 10)


def test_moves_that_were_not_seen() -> None:
    """Nothing quiet, nothing moved, or rows of one number only: what is not known counts as nothing."""
    assert dispatching._moving(_mixed({0: 1}, Gap(1, 4, 10, 0)), BODY) == (0, 0)
    assert dispatching._moving(_mixed({}, Gap(1, 4, 10, 0)), BODY) == (0, 0)
    alike = _mixed({1: 2, 2: 2}, Gap(1, 4, 10, 0), Gap(1, 4, 50, 1), Gap(1, 4, 60, 2))
    assert dispatching._moving(alike, BODY) == (45, 0)


def test_rows_in_a_loop_come_and_go_few_and_many_in_turns(tmp_path: Path) -> None:
    """Of eight rows in flight that make three iterations each one is alone, the others join it together at every fourth
    step at most; they leave at other steps, and some iterations see nothing."""
    model = lb.load(write_program(tmp_path))
    executor: Any = model.executor(max_batch_size=8)
    executor.limit((3,))
    rows = [model.admit({**model.sample_row(seed), "target": np.int64(ROOM)}) for seed in range(8)]
    rows = [replace(row, trips=(3,)) for row in rows]
    run = dispatching._Run(model, executor, rows, 8, True, 10**8, perf_counter_ns)
    gaps = run.gaps()
    executor.shutdown()
    assert len(gaps.moved) >= dispatching.MOVES_MIN
    assert {1, 7} == set(gaps.moved.values())
    assert set(range(gaps.steps)) - set(gaps.moved), "some are quiet"
    assert all(gap.ns > 0 for gap in gaps.all)


@pytest.mark.parametrize(("rounds", "made"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 7)])
def test_rows_do_not_leave_where_others_join(rounds: int, made: int) -> None:
    """Nobody who joins at a multiple of four is done at one."""
    assert dispatching._odd(rounds) == made
    assert made % dispatching._EVERY


class Looping(SpyModel):
    """A spy all of whose nodes are one loop."""

    def __init__(self, *, same_iteration: bool) -> None:
        super().__init__(Clock())
        loop = Loop("all", 0, len(self.graph), same_iteration=same_iteration)
        self.graph = NodeGraph.chain("spy", [node.name for node in self.graph.nodes], [loop])


def _runs(monkeypatch: pytest.MonkeyPatch, model: SpyModel) -> tuple[EngineTime, list[bool]]:
    """What is made of runs in which every node begins a sub-batch, 10 ns before it and 5 per row; which were mixed."""
    mixed: list[bool] = []

    class Run:
        def __init__(self, *given: Any) -> None:
            self.size = given[3]
            mixed.append(given[4])

        def gaps(self) -> Any:
            gaps = dispatching._Gaps(SpyExecutor(model, 4), model.clock)
            gaps.opening = gaps.all = [Gap(0, self.size, 10 + 5 * self.size)]
            return gaps

    monkeypatch.setattr(dispatching, "_Run", Run)
    rows = [Row(0, trips=(1,))]
    found = engine_time(model, SpyExecutor(model, 4), rows, 4, rounds=(1,), budget_ns=1, clock_ns=model.clock)
    return found, mixed


def test_where_every_iteration_begins_a_sub_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go round once, in a loop that comes first: what beginning takes is all there is, and is not lost."""
    found, mixed = _runs(monkeypatch, Looping(same_iteration=False))
    assert found == EngineTime(10, 5, 10, 5)
    assert mixed == [False, False, True]


def test_rows_that_only_meet_at_equal_iterations_are_not_watched_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that are alike would join others or leave them: no time is spent on it."""
    _, mixed = _runs(monkeypatch, Looping(same_iteration=True))
    assert mixed == [False, False]


def test_a_row_that_fails_under_the_engine() -> None:
    """Its error ends the profile; the executor is shut down once."""
    model = SpyModel(Clock())

    def break_at_the_end(now: Progress) -> None:
        if now.passes == 9:
            model.row_failure = ValueError("no such row")

    with pytest.raises(ExecutionError, match=r"with 1 rows in flight under the engine: model 'spy'.*no such row"):
        run(model, progress=break_at_the_end, repeats=3)
    assert model.shut_down == 1


def test_a_profile_holds_it_and_keeps_nodes_apart() -> None:
    """The table's own times are the nodes', and the engine's stand beside them, within one budget."""
    model = SpyModel(Clock())
    model.executor = lambda *, max_batch_size: Gathering(model, max_batch_size)  # type: ignore[method-assign]
    table = run(model, budget_s=4.0, repeats=10_000)
    assert table.engine == EngineTime(3 * MS // 2, MS // 10, 0, 0)
    assert table.median_ns == tuple(times[:3] for times in model.table.median_ns)
    assert table.dispatched().node_ns(0, 4) == table.node_ns(0, 4) + 19 * MS // 10
    assert model.clock.now_ns <= 4_000 * MS
