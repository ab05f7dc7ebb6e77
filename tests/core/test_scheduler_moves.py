"""Any sequence of calls, under any policy: every invariant holds, and every row leaves exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies import (
    Aimd,
    Cellular,
    Choice,
    GraphBatching,
    LazyBatching,
    Oracle,
    Policy,
    Serial,
    Start,
    View,
)
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Reason
from lazybatch.errors import Overloaded
from tests.core.kit import Ledger, lane_spec, linear, row


class Eager:
    """Preempts whenever a row fits in, of whatever signature, any of them first: the stack grows."""

    needs_table = False

    def decide(self, view: View, now: int) -> Choice:
        """One or two newcomers, if any fit; a single row on a free processor, so that there is room for others."""
        if view.active is None:
            return GraphBatching(max_batch_size=1).decide(view, now)
        for lane in view.lanes:
            room = lane.rows_max - lane.table.rows
            if len(lane.queue) and room > 0:
                skip = now % len(lane.queue) if lane.queue.uniform else 0
                return Start(lane, min(room, 1 + now % 2), Reason.PREEMPT_SLACK, skip=skip)
        return None


POLICIES = st.one_of(
    st.just(Eager()),
    st.just(Serial()),
    st.just(Cellular()),
    st.builds(Aimd, st.integers(1, 3)),
    st.just(LazyBatching()),
    st.just(Oracle()),
    st.builds(
        GraphBatching,
        st.sampled_from([0, 1, 15]),
        st.one_of(st.none(), st.integers(1, 5)),
        st.one_of(st.none(), st.integers(1, 8)),
    ),
)
LEVELS = st.dictionaries(
    st.integers(0, 2),
    st.builds(PriorityLevel, st.one_of(st.none(), st.integers(1, 40)), st.sampled_from(["reject", "demote"])),
    max_size=2,
)


@st.composite
def lane_specs(draw: st.DrawFn, model: str, single_node: bool) -> LaneSpec:
    """A lane with any options that go together."""
    rows_max = draw(st.integers(1, 5))
    smaller = draw(st.one_of(st.none(), st.sets(st.integers(1, rows_max))))
    return lane_spec(
        linear(model, nodes=1 if single_node else draw(st.integers(1, 4)), fixed=3, per_row=1),
        max_batch_size=rows_max,
        queue_capacity=draw(st.integers(2, 12)),
        joinable=draw(st.sampled_from([True, True, True, False])),
        allowed_sizes=() if smaller is None else tuple(sorted(smaller | {rows_max})),
        levels=draw(LEVELS),
        ageing_ns=draw(st.one_of(st.none(), st.integers(1, 30))),
        late=draw(st.sampled_from(["serve", "drop"])),
    )


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """One to three models under any policy; two processors where every graph has one node."""
    processors = draw(st.sampled_from([1, 1, 1, 2]))
    lanes = [draw(lane_specs(model, processors > 1)) for model in "abc"[: draw(st.integers(1, 3))]]
    return Scheduler(lanes, draw(POLICIES), processors=processors, isolate_failures=draw(st.booleans()))


class SchedulerMoves(RuleBasedStateMachine):
    """The scheduler between a careless driver and the ledger that follows each row."""

    @initialize(scheduler=schedulers())
    def begin(self, scheduler: Scheduler) -> None:
        """Any scheduler, at time zero."""
        self.scheduler = scheduler
        self.ledger = Ledger(scheduler)
        self.now = 0
        self.next_id = 0

    @rule(step=st.integers(1, 20))
    def wait(self, step: int) -> None:
        """Time passes."""
        self.now += step

    @precondition(lambda self: not self.scheduler.draining)
    @rule(
        lane=st.integers(0, 2),
        rows=st.integers(1, 3),
        signature=st.sampled_from("xxxy"),
        size=st.integers(1, 4),
        priority=st.integers(0, 2),
        sla=st.one_of(st.none(), st.integers(0, 60)),
    )
    def add(self, lane: int, rows: int, signature: str, size: int, priority: int, sla: int | None) -> None:
        """Rows arrive; each is admitted unless its queue is full."""
        model = self.scheduler.lanes[lane % len(self.scheduler.lanes)].model
        for _ in range(rows):
            request = row(
                self.next_id, self.now, model=model, signature=signature, size=size, priority=priority, sla=sla
            )
            self.next_id += 1
            before = self.scheduler.counts.added
            try:
                self.ledger.add(request)
            except Overloaded:
                assert self.scheduler.queued(model) >= self.scheduler.lane_of(model).queue.capacity
                assert self.scheduler.counts.added == before

    @precondition(lambda self: not self.scheduler.idle)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A row that is inside is withdrawn, wherever it is."""
        inside = sorted(set(self.ledger.requests) - set(self.ledger.left))
        self.ledger.cancel(data.draw(st.sampled_from(inside)), self.now)

    @precondition(lambda self: self.ledger.running)
    @rule(data=st.data())
    def cancel_running(self, data: st.DataObject) -> None:
        """A row is withdrawn while its node runs."""
        task = data.draw(st.sampled_from(self.ledger.running))
        ids = sorted(self.ledger.members[task.sub_batch])
        self.ledger.cancel(data.draw(st.sampled_from(ids)), self.now)

    @rule(id=st.integers(0, 200))
    def cancel_anything(self, id: int) -> None:
        """A row that has left, was refused, or never was, is withdrawn: nothing happens."""
        if id not in self.ledger.requests or id in self.ledger.left:
            self.ledger.cancel(id, self.now)

    @rule()
    def schedule(self) -> None:
        """A node boundary. Nothing to run means: busy, empty, or a wait that ends in the future."""
        self.ledger.expire(self.now)
        if self.ledger.schedule(self.now) is None and not self.ledger.running and not self.scheduler.idle:
            wake = self.scheduler.next_wakeup()
            assert wake is not None
            assert wake > self.now
            assert self.scheduler.in_flight() == 0, "a free processor never leaves a sub-batch parked"

    @precondition(lambda self: self.ledger.running)
    @rule(which=st.integers(0, 1), duration=st.integers(0, 9))
    def complete(self, which: int, duration: int) -> None:
        """A task ends well."""
        self.now += duration
        self.ledger.complete(self.ledger.running[which % len(self.ledger.running)], self.now)

    @precondition(lambda self: self.ledger.running)
    @rule(which=st.integers(0, 1))
    def fail(self, which: int) -> None:
        """A task raises."""
        self.ledger.fail(self.ledger.running[which % len(self.ledger.running)], self.now)

    @rule()
    def expire(self) -> None:
        """A timer looks at the queues, at any moment."""
        self.ledger.expire(self.now)

    @rule(duration=st.integers(1, 9))
    def turn(self, duration: int) -> None:
        """What a driver does most of the time: a boundary, then the node."""
        self.schedule()
        if self.ledger.running:
            self.complete(0, duration)

    @precondition(lambda self: not self.scheduler.draining)
    @rule(
        lane=st.integers(0, 2),
        slas=st.lists(st.one_of(st.none(), st.integers(20, 100)), min_size=2, max_size=8),
        duration=st.integers(1, 4),
    )
    def traffic(self, lane: int, slas: list[int | None], duration: int) -> None:
        """Rows come one by one while nodes run: this is what preemption and merging are for."""
        for sla in slas:
            self.add(lane=lane, rows=1, signature="x", size=1, priority=0, sla=sla)
            self.turn(duration=duration)

    @precondition(lambda self: self.scheduler.counts.added > 20)
    @rule()
    def drain(self) -> None:
        """Shutdown begins."""
        self.scheduler.drain()

    @invariant()
    def holds(self) -> None:
        """Every invariant, the counts, and the limit on rows in flight."""
        if not hasattr(self, "ledger"):
            return
        self.scheduler.validate()
        self.ledger.check_counts()
        for lane in self.scheduler.lanes:
            assert self.scheduler.in_flight(lane.model) <= lane.rows_max * self.scheduler._processors
            assert self.scheduler.in_flight(lane.model) == sum(
                len(ids) for ids in self.ledger.members.values() if self._model_of(ids) == lane.model
            )
        assert self.scheduler.counts.policy_failures == 0

    def _model_of(self, ids: dict[int, int]) -> str:
        return self.ledger.requests[next(iter(ids))].model

    def teardown(self) -> None:
        """Drained, it runs empty, and every row has left exactly once."""
        if hasattr(self, "ledger"):
            self.ledger.finish(self.now)
            self.scheduler.validate()


