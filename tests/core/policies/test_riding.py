"""Riding: who may ride and how many, to the nanosecond; that it costs nobody behind anything; what stays as it was.

Unless said otherwise the lanes are "short" (100 + 20 b ns), "middle" (150 + 50 b), "long" (200 + 100 b), of one node.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching, LazyBatching, Policy, Serial, Start
from lazybatch.core.policies.base import Stay
from lazybatch.core.policies.riding import Riding, riders
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason, Task
from lazybatch.errors import InvalidInput
from tests.core.conftest import Core
from tests.core.kit import Asked, Ledger, bare_spec, lane_spec, linear, row

SHORT = linear("short", fixed=100, per_row=20)
MIDDLE = linear("middle", fixed=150, per_row=50)
LONG = linear("long", fixed=200, per_row=100)


def lanes(**options: Any) -> tuple[LaneSpec, LaneSpec, LaneSpec]:
    """The three lanes, each riding in the longer ones."""
    return (
        lane_spec(SHORT, wider=("middle", "long"), **options),
        lane_spec(MIDDLE, wider=("long",), **options),
        lane_spec(LONG, **options),
    )


def riding(core: Core, policy: Policy | None = None, **options: Any) -> Ledger:
    """A scheduler over the three lanes."""
    return Ledger(core.scheduler(Riding(policy or GraphBatching()), *lanes(**options)))


def started(ledger: Ledger, now: int = 0) -> Task:
    """The next task, which must start something."""
    task = ledger.schedule(now)
    assert task is not None
    assert task.opened
    return task


def test_a_short_row_rides_where_that_is_cheaper_than_waiting(core: Core) -> None:
    """One long row first: a middle one adds 100 where its own run takes 200; nobody else has room in the sum."""
    ledger = riding(core)
    for id, model in enumerate(("long", "middle")):
        ledger.add(row(id, at=id, model=model))
    task = started(ledger, now=2)
    assert (task.model, task.opened, task.rows, task.reason) == ("long", (0, 1), 2, Reason.START_IDLE)
    ledger.complete(task, 402)
    assert ledger.scheduler.idle


def test_a_short_row_waits_where_padding_costs_more(core: Core) -> None:
    """Four long rows would each wait 100 longer to spare one short row its own run of 120."""
    ledger = riding(core)
    for id in range(4):
        ledger.add(row(id, model="long"))
    ledger.add(row(4, at=1, model="short"))
    assert started(ledger, now=1).opened == (0, 1, 2, 3)


def test_riders_come_from_the_widest_lane_first(core: Core) -> None:
    """A middle row takes the place that a short one would have paid less for; then the batch has grown."""
    ledger = riding(core, max_batch_size=2)
    for id, model in enumerate(("long", "short", "middle")):
        ledger.add(row(id, at=id, model=model))
    assert started(ledger, now=3).opened == (0, 2)


@pytest.mark.parametrize(("sla", "together"), [(399, False), (400, True), (299, True)])
def test_no_row_in_time_is_made_late(core: Core, sla: int, together: bool) -> None:
    """With its rider the long row ends at 400. One that is late at 300 already has nothing to lose."""
    ledger = riding(core)
    ledger.add(row(0, model="long", sla=sla))
    ledger.add(row(1, model="middle"))
    assert len(started(ledger).opened) == (2 if together else 1)


@pytest.mark.parametrize(("sla", "together"), [(599, False), (600, True)])
def test_late_is_by_the_pace_that_the_policy_sees(core: Core, sla: int, together: bool) -> None:
    """On a machine half as fast as its table again, the two end at 600, not at 400."""

    class Paced(GraphBatching):
        pace = 1.5

    ledger = riding(core, Paced())
    ledger.add(row(0, model="long", sla=sla))
    ledger.add(row(1, model="middle"))
    assert len(started(ledger).opened) == (2 if together else 1)


@pytest.mark.parametrize(("priority", "together"), [(0, False), (1, True)])
def test_nobody_waits_for_a_lower_priority(core: Core, priority: int, together: bool) -> None:
    """The long row is of priority 1: a row below does not ride with it, one of its own level does."""
    ledger = riding(core)
    ledger.add(row(0, model="long", priority=1))
    ledger.add(row(1, model="middle", priority=priority))
    assert len(started(ledger).opened) == (2 if together else 1)


def test_only_rows_of_one_signature_ride(core: Core) -> None:
    """What else has a shape of its own, or is retried alone, stays where it is."""
    ledger = riding(core)
    ledger.add(row(0, model="long", signature="a"))
    ledger.add(row(1, model="middle", signature="b"))
    assert started(ledger).opened == (0,)


def test_batches_that_preempt_take_nobody_along(core: Core) -> None:
    """Riders join on a free processor only: what is parked would wait for them."""
    view = core.scheduler(Asked(None), *lanes())
    long = view.lane_of("long")
    policy = Riding(Asked(Start(long, 1, Reason.PREEMPT_SLACK)))
    view.add(row(0, model="long"))
    view.add(row(1, model="middle"))
    assert policy.decide(view, 0) == Start(long, 1, Reason.PREEMPT_SLACK, riders=(("middle", 1),))
    scheduler = core.scheduler(GraphBatching(), *lanes())
    for id, model in enumerate(("long", "long", "middle")):
        scheduler.add(row(id, model=model))
        if not id:
            assert scheduler.schedule(0) is not None
    assert scheduler.stack
    choice = Start(scheduler.lane_of("long"), 1, Reason.PREEMPT_SLACK)
    assert Riding(Asked(choice)).decide(scheduler, 0) is choice


def test_what_is_no_start_stays_as_it_is(core: Core) -> None:
    """Going on, and batches with a token budget, are passed on; so are lanes in which nobody could ride."""
    scheduler = core.scheduler(GraphBatching(), *lanes())
    stay = Stay()
    assert Riding(Asked(stay)).decide(scheduler, 0) is stay
    scheduler.add(row(0, model="long"))
    scheduler.add(row(1, model="middle"))
    budget = Start(scheduler.lane_of("long"), 1, Reason.START_IDLE, size_budget=9)
    assert Riding(Asked(budget)).decide(scheduler, 0) is budget
    narrow = Start(scheduler.lane_of("middle"), 1, Reason.START_IDLE)
    assert Riding(Asked(narrow)).decide(scheduler, 0) is narrow


def test_without_tables_nobody_rides(core: Core) -> None:
    """What cannot be judged is not done."""
    scheduler = core.scheduler(GraphBatching(), bare_spec("short", wider=("long",)), bare_spec("long"))
    scheduler.add(row(0, model="long"))
    scheduler.add(row(1, model="short"))
    choice = Start(scheduler.lane_of("long"), 1, Reason.START_IDLE)
    assert Riding(Asked(choice)).decide(scheduler, 0) is choice
    mixed = core.scheduler(GraphBatching(), lane_spec(SHORT, wider=("long",)), bare_spec("long", 1))
    mixed.add(row(0, model="long"))
    mixed.add(row(1, model="short"))
    choice = Start(mixed.lane_of("long"), 1, Reason.START_IDLE)
    assert Riding(Asked(choice)).decide(mixed, 0) is choice


def test_it_keeps_to_the_policys_own_maximum(core: Core) -> None:
    """GraphB with at most one row per batch takes nobody along."""
    ledger = riding(core, GraphBatching(max_batch_size=1))
    ledger.add(row(0, model="long"))
    ledger.add(row(1, model="middle"))
    assert started(ledger).opened == (0,)


def test_what_a_policy_wants_to_hear_is_passed_on() -> None:
    """Optional hooks and attributes are those of the policy, and missing where it has none."""

    class Hears(Serial):
        whole_batches = True

        def arrived(self, request: Any) -> None:
            self.heard = request

    inner = Hears()
    policy = Riding(inner)
    policy.arrived("news")  # type: ignore[attr-defined]
    assert inner.heard == "news"
    assert policy.whole_batches  # type: ignore[attr-defined]
    assert not hasattr(policy, "completed")
    assert Riding(LazyBatching()).needs_table
    assert repr(policy) == "Riding(Serial())"


def test_a_rider_whose_batch_fails_is_retried_in_its_own_lane(core: Core) -> None:
    """All of them run again alone, each from the queue that it came from."""
    ledger = riding(core)
    for id, model in enumerate(("long", "middle")):
        ledger.add(row(id, model=model))
    task = started(ledger)
    assert task.opened == (0, 1)
    assert set(ledger.fail(task, 10).retried) == {0, 1}
    assert {lane.model: [r.signature for r in lane.queue] for lane in ledger.scheduler.lanes} == {
        "short": [],
        "middle": [Alone(1)],
        "long": [Alone(0)],
    }
    ledger.finish(20)


@pytest.mark.parametrize("bad", ["unknown", "itself", "backwards", "none", "too few", "twice", "too many", "other"])
def test_impossible_riders_are_refused(core: Core, bad: str) -> None:
    """A policy that wants what cannot be done is set aside; graph batching starts the long row alone."""

    def answer(view: Any, now: int) -> Start:
        riders = {
            "unknown": (("x", 1),),
            "itself": (("long", 1),),
            "backwards": (("wide", 1),),
            "none": (("middle", 0),),
            "too few": (("middle", 3),),
            "twice": (("middle", 1), ("middle", 1)),
            "too many": (("middle", 2),),
            "other": (("odd", 1),),
        }[bad]
        return Start(view.lane_of("long"), 1, Reason.START_IDLE, riders=riders)

    odd, wide = linear("odd"), linear("wide")
    specs = [*lanes(max_batch_size=2), lane_spec(odd, wider=("long",)), lane_spec(wide)]
    scheduler = core.scheduler(Asked(answer), *specs)
    for id, model in enumerate(("long", "middle", "middle", "wide")):
        scheduler.add(row(id, model=model))
    scheduler.add(row(9, at=1, model="odd", signature="another"))
    task = scheduler.schedule(1)
    assert task is not None
    assert (task.opened, scheduler.counts.policy_failures) == ((0,), 1)


def test_lanes_ride_with_other_lanes_of_the_same_chain_only(core: Core) -> None:
    """An unknown model, the lane itself, and other nodes are refused, naming both."""
    with pytest.raises(InvalidInput, match="'a' may ride with 'b', which is no other model"):
        core.scheduler(Serial(), lane_spec(linear("a"), wider=("b",)))
    with pytest.raises(InvalidInput, match="'a' may ride with 'a', which is no other model"):
        core.scheduler(Serial(), lane_spec(linear("a"), wider=("a",)))
    with pytest.raises(InvalidInput, match="'a' may ride with 'b', whose nodes are not the same chain"):
        core.scheduler(Serial(), lane_spec(linear("a"), wider=("b",)), lane_spec(linear("b", nodes=2)))


TIMES = st.lists(st.integers(1, 400), min_size=8, max_size=8).map(sorted)


def _lane(name: str, times_ns: list[int], sizes: tuple[int, ...] = ()) -> Lane:
    batch = tuple(range(1, 9))
    table = LatencyTable(name, ("n",), batch, (tuple(times_ns),), (tuple(times_ns),))
    return Lane(LaneSpec(NodeGraph.chain(name, ["n"]), table, max_batch_size=8, allowed_sizes=sizes))


@given(TIMES, TIMES, st.integers(1, 8), st.integers(1, 8), st.integers(0, 8), st.sampled_from([(), (2, 8)]))
def test_riding_costs_nobody_behind_and_saves_time_altogether(
    long_ns: list[int], short_ns: list[int], rows: int, waiting: int, room: int, sizes: tuple[int, ...]
) -> None:
    """On any two tables, against running right behind the batch: those behind start no later, no narrower row ends
    later, the sum over all rows is no larger; and whenever it says no, every number of riders breaks one of these."""
    wide, narrow = _lane("long", long_ns, sizes), _lane("short", short_ns, sizes)
    room = min(room, 8 - rows)
    chosen = riders(wide, rows, narrow, waiting, room)
    assert 0 <= chosen <= min(waiting, room)

    def ends(riding: int) -> tuple[int, int, int]:
        """When the batch ends, when the rest of the narrower rows do, and the sum over all rows."""
        first_ns = wide.run_ns(rows + riding)
        left = waiting - riding
        last_ns = first_ns + (narrow.run_ns(left) if left else 0)
        return first_ns, last_ns, (rows + riding) * first_ns + left * last_ns

    _, without_ns, sum_ns = ends(0)
    for riding_ in range(chosen, min(waiting, room) + 1):
        _, with_ns, sum_with_ns = ends(riding_)
        good = with_ns <= without_ns and sum_with_ns <= sum_ns
        assert good == (riding_ == chosen) or riding_ == chosen == 0


@given(
    st.lists(st.tuples(st.sampled_from(["short", "middle", "long"]), st.integers(0, 300)), min_size=1, max_size=30),
    st.sampled_from(["graph", "lazy", "serial"]),
)
def test_every_row_is_served_once_whatever_rides(arrivals: list[tuple[str, int]], name: str) -> None:
    """Random arrivals under several policies: every row runs once, in a batch of its own length or a longer one."""
    inner: Policy = {"graph": GraphBatching(), "lazy": LazyBatching(), "serial": Serial()}[name]
    scheduler = Scheduler(lanes(sla_ns=2_000), Riding(inner))
    ledger = Ledger(scheduler)
    now = 0
    for id, (model, gap) in enumerate(arrivals):
        now += gap
        ledger.add(row(id, at=now, model=model, sla=2_000))
        scheduler.validate()
        if not ledger.running and (task := ledger.schedule(now)) is not None:
            now += 50
            ledger.complete(task, now)
            scheduler.validate()
    ledger.finish(now)
    scheduler.validate()
