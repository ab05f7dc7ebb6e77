"""Loops under any policy: rows join and leave at every step, every invariant holds, and nobody is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from lazybatch.core.control import Control
from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.loop_control import NEVER, LoopControl
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.policies import Cellular, Continuous, GraphBatching, LazyBatching, Oracle, Serial, Start
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.progress import Progress
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Completion, Merge, Reason, Split, Task
from lazybatch.errors import InvalidInput, InvariantError, Overloaded
from lazybatch.solver import batch_times_ns, solve_times
from tests.core.kit import Asked, linear, row, sub_batch
from tests.core.loop_kit import LoopLedger, loop_spec
from tests.core.test_scheduler_moves import Eager, SchedulerMoves


def trips(request: Request, *counts: int | None) -> Request:
    """The same row, with numbers of trips that are known."""
    return replace(request, trips=counts)


def run(scheduler: Scheduler, now: int, *done: int) -> tuple[Task, Completion]:
    """One turn: the next task, and what it led to."""
    task = scheduler.schedule(now)
    assert task is not None
    completion = scheduler.complete(task, now + 1, done)
    scheduler.validate()
    return task, completion


def test_rows_leave_the_last_loop_one_by_one() -> None:
    """A row whose trips are known leaves by itself, another when it is found to be done; the last ends the batch."""
    scheduler = Scheduler([loop_spec(2, (1, 2))], Continuous())
    for request in (trips(row(0), 2), row(1), trips(row(2), 3)):
        scheduler.add(request)
    assert run(scheduler, 0) == (Task("m", 0, 0, 3, 3, (0, 1, 2), None, Reason.START_IDLE), Completion())
    assert run(scheduler, 1)[1] == Completion()
    task, completion = run(scheduler, 2)
    assert (task.node, task.rows, completion) == (1, 3, Completion(finished=(0,)))
    task, completion = run(scheduler, 3, 1, 2)
    assert (task.rows, completion.finished) == (2, (1, 2))
    assert scheduler.idle
    assert scheduler.counts.finished == 3


def test_leavers_go_on_by_themselves_and_meet_again() -> None:
    """Behind the loop leavers are a sub-batch of their own, on top; later leavers overtake nobody and join them."""
    scheduler = Scheduler([loop_spec(4, (1, 2))], Continuous())
    for request in (trips(row(0), 1), trips(row(1), 2), trips(row(2), 3)):
        scheduler.add(request)
    run(scheduler, 0)
    assert run(scheduler, 1)[1] == Completion(split=Split("m", 0, 1, (0,)))
    assert [entry.ids() for entry in scheduler.stack] == [(1, 2), (0,)]
    task, completion = run(scheduler, 2)
    assert (task.sub_batch, task.node, completion) == (1, 2, Completion())
    assert run(scheduler, 3)[1] == Completion(finished=(0,))
    assert run(scheduler, 4)[1] == Completion(split=Split("m", 0, 2, (1,)))
    assert run(scheduler, 5)[0].sub_batch == 2


def test_who_has_left_the_loop_stays_above() -> None:
    """Newcomers that preempt a leaver join those in the loop, past it; the leaver goes first."""
    choice: list[object] = [None]
    scheduler = Scheduler([loop_spec(3, (1, 2))], Asked(lambda view, now: choice[0]))
    choice[0] = Start(scheduler.lanes[0], 4, Reason.START_IDLE)
    for request in (trips(row(0), 1), trips(row(1), 5)):
        scheduler.add(request)
    run(scheduler, 0)
    run(scheduler, 1)
    assert [entry.ids() for entry in scheduler.stack] == [(1,), (0,)]
    scheduler.add(trips(row(2), 1))
    task, completion = run(scheduler, 2)
    assert (task.preempted, task.opened) == (1, (2,))
    assert completion.merges == (Merge("m", 0, 2),)
    assert [entry.ids() for entry in scheduler.stack] == [(1, 2), (0,)]
    assert run(scheduler, 3)[1] == Completion(finished=(0,))


def test_leavers_meet_behind_the_loop() -> None:
    """A leaver waits behind the loop; newcomers that could not mix inside leave it after one step, and join there."""
    choice: list[object] = [None]
    scheduler = Scheduler([loop_spec(3, (1, 2), same_iteration=True)], Asked(lambda view, now: choice[0]))
    choice[0] = Start(scheduler.lanes[0], 4, Reason.START_IDLE)
    for request in (trips(row(0), 1), trips(row(1), 5)):
        scheduler.add(request)
    run(scheduler, 0)
    run(scheduler, 1)
    scheduler.add(trips(row(2), 1))
    assert run(scheduler, 2)[1] == Completion(), "an iteration behind"
    assert [entry.ids() for entry in scheduler.stack] == [(1,), (0,), (2,)]
    assert run(scheduler, 3)[1] == Completion(merges=(Merge("m", 1, 2),))
    assert run(scheduler, 4)[1] == Completion(finished=(0, 2))


def test_nobody_waits_behind_a_loop_that_others_keep_alive() -> None:
    """A leaver that lies below the loop comes to the top with the next one that leaves it."""
    choice: list[object] = [None]
    scheduler = Scheduler([loop_spec(3, (1, 2))], Asked(lambda view, now: choice[0]))
    choice[0] = Start(scheduler.lanes[0], 4, Reason.START_IDLE)
    scheduler.add(trips(row(0), 1))
    run(scheduler, 0)
    run(scheduler, 1)
    for request in (trips(row(1), 1), trips(row(2), 9)):
        scheduler.add(request)
    run(scheduler, 2)
    assert [entry.ids() for entry in scheduler.stack] == [(0,), (1, 2)]
    assert run(scheduler, 3)[1] == Completion(split=Split("m", 1, 2, (1,)), merges=(Merge("m", 0, 2),))
    assert [entry.ids() for entry in scheduler.stack] == [(2,), (0, 1)]
    assert run(scheduler, 4)[1] == Completion(finished=(0, 1))


def test_validate_sees_tables_in_another_order() -> None:
    """The stack of all models and the table of each tell the same order."""
    scheduler = Scheduler([loop_spec(3, (1, 2))], Continuous())
    for request in (trips(row(0), 1), trips(row(1), 5)):
        scheduler.add(request)
    run(scheduler, 0)
    run(scheduler, 1)
    scheduler.stack.reverse()
    with pytest.raises(InvariantError, match="in another order than tables"):
        scheduler.validate()


def test_newcomers_join_at_any_iteration() -> None:
    """A running loop is preempted, the newcomer runs what lies before it, and both go on together at once."""
    scheduler = Scheduler([loop_spec(3, (1, 3))], Continuous())
    scheduler.add(trips(row(0), 9))
    for now in range(5):
        run(scheduler, now)
    scheduler.add(trips(row(1), 2))
    task, completion = run(scheduler, 5)
    assert (task.opened, task.preempted, task.reason) == ((1,), 0, Reason.JOIN_STEP)
    assert completion.merges == (Merge("m", 0, 1),)
    assert [run(scheduler, 6 + k)[1].finished for k in range(4)] == [(), (), (), (1,)]
    progress = scheduler.stack[0].progress
    assert progress is not None
    assert progress.iterations() == {0: 4}


def test_newcomers_to_a_loop_that_comes_first_join_before_they_run() -> None:
    """Where the graph begins with the loop, newcomers stand where the others do: one task opens and joins them."""
    scheduler = Scheduler([loop_spec(1, (0, 1))], Cellular())
    scheduler.add(trips(row(0), 3))
    run(scheduler, 0)
    scheduler.add(trips(row(1), 1))
    task, completion = run(scheduler, 1)
    assert task == Task("m", 0, 0, 2, 2, (1,), None, Reason.JOIN_STEP, None, 1)
    assert completion == Completion(finished=(1,))


def test_equal_iterations_only() -> None:
    """Where positions cannot be mixed, a newcomer catches up iteration by iteration and merges at an equal one."""
    answers: list[object] = [None]
    spec = loop_spec(1, (0, 1), same_iteration=True)
    scheduler = Scheduler([spec], Asked(lambda view, now: answers[0]))
    ledger = LoopLedger(scheduler)
    answers[0] = Start(scheduler.lanes[0], 1, Reason.START_IDLE)
    ledger.send(row(0), 9)
    for now in range(3):
        task = ledger.schedule(now)
        assert task is not None
        ledger.complete(task, now)
    ledger.send(row(1), 9)
    merged = []
    for now in range(3, 6):
        task = ledger.schedule(now)
        assert task is not None
        assert task.sub_batch == 1
        merged.append(ledger.complete(task, now).merges)
        scheduler.validate()
    assert merged == [(), (), (Merge("m", 0, 1),)]
    assert [policy.decide(scheduler, 9) for policy in (Continuous(), Cellular())] == [None, None], "nobody may join"


def test_whole_batches_keep_their_rows() -> None:
    """Graph batching runs as many iterations as the longest row needs; all results come at the batch's end."""
    scheduler = Scheduler([loop_spec(2, (0, 1))], GraphBatching())
    for request in (trips(row(0), 1), row(1), trips(row(2), 3)):
        scheduler.add(request)
    assert run(scheduler, 0)[1] == Completion()
    assert run(scheduler, 1, 1)[1] == Completion()
    task, completion = run(scheduler, 2, 1)
    assert (task.rows, completion) == (3, Completion())
    task, completion = run(scheduler, 3)
    assert (task.node, completion.finished) == (1, (0, 1, 2))


