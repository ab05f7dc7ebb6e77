"""Who goes first where several sub-batches of a model with loops are in flight, and that nobody waits for ever."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.lane import LaneSpec
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.policies import Cellular, Continuous, GraphBatching, LazyBatching, Oracle, Policy, Start
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Completion, Merge, Reason, Split
from tests.core.kit import Asked, lane_spec, linear
from tests.core.loop_kit import LoopLedger, loop_spec
from tests.core.test_scheduler_loops import solved


def told(id: int, *trips: int | None, at: int = 0) -> Request:
    """A row whose trips are known."""
    return Request(id, "m", at, trips=trips)


def turn(scheduler: Scheduler, now: int) -> tuple[tuple[int, int, tuple[int, ...]], Completion]:
    """Run the next task: (sub-batch, node, rows it opened), and what it led to."""
    task = scheduler.schedule(now)
    assert task is not None
    completion = scheduler.complete(task, now + 1)
    scheduler.validate()
    return (task.sub_batch, task.node, task.opened), completion


def test_rows_that_another_loop_awaits_wait_for_those_behind() -> None:
    """Who is through the first loop stays below until the last row is, and all run the second one together."""
    scheduler = Scheduler([loop_spec(2, (0, 1), (1, 2))], Continuous())
    for request in (told(0, 1, 2), told(1, 3, 1), told(2, 2, 1)):
        scheduler.add(request)
    assert turn(scheduler, 0)[1] == Completion(split=Split("m", 0, 1, (0,)))
    assert [entry.ids() for entry in scheduler.stack] == [(0,), (1, 2)]
    assert turn(scheduler, 1)[1] == Completion(split=Split("m", 0, 2, (2,)), merges=(Merge("m", 1, 2),))
    assert [entry.ids() for entry in scheduler.stack] == [(0, 2), (1,)]
    assert turn(scheduler, 2)[1] == Completion(merges=(Merge("m", 1, 0),))
    assert turn(scheduler, 3) == ((1, 1, ()), Completion(finished=(2, 1)))
    assert turn(scheduler, 4)[1] == Completion(finished=(0,))


def test_newcomers_catch_up_with_those_in_the_second_loop() -> None:
    """They run the first loop to its end, and nobody joins them there: rows wait for them. Then all go on together."""
    scheduler = Scheduler([loop_spec(2, (0, 1), (1, 2))], Continuous())
    scheduler.add(told(0, 1, 9))
    turn(scheduler, 0)
    turn(scheduler, 1)
    for request in (told(1, 1, 1), told(2, 3, 9)):
        scheduler.add(request)
    assert turn(scheduler, 2) == (
        (1, 0, (1, 2)),
        Completion(split=Split("m", 1, 2, (1,)), merges=(Merge("m", 0, 2),)),
    )
    assert [entry.ids() for entry in scheduler.stack] == [(0, 1), (2,)]
    scheduler.add(told(3, 1, 1))
    assert turn(scheduler, 3) == ((1, 0, ()), Completion())
    assert turn(scheduler, 4)[1] == Completion(merges=(Merge("m", 0, 1),))
    assert turn(scheduler, 5)[0] == (0, 1, ()), "an iteration, before the next newcomer starts"
    assert turn(scheduler, 6)[0] == (3, 0, (3,))


def test_a_chain_between_the_loops_is_run_together() -> None:
    """Leavers wait in front of the chain, too."""
    scheduler = Scheduler([loop_spec(3, (0, 1), (2, 3))], Continuous())
    for request in (told(0, 1, 1), told(1, 2, 1)):
        scheduler.add(request)
    turn(scheduler, 0)
    assert turn(scheduler, 1)[1].merges == (Merge("m", 1, 0),)
    assert [turn(scheduler, now)[0][1] for now in (2, 3)] == [1, 2]
    assert scheduler.idle


def test_who_has_left_the_last_loop_is_not_held_up() -> None:
    """Newcomers that merge with rows below go first only where none between has the end before it."""
    choice: list[object] = [None]
    scheduler = Scheduler([loop_spec(3, (0, 1), (1, 2))], Asked(lambda view, now: choice[0]))
    choice[0] = Start(scheduler.lanes[0], 4, Reason.START_IDLE)
    for request in (told(0, 1, 1), told(1, 1, 5)):
        scheduler.add(request)
    turn(scheduler, 0)
    turn(scheduler, 1)
    assert [entry.ids() for entry in scheduler.stack] == [(1,), (0,)], "row 0 has only the last node before it"
    scheduler.add(told(2, 1, 1))
    _, completion = turn(scheduler, 2)
    assert completion.merges == (Merge("m", 0, 2),)
    assert [entry.ids() for entry in scheduler.stack] == [(1, 2), (0,)]


@st.composite
def lanes(draw: st.DrawFn) -> LaneSpec:
    """One or two loops among up to four nodes."""
    nodes = draw(st.integers(2, 4))
    cuts = sorted(draw(st.sets(st.integers(0, nodes), min_size=2, max_size=4)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    return loop_spec(
        nodes,
        *spans,
        max_batch_size=draw(st.integers(1, 4)),
        same_iteration=draw(st.sampled_from([False, False, True])),
        trips_max=draw(st.sampled_from([None, 3])),
        lengths=draw(st.sampled_from([(), (LengthGuess.of([1, 2, 4]),) * len(spans)])),
    )


def policy_for(name: str, specs: list[LaneSpec]) -> Policy:
    """A policy by name; the default one goes by its rule of thumb."""
    if name == "lookahead":
        return Lookahead({spec.graph.model: solved(spec) for spec in specs})
    made: dict[str, Policy] = {
        "continuous": Continuous(),
        "cellular": Cellular(),
        "lazy": LazyBatching(),
        "oracle": Oracle(),
        "graph": GraphBatching(),
    }
    return made[name]


TURNS, PATIENCE = 300, 150


ALONE = ("lookahead", "continuous", "cellular", "lazy", "oracle", "graph")
BESIDE = ("lookahead", "continuous", "cellular", "graph")
"""By slack, rows without a deadline can always spare the time that newcomers of another model take."""


@pytest.mark.parametrize(
    ("name", "beside"), [*((name, False) for name in ALONE), *((name, True) for name in BESIDE)], ids=str
)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_nobody_waits_for_ever(name: str, beside: bool, data: st.DataObject) -> None:
    """More comes than can be served, of every model, without end: who has started has ended soon after.

    Rows make up to 3 trips in a loop; one in five has a deadline. The bound is one for any model drawn here.
    """
    specs = [data.draw(lanes())]
    if beside:
        specs.append(lane_spec(linear("static", nodes=2, fixed=3, per_row=1), max_batch_size=3))
    scheduler = Scheduler(specs, policy_for(name, specs))
    ledger = LoopLedger(scheduler, whole=name == "graph")
    draw = random.Random(data.draw(st.integers(0, 1_000_000)))
    ids, now = count(), 0
    started: dict[int, int] = {}
    for number in range(TURNS):
        for lane in scheduler.lanes:
            while len(lane.queue) < 3:
                trips = [draw.randint(1, 3) for _ in lane.loops]
                known = tuple([trip if draw.random() < 0.5 else None for trip in trips])
                deadline = now + draw.randint(1, 200) if draw.random() < 0.2 else UNBOUNDED_NS
                ledger.send(Request(next(ids), lane.model, now, deadline, trips=known), *trips)
        task = ledger.schedule(now)
        assert task is not None
        started.update(dict.fromkeys(task.opened, number))
        times_ns = scheduler.lane_of(task.model).times_ns
        assert times_ns is not None
        now += times_ns[task.node][task.padded_rows]
        ledger.complete(task, now)
        scheduler.validate()
        assert scheduler.policy_error is None
        waiting = [number - since for id, since in started.items() if id not in ledger.left]
        assert max(waiting, default=0) < PATIENCE, f"{scheduler.stack}"
    served = {scheduler.lane_of(ledger.requests[id].model).model for id in ledger.left}
    assert served == {spec.graph.model for spec in specs}, "every model has had its turn"
