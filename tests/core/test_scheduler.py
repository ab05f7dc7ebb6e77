"""The scheduler: Fig. 10 through it, every way a row can leave, and the stack over several models."""

from __future__ import annotations

import pytest

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching, LazyBatching, Serial, Start, Wait
from lazybatch.core.request import Request
from lazybatch.core.scheduler import Decision, Scheduler
from lazybatch.core.task import Cancellation, Completion, Failure, Merge, Reason, Task, Where
from lazybatch.errors import InvalidInput, Overloaded
from tests.core.conftest import Core
from tests.core.kit import Asked, Ledger, bare_spec, is_alone, lane_spec, linear, row, run


def stack(scheduler: Scheduler) -> list[tuple[list[int], str]]:
    """The stack as the paper draws it, bottom first."""
    return [(sorted(entry.ids()), "ABCDEFGH"[entry.cursor]) for entry in scheduler.stack]


def test_figure_ten_through_the_scheduler(core: Core) -> None:
    """The paper's example with LazyBatching deciding: SLA 30, nodes A..H of one unit, Req1 kept waiting until t=2."""
    names = tuple("ABCDEFGH")
    net = LatencyTable("net", names, (1,), ((1,),) * 8, ((1,),) * 8)
    scheduler = core.scheduler(
        LazyBatching(), LaneSpec(NodeGraph.chain("net", names), net), lane_spec(linear("other", 1, 1, 1))
    )
    scheduler.add(row(0, 0, model="other"))
    other = run(scheduler, 0)
    scheduler.add(row(1, 0, model="net", sla=30))
    assert 30 - (2 + net.whole_ns(1)) == 20, "Eq. 1 for Req1, which waits from 0 to 2"

    assert scheduler.complete(other, 2).finished == (0,)
    req1_a = run(scheduler, 2)
    assert stack(scheduler) == [([1], "A")]
    assert (req1_a.opened, req1_a.preempted, req1_a.reason) == ((1,), None, Reason.START_IDLE)

    assert scheduler.complete(req1_a, 3) == Completion()
    req1_b = run(scheduler, 3)
    assert (req1_b.node, req1_b.opened, req1_b.reason) == (1, (), Reason.CONTINUE)
    scheduler.add(row(2, 3, model="net", sla=30))

    scheduler.complete(req1_b, 4)
    req2_a = run(scheduler, 4)
    assert stack(scheduler) == [([1], "C"), ([2], "A")]
    assert (req2_a.preempted, req2_a.reason) == (req1_a.sub_batch, Reason.PREEMPT_SLACK)
    scheduler.add(row(3, 4, model="net", sla=30))

    assert scheduler.complete(req2_a, 5) == Completion()
    req3_a = run(scheduler, 5)
    assert stack(scheduler) == [([1], "C"), ([2], "B"), ([3], "A")]
    assert req3_a.preempted == req2_a.sub_batch

    assert scheduler.complete(req3_a, 6).merges == (Merge("net", req2_a.sub_batch, req3_a.sub_batch),)
    req23_b = run(scheduler, 6)
    assert stack(scheduler) == [([1], "C"), ([2, 3], "B")]
    assert (req23_b.rows, req23_b.node) == (2, 1)

    assert scheduler.complete(req23_b, 7).merges == (Merge("net", req1_a.sub_batch, req2_a.sub_batch),)
    assert stack(scheduler) == [([1, 2, 3], "C")]
    for now, node in enumerate("CDEFGH", start=7):
        together = run(scheduler, now)
        assert (names[together.node], together.rows, together.reason) == (node, 3, Reason.CONTINUE)
        done = scheduler.complete(together, now + 1)
    assert done == Completion(finished=(1, 2, 3))
    assert scheduler.idle


def test_while_nothing_waits_the_policy_is_not_asked(core: Core) -> None:
    """A sub-batch without rivals goes on by itself; an empty scheduler has nothing to run."""
    scheduler = core.scheduler(Serial(), bare_spec(nodes=2))
    assert scheduler.schedule(0) is None
    scheduler.add(row(0))
    scheduler.complete(run(scheduler, 0), 1)
    scheduler._guarded.policy = Asked(RuntimeError("asked"))
    assert run(scheduler, 1).reason is Reason.CONTINUE
    assert scheduler.counts.policy_failures == 0


def test_a_busy_processor_gets_no_second_task(core: Core) -> None:
    """One processor runs one task, two run two, and never more."""
    for processors in (1, 2):
        scheduler = core.scheduler(Serial(), bare_spec(), processors=processors)
        for id in range(3):
            scheduler.add(row(id))
        tasks = [scheduler.schedule(0) for _ in range(3)]
        assert [task is not None for task in tasks] == [k < processors for k in range(3)]
        assert scheduler.active is None