def test_a_whole_batch_ends_when_its_last_running_row_is_withdrawn() -> None:
    """Rows that are done wait for a mate; when it is cancelled while it runs, they wait no longer."""
    scheduler = Scheduler([loop_spec(1, (0, 1))], GraphBatching())
    for request in (trips(row(0), 1), row(1)):
        scheduler.add(request)
    run(scheduler, 0)
    task = scheduler.schedule(1)
    assert task is not None
    scheduler.cancel(1, 1)
    assert scheduler.complete(task, 2) == Completion(evicted=(1,), finished=(0,))


@pytest.mark.parametrize("policy", [Continuous(), GraphBatching()], ids=repr)
def test_the_maximum_ends_a_row_and_says_so(policy: Continuous | GraphBatching) -> None:
    """A loop that never ends is left at its maximum, marked; rows that are done, or meant to end there, are not."""
    scheduler = Scheduler([loop_spec(1, (0, 1), trips_max=2)], policy)
    for request in (row(0), row(1), trips(row(2), 2), row(3)):
        scheduler.add(request)
    assert run(scheduler, 0)[1].truncated == ()
    assert run(scheduler, 1, 1)[1] == Completion(finished=(0, 1, 2, 3), truncated=(0, 3))


def test_truncated_rows_of_a_whole_batch_are_told_when_they_end() -> None:
    """They keep their places, so what they are is told before they leave."""
    scheduler = Scheduler([loop_spec(1, (0, 1), trips_max=3)], Joining())
    scheduler.add(row(0))
    run(scheduler, 0)
    scheduler.add(row(1))
    run(scheduler, 1)
    assert run(scheduler, 2)[1] == Completion(truncated=(0,))
    assert run(scheduler, 3)[1] == Completion(finished=(0, 1), truncated=(1,))