TestSchedulerMoves = SchedulerMoves.TestCase
TestSchedulerMoves.settings = settings(max_examples=100, stateful_step_count=50)


class Erratic:
    """Delegates to another policy, but at every third decision raises or answers nonsense."""

    needs_table = False

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.asked = 0

    def decide(self, view: Any, now: int) -> Any:
        """Mostly what the other policy says."""
        self.asked += 1
        if self.asked % 3:
            return self.policy.decide(view, now)
        if self.asked % 2:
            raise RuntimeError("erratic")
        return "nonsense"


@pytest.mark.parametrize("policy", [Serial(), GraphBatching(window_ns=5), LazyBatching(), Oracle()], ids=repr)
def test_an_erratic_policy_loses_no_row(policy: Policy) -> None:
    """With a policy that fails at every third decision all rows still run every node once and finish."""
    erratic = Erratic(policy)
    scheduler = Scheduler([lane_spec(linear(nodes=3), max_batch_size=3)], erratic)
    ledger = Ledger(scheduler)
    now = 0
    for id in range(60):
        ledger.add(row(id, now))
        for _ in range(2):
            now += 1
            if ledger.schedule(now) is not None:
                ledger.complete(ledger.running[0], now)
            scheduler.validate()
    ledger.finish(now)
    assert scheduler.counts.finished == 60
    assert scheduler.counts.policy_failures == erratic.asked // 3 > 0