def test_two_processors_finish_in_any_order(core: Core) -> None:
    """Batches of a one-node graph run side by side and end independently, failures included."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec(max_batch_size=2), processors=2))
    for id in range(5):
        ledger.add(row(id, id))
    first, second = ledger.schedule(5), ledger.schedule(5)
    assert first is not None
    assert second is not None
    assert ledger.complete(second, 6).finished == (2, 3)
    assert ledger.fail(first, 7).retried == (0, 1)
    ledger.finish(8)
    assert set(ledger.left.values()) == {"finished"}


def test_add_refuses_what_it_must(core: Core) -> None:
    """Unknown models and ids in use are the caller's error, a full queue is load; nothing is counted then."""
    scheduler = core.scheduler(Serial(), bare_spec("a", queue_capacity=1), bare_spec("b"))
    scheduler.add(row(0, model="a"))
    with pytest.raises(InvalidInput, match="unknown model 'c'; known are a, b"):
        scheduler.add(row(1, model="c"))
    with pytest.raises(InvalidInput, match="request id 0 is in use"):
        scheduler.add(row(0, model="b"))
    with pytest.raises(Overloaded):
        scheduler.add(row(1, model="a"))
    assert scheduler.counts.added == 1
    assert (scheduler.queued(), scheduler.queued("a"), scheduler.queued("b")) == (1, 1, 0)


def test_in_flight_is_counted_per_model_and_in_all(core: Core) -> None:
    """Running and parked rows count; waiting ones do not."""
    scheduler = core.scheduler(GraphBatching(), bare_spec("a"), bare_spec("b"))
    for id in range(3):
        scheduler.add(row(id, model="a"))
    scheduler.schedule(0)
    scheduler.add(row(3, model="b"))
    assert (scheduler.in_flight(), scheduler.in_flight("a"), scheduler.in_flight("b")) == (3, 3, 0)
    assert not scheduler.idle


def parked(core: Core, first: int = 1) -> tuple[Ledger, Task]:
    """Rows 0.. parked at node 1 of 3, below row 9, which runs node 0."""
    scheduler = core.scheduler(LazyBatching(), lane_spec(linear(nodes=3), max_batch_size=4))
    ledger = Ledger(scheduler)
    for id in range(first):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    ledger.complete(task, 1)
    ledger.add(row(9, 1))
    top = ledger.schedule(1)
    assert top is not None
    assert top.preempted == task.sub_batch
    return ledger, top


def test_cancel_while_queued(core: Core) -> None:
    """The row is gone at once, and cancelling it again, or something unknown, does nothing."""
    ledger = Ledger(core.scheduler(Serial(), bare_spec()))
    ledger.add(row(0))
    assert ledger.cancel(0, 0).where is Where.QUEUED
    assert ledger.cancel(0, 0).where is Where.UNKNOWN
    assert ledger.cancel(77, 0).where is Where.UNKNOWN
    assert ledger.scheduler.idle


def test_cancel_while_parked(core: Core) -> None:
    """One of two parked rows leaves its sub-batch; the other empties it, and the sub-batch is gone."""
    ledger, top = parked(core, first=2)
    first = top.preempted
    assert ledger.cancel(0, 1) == Cancellation(Where.PARKED, first)
    assert ledger.cancel(1, 1) == Cancellation(Where.PARKED, first, emptied=True)
    assert len(ledger.scheduler.stack) == 1
    ledger.finish(2)


def test_cancel_while_running(core: Core) -> None:
    """The row leaves at the node's end, as evicted; its mates go on."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec(nodes=2)))
    for id in range(3):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    assert ledger.cancel(1, 0) == Cancellation(Where.RUNNING, task.sub_batch)
    assert ledger.cancel(1, 0) == Cancellation(Where.RUNNING, task.sub_batch), "twice is once"
    assert ledger.complete(task, 1) == Completion(evicted=(1,))
    last = ledger.schedule(1)
    assert last is not None
    assert last.rows == 2
    ledger.cancel(0, 1)
    assert ledger.complete(last, 2) == Completion(evicted=(0,), finished=(2,)), "a cancelled row does not finish"


def test_cancelling_every_running_row_ends_the_sub_batch(core: Core) -> None:
    """Without rows it neither goes on nor finishes, and what it had preempted is active again."""
    ledger, top = parked(core)
    ledger.cancel(9, 1)
    assert ledger.complete(top, 2) == Completion(evicted=(9,))
    assert ledger.scheduler.active is not None
    assert ledger.scheduler.active.id == top.preempted
    ledger.finish(2)


def test_a_cancel_can_let_others_merge(core: Core) -> None:
    """When a parked row's leaving makes room, the two sub-batches that met but did not fit become one."""
    scheduler = core.scheduler(Asked(None), bare_spec(nodes=3, max_batch_size=4, allowed_sizes=(1, 2, 4)))
    lane = scheduler.lanes[0]
    ledger = Ledger(scheduler)
    for id in range(4):
        ledger.add(row(id, id))
    scheduler._guarded.policy = Asked(lambda view, now: Start(lane, 2, Reason.PREEMPT_SLACK))
    two = ledger.schedule(4)
    assert two is not None
    ledger.complete(two, 5)
    scheduler._guarded.policy = Asked(lambda view, now: Start(lane, 1, Reason.PREEMPT_SLACK))
    one = ledger.schedule(5)
    assert one is not None
    assert ledger.complete(one, 6).merges == (), "2 + 1 rows is not an allowed size"
    assert [len(entry) for entry in scheduler.stack] == [2, 1]
    assert ledger.cancel(0, 6).merges == (Merge("m", two.sub_batch, one.sub_batch),)
    assert [len(entry) for entry in scheduler.stack] == [2]
    ledger.cancel(3, 6)
    ledger.finish(6)