class Joining(Continuous):
    """Joins at every step, but nobody leaves before the others."""

    whole_batches = True


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((1,), "request 0 states 1 numbers of trips, the graph has 2 loops"),
        ((1, 0), "request 0 makes 0 trips in loop 'loop1'; they must be at least 1 and at most 7"),
        ((8, None), "request 0 makes 8 trips in loop 'loop0'"),
    ],
)
def test_trips_that_do_not_fit_are_refused(counts: tuple[int | None, ...], message: str) -> None:
    """The error names the model, the row and the loop; nothing is queued."""
    scheduler = Scheduler([loop_spec(3, (0, 1), (2, 3), trips_max=7)], Serial())
    with pytest.raises(InvalidInput, match=message):
        scheduler.add(trips(row(0), *counts))
    assert scheduler.idle
    with pytest.raises(InvalidInput, match=r"at least 1$"):
        Scheduler([loop_spec(1, (0, 1))], Serial()).add(trips(row(0), 0))


def test_loops_have_one_processor() -> None:
    """Rows of a loop meet again at every step, which only one processor can see to."""
    with pytest.raises(InvalidInput, match="model 'm' has loops: one processor only"):
        Scheduler([loop_spec(1, (0, 1))], Serial(), processors=2)


def test_validate_sees_damage_in_loops() -> None:
    """Progress of the wrong loop, of other rows, beyond its end, mixed iterations: each is noticed."""

    def damaged(spec: LaneSpec) -> Scheduler:
        scheduler = Scheduler([spec], Continuous())
        for id in range(3):
            scheduler.add(trips(row(id), 5))
        run(scheduler, 0)
        return scheduler

    scheduler = damaged(loop_spec(2, (0, 1)))
    scheduler.stack[0].cursor = 1
    with pytest.raises(InvariantError, match="stands in loop None"):
        scheduler.validate()
    damages: list[tuple[Callable[[Progress], object], str]] = [
        (lambda progress: progress._entered.pop(0), "of rows"),
        (lambda progress: progress.ended.add(9), "rows \\[9\\] ended that are not inside"),
        (lambda progress: progress._leaves.clear(), "row 0 leaves at None, not at 5"),
        (lambda progress: progress._entered.update({0: 7}), "row 0 leaves at 5, not at 12"),
    ]
    for damage, message in damages:
        scheduler = damaged(loop_spec(1, (0, 1)))
        progress = scheduler.stack[0].progress
        assert progress is not None
        damage(progress)
        with pytest.raises(InvariantError, match=message):
            scheduler.validate()
    scheduler = damaged(loop_spec(1, (0, 1), same_iteration=True))
    progress = scheduler.stack[0].progress
    assert progress is not None
    progress._entered[0] = -1
    progress._leaves = {5: [1, 2], 4: [0]}
    with pytest.raises(InvariantError, match="mixes iterations of loop 'loop0'"):
        scheduler.validate()