def test_a_failed_batch_is_run_again_row_by_row(core: Core) -> None:
    """Its rows return to the queue, keep their places, and run alone; only a row that fails alone has failed."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec(nodes=2)))
    for id in range(3):
        ledger.add(row(id, id))
    task = ledger.schedule(3)
    assert task is not None
    ledger.cancel(2, 3)
    assert ledger.fail(task, 4) == Failure((), (0, 1), (2,))
    ledger.add(row(3, 4))
    assert [is_alone(request) for request in ledger.scheduler.lanes[0].queue] == [True, True, False]
    alone = ledger.schedule(5)
    assert alone is not None
    assert (alone.opened, alone.reason) == ((0,), Reason.START_ALONE)
    assert ledger.fail(alone, 6) == Failure((0,), (), ())
    ledger.finish(7)
    assert ledger.left == {0: "failed", 1: "finished", 2: "cancelled", 3: "finished"}


def test_a_failure_in_a_batch_without_isolation_fails_all(core: Core) -> None:
    """isolate_failures=False: a batch stands or falls as a whole."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec(), isolate_failures=False))
    for id in range(3):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    assert ledger.fail(task, 1) == Failure((0, 1, 2), (), ())
    assert ledger.scheduler.idle


def test_a_failure_beside_a_cancelled_row_is_not_proof(core: Core) -> None:
    """The row cancelled while the batch ran may have been the culprit: the one that is left runs again, alone."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec()))
    for id in range(2):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    ledger.cancel(1, 1)
    assert ledger.fail(task, 2) == Failure((), (0,), (1,))
    ledger.finish(3)
    assert ledger.left == {0: "finished", 1: "cancelled"}


def test_a_failure_of_rows_that_were_all_cancelled_fails_nobody(core: Core) -> None:
    """They leave as cancelled."""
    ledger = Ledger(core.scheduler(GraphBatching(), bare_spec()))
    for id in range(2):
        ledger.add(row(id))
    task = ledger.schedule(0)
    assert task is not None
    ledger.cancel(0, 0)
    ledger.cancel(1, 0)
    assert ledger.fail(task, 1) == Failure((), (), (0, 1))
    assert ledger.scheduler.idle


def test_a_failed_newcomer_uncovers_what_it_preempted(core: Core) -> None:
    """The parked sub-batch is active again and finishes."""
    ledger, top = parked(core)
    assert ledger.fail(top, 2).failed == (9,)
    assert ledger.scheduler.active is not None
    assert ledger.scheduler.active.id == top.preempted
    ledger.finish(2)
    assert ledger.left == {9: "failed", 0: "finished"}


def test_queue_timeouts_reject_waiting_rows_only(core: Core) -> None:
    """Past the limit of its level a waiting row is rejected; one that runs is not; the driver is told when to look."""
    scheduler = core.scheduler(GraphBatching(window_ns=50), bare_spec(levels={0: PriorityLevel(10)}), bare_spec("b"))
    ledger = Ledger(scheduler)
    assert scheduler.expire(0) == ()
    ledger.add(row(0, 0))
    ledger.add(row(1, 3, priority=1))
    assert ledger.schedule(3) is None
    assert scheduler.next_wakeup() == 10, "the timeout comes before the window's end"
    assert scheduler.expire(9) == ()
    ledger.expire(10)
    assert ledger.left == {0: "rejected"}
    assert ledger.schedule(10) is None
    assert scheduler.next_wakeup() == 53
    ledger.finish(10)


def test_without_news_to_wait_for_there_is_no_wakeup(core: Core) -> None:
    """An empty scheduler, or one whose policy waits for arrivals, sets no timer."""
    scheduler = core.scheduler(Asked(Wait()), bare_spec())
    assert scheduler.next_wakeup() is None
    scheduler.add(row(0))
    assert scheduler.schedule(0) is None
    assert scheduler.next_wakeup() is None


def test_a_choice_within_the_room_is_carried_out(core: Core) -> None:
    """Any policy may preempt with as many rows as still fit; they merge when they have caught up."""
    scheduler = core.scheduler(
        Asked(lambda view, now: Start(view.lanes[0], 2, Reason.PREEMPT_SLACK)), bare_spec(nodes=2, max_batch_size=4)
    )
    ledger = Ledger(scheduler)
    for id in range(2):
        ledger.add(row(id))
    first = ledger.schedule(0)
    assert first is not None
    ledger.complete(first, 1)
    for id in range(2, 4):
        ledger.add(row(id, 1))
    second = ledger.schedule(1)
    assert second is not None
    assert second.preempted == first.sub_batch
    assert ledger.complete(second, 2).merges == (Merge("m", first.sub_batch, second.sub_batch),)
    assert scheduler.counts.policy_failures == 0
    ledger.finish(2)


def test_merging_below_another_models_sub_batch_keeps_the_order_of_the_stack(core: Core) -> None:
    """A merged sub-batch takes the place of the newer one; sub-batches of other models stay where they are."""
    scheduler = core.scheduler(
        Asked(lambda view, now: next(Start(lane, 1, Reason.PREEMPT_SLACK) for lane in view.lanes if len(lane.queue))),
        bare_spec("a", nodes=3),
        bare_spec("b", nodes=3),
    )
    ledger = Ledger(scheduler)
    ids = []
    for id, model in enumerate("aba"):
        ledger.add(row(id, id, model=model))
        task = ledger.schedule(id)
        assert task is not None
        ids.append(task.sub_batch)
        done = ledger.complete(task, id + 1)
    assert done.merges == (Merge("a", ids[0], ids[2]),)
    assert [(entry.model, entry.ids()) for entry in scheduler.stack] == [("b", (1,)), ("a", (0, 2))]
    ledger.finish(3)


def test_padded_rows_are_run_and_live_rows_counted(core: Core) -> None:
    """Three rows where only 1, 4 and 8 may run: the task says 3 live and 4 executed."""
    scheduler = core.scheduler(GraphBatching(), bare_spec(max_batch_size=8, allowed_sizes=(1, 4, 8)))
    for id in range(3):
        scheduler.add(row(id))
    task = run(scheduler, 0)
    assert (task.rows, task.padded_rows) == (3, 4)


def test_every_dispatch_is_in_the_decision_log(core: Core) -> None:
    """The log is what equivalence tests and traces read: time and task, in order."""
    scheduler = core.scheduler(Serial(), bare_spec(nodes=2))
    scheduler.add(row(0))
    first = run(scheduler, 3)
    scheduler.complete(first, 5)
    second = run(scheduler, 7)
    assert list(scheduler.decisions) == [Decision(3, first), Decision(7, second)]


def test_the_policy_hears_how_long_nodes_took(core: Core) -> None:
    """With the rows that were executed: from when the processor was free, as what the engine takes between two nodes is
    part of the second; from the decision, where there was nothing to run before; not of nodes that failed."""
    heard: list[object] = []

    class Listening(GraphBatching):
        def ran(self, lane: Lane, node: int, rows: int, took_ns: int) -> None:
            heard.append((lane.model, node, rows, took_ns))

    scheduler = core.scheduler(Listening(), bare_spec(nodes=2, max_batch_size=4, allowed_sizes=(1, 4)))
    for id in range(2):
        scheduler.add(row(id))
    scheduler.complete(run(scheduler, 5), 7)
    scheduler.complete(run(scheduler, 10), 13)
    assert scheduler.schedule(14) is None
    scheduler.add(row(2))
    scheduler.complete(run(scheduler, 20), 23)
    scheduler.fail(run(scheduler, 24), 25)
    assert heard == [("m", 0, 4, 2), ("m", 1, 4, 6), ("m", 0, 1, 3)]


def test_the_policy_hears_of_arrivals_and_of_finished_sub_batches(core: Core) -> None:
    """With the rows that are left and the start; not of nodes in the middle, failures, or rows that were withdrawn."""
    heard: list[object] = []

    class Listening(Serial):
        def arrived(self, request: Request) -> None:
            heard.append(request.id)

        def completed(self, sub_batch: SubBatch, now: int) -> None:
            heard.append((sub_batch.ids(), sub_batch.started_ns, now))

    scheduler = core.scheduler(Listening(), bare_spec(nodes=2))
    for id in range(3):
        scheduler.add(row(id))
    scheduler.complete(run(scheduler, 5), 6)
    scheduler.complete(run(scheduler, 6), 7)
    scheduler.fail(run(scheduler, 7), 8)
    task = run(scheduler, 8)
    scheduler.cancel(2, 8)
    scheduler.complete(task, 9)
    assert heard == [0, 1, 2, ((0,), 5, 7)]