def test_validate_sees_what_should_have_merged() -> None:
    """Two entries at one node, with another between them, that were not joined."""
    table = LoopTable(loop_spec(3, (0, 1)).graph, max_rows=4)
    for id, cursor in ((0, 0), (1, 2), (2, 1)):
        table.push(sub_batch(id, row(id), cursor=cursor))
    table.validate()
    table._stand([*table][2], 0)
    with pytest.raises(InvariantError, match="meet but are not merged"):
        table.validate()
    assert table.merge() == (Merge("m", 0, 2),)
    table.validate()


@st.composite
def loop_specs(draw: st.DrawFn, model: str) -> LaneSpec:
    """A lane with one or two loops anywhere, or none, and any options that go together."""
    nodes = draw(st.integers(1, 5))
    cuts = sorted(draw(st.sets(st.integers(0, nodes), min_size=min(2, nodes), max_size=4)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    rows_max = draw(st.integers(1, 5))
    smaller = draw(st.one_of(st.none(), st.sets(st.integers(1, rows_max))))
    same_iteration = draw(st.sampled_from([False, False, True]))
    trips_max = draw(st.one_of(st.none(), st.integers(2, 5)))
    table = linear(model, nodes=nodes, fixed=3, per_row=1)
    loops = [Loop(f"loop{n}", *span, same_iteration, trips_max) for n, span in enumerate(spans)]
    return LaneSpec(
        NodeGraph.chain(model, table.nodes, loops),
        table,
        max_batch_size=rows_max,
        queue_capacity=draw(st.integers(2, 12)),
        joinable=draw(st.sampled_from([True, True, True, False])),
        allowed_sizes=() if smaller is None or spans else tuple(sorted(smaller | {rows_max})),
        lengths=draw(st.sampled_from([(), (LengthGuess.of([1, 2, 2, 5]),) * len(loops)])),
        late=draw(st.sampled_from(["serve", "drop"])),
    )


POLICIES = st.one_of(
    st.just(Eager()),
    st.just(Serial()),
    st.builds(Continuous),
    st.builds(Cellular),
    st.builds(Joining),
    st.just(LazyBatching()),
    st.just(Oracle()),
    st.builds(GraphBatching, st.sampled_from([0, 15])),
)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """One or two models with loops under any policy."""
    lanes = [draw(loop_specs(model)) for model in "ab"[: draw(st.integers(1, 2))]]
    policy = draw(st.one_of(POLICIES, st.none())) or draw(lookaheads(lanes))
    return Scheduler(lanes, policy, isolate_failures=draw(st.booleans()))


@st.composite
def lookaheads(draw: st.DrawFn, lanes: list[LaneSpec]) -> Lookahead:
    """The default policy with any thresholds, or none for some of the models."""
    loops = {}
    for spec in lanes:
        needed = draw(st.lists(st.sampled_from([1, 1, 2, 3, NEVER]), min_size=1, max_size=5))
        control = LoopControl(spec.graph.model, "loop", (1e-3,), (tuple(needed),), (0.0,))
        loops[spec.graph.model] = [None if loop.same_iteration else control for loop in spec.graph.loops]
    for model in draw(st.sets(st.sampled_from(sorted(loops)))):
        del loops[model]  # served by the rule of thumb
    return Lookahead({spec.graph.model: solved(spec) for spec in lanes}, loops)


_SOLVED: dict[tuple[int, ...], Control] = {}


def solved(spec: LaneSpec) -> Control:
    """The graph-level control of a lane; equal ones are solved once."""
    table = spec.unrolled("mean")
    assert table is not None
    times = batch_times_ns(table, spec.max_batch_size, joinable=spec.joinable, allowed_sizes=spec.allowed_sizes)
    if times not in _SOLVED:
        _SOLVED[times] = solve_times("any", times)
    return _SOLVED[times]


class LoopMoves(SchedulerMoves):
    """The scheduler of graphs with loops between a careless driver and the ledger that knows who is done when."""

    ledger: LoopLedger

    @initialize(scheduler=schedulers())
    def begin(self, scheduler: Scheduler) -> None:
        """Any scheduler, at time zero."""
        self.scheduler = scheduler
        self.ledger = LoopLedger(scheduler, whole=getattr(scheduler._guarded.policy, "whole_batches", False))
        self.now = 0
        self.next_id = 0

    @precondition(lambda self: not self.scheduler.draining)
    @rule(
        lane=st.integers(0, 2),
        rows=st.integers(1, 3),
        signature=st.sampled_from("xxxy"),
        size=st.integers(1, 4),
        priority=st.integers(0, 2),
        sla=st.one_of(st.none(), st.integers(0, 60)),
        truth=st.lists(st.integers(1, 6), min_size=2, max_size=2),
        known=st.lists(st.booleans(), min_size=2, max_size=2),
    )
    def add(
        self,
        lane: int,
        rows: int,
        signature: str,
        size: int,
        priority: int,
        sla: int | None,
        truth: list[int] = [3, 2],  # noqa: B006
        known: list[bool] = [True, False],  # noqa: B006
    ) -> None:
        """Rows arrive that make any number of trips; of some it is known beforehand."""
        chosen = self.scheduler.lanes[lane % len(self.scheduler.lanes)]
        counts: list[int | None] = []
        for number, loop in enumerate(chosen.loops):
            most = loop.trips_max or 6
            counts.append(min(truth[number], most) if known[number] else None)
            truth = [*truth[:number], counts[-1] or truth[number], *truth[number + 1 :]]
        for _ in range(rows):
            made = row(self.next_id, self.now, model=chosen.model, signature=signature, priority=priority, sla=sla)
            self.next_id += 1
            try:
                self.ledger.send(replace(made, trips=tuple(counts)), *truth)
            except Overloaded:
                assert self.scheduler.queued(chosen.model) >= chosen.queue.capacity


TestLoopMoves = LoopMoves.TestCase
TestLoopMoves.settings = settings(max_examples=100, stateful_step_count=50)
