"""Builders and a bookkeeper for the tests of the core.

Owns: short ways to write requests, tables and lanes, and `Ledger`, which follows every row through a scheduler by what
the scheduler *says* (tasks, completions, merges), independently of what it keeps.
Must not know: engine, executors, real time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import Alone
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Choice, View
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Cancellation, Completion, Failure, Merge, Task, Where


def row(
    id: int,
    at: int = 0,
    *,
    model: str = "m",
    sla: int | None = None,
    signature: Hashable = None,
    size: int = 1,
    priority: int = 0,
) -> Request:
    """One request; ``sla`` is relative to its arrival, as a caller states it."""
    return Request(id, model, at, UNBOUNDED_NS if sla is None else at + sla, signature, size, priority)


def linear(model: str = "m", nodes: int = 1, fixed: int = 90, per_row: int = 10, rows_max: int = 16) -> LatencyTable:
    """Every node takes fixed + per_row * rows nanoseconds, exactly, at every size up to ``rows_max``."""
    sizes = tuple(sorted({1, rows_max}))
    return LatencyTable.uniform(model, nodes, fixed * nodes, per_row * nodes, sizes)


def lane_spec(table: LatencyTable | None = None, **options: Any) -> LaneSpec:
    """A lane whose node graph is that of the table."""
    table = table or linear()
    return LaneSpec(NodeGraph.chain(table.model, table.nodes), table, **options)


def bare_spec(model: str = "m", nodes: int = 1, **options: Any) -> LaneSpec:
    """A lane without a latency table."""
    return LaneSpec(NodeGraph.chain(model, [f"node{k}" for k in range(nodes)]), None, **options)


def sub_batch(id: int, *requests: Request, cursor: int = 0, padded_rows: int | None = None) -> SubBatch:
    """A parked sub-batch that stands at ``cursor``."""
    entry = SubBatch(id, requests[0].model, list(requests), padded_rows)
    entry.cursor = cursor
    return entry


class Asked:
    """A policy that answers what it is told to: a choice, a function of (view, now), or an exception to raise."""

    needs_table = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, view: View, now: int) -> Choice:
        """Give the answer."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        if callable(self.answer):
            answer: Callable[[View, int], Choice] = self.answer
            return answer(view, now)
        choice: Choice = self.answer
        return choice


def run(scheduler: Scheduler, now: int) -> Task:
    """The next task; it is an error if there is none."""
    task = scheduler.schedule(now)
    assert task is not None
    return task


def run_node(scheduler: Scheduler, now: int) -> tuple[int, tuple[int, ...]]:
    """Run the next node for as long as the table says; returns the time, and who finished."""
    task = scheduler.schedule(now)
    assert task is not None
    times_ns = scheduler.lane_of(task.model).times_ns
    assert times_ns is not None
    now += times_ns[task.node][task.padded_rows]
    return now, scheduler.complete(task, now).finished


class Ledger:
    """Follows rows through a scheduler by its answers alone, and checks what a driver relies on.

    Every row runs node 0, 1, ... once each and in order (again from 0 after a failure), leaves exactly once, and never
    shares a sub-batch with another signature.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: dict[int, Request] = {}
        self.left: dict[int, str] = {}
        self.doomed: set[int] = set()
        self.alone: set[int] = set()
        self.members: dict[int, dict[int, int]] = {}
        self.running: list[Task] = []

    def add(self, request: Request) -> None:
        """Queue a row; an exception from the scheduler passes through and nothing is noted."""
        self.scheduler.add(request)
        assert request.id not in self.requests
        self.requests[request.id] = request

    def _leave(self, request_id: int, how: str) -> None:
        assert request_id not in self.left, f"request {request_id} left twice: {self.left[request_id]}, {how}"
        self.left[request_id] = how

    def expire(self, now: int) -> None:
        """Apply queue timeouts, and let go of what is hopeless where such rows are dropped."""
        for request_id, hopeless in self.scheduler.expire(now):
            assert all(request_id not in ids for ids in self.members.values()), "only waiting rows time out"
            assert request_id not in self.alone, "a row that is retried is exempt from timeouts and dropping"
            assert not hopeless or self._is_hopeless(self.requests[request_id], now)
            self._leave(request_id, "dropped" if hopeless else "rejected")
        inside = {request_id for ids in self.members.values() for request_id in ids}
        for request_id in set(self.requests) - set(self.left) - self.alone - inside:
            assert not self._is_hopeless(self.requests[request_id], now), "what is hopeless goes at once"

    def _is_hopeless(self, request: Request, now: int) -> bool:
        lane = self.scheduler.lane_of(request.model)
        table = lane.spec.unrolled("shortest")
        if lane.spec.late != "drop" or table is None:
            return False
        return request.deadline_ns < now + table.whole_ns(next(iter(lane.spec.allowed_sizes), 1))

    def cancel(self, request_id: int, now: int) -> Cancellation:
        """Withdraw a row, wherever it is."""
        inside = next((sub for sub, ids in self.members.items() if request_id in ids), None)
        answer = self.scheduler.cancel(request_id, now)
        if request_id in self.left or request_id not in self.requests:
            assert answer == Cancellation(Where.UNKNOWN)
            return answer
        assert answer.sub_batch == inside
        if answer.where is Where.RUNNING:
            assert any(task.sub_batch == inside for task in self.running)
            self.doomed.add(request_id)
            return answer
        self._leave(request_id, "cancelled")
        if inside is None:
            assert answer == Cancellation(Where.QUEUED)
            return answer
        assert answer.where is Where.PARKED
        del self.members[inside][request_id]
        assert answer.emptied == (not self.members[inside])
        if answer.emptied:
            del self.members[inside]
        self._merge(answer.merges)
        return answer

    def schedule(self, now: int) -> Task | None:
        """Ask for the next task and check that it is one that can be run."""
        task = self.scheduler.schedule(now)
        if task is None:
            return None
        lane = self.scheduler.lane_of(task.model)
        if task.opened:
            assert not lane.spec.allowed_sizes or task.padded_rows in lane.spec.allowed_sizes
            self._opened(task)
        ids = self.members[task.sub_batch]
        assert set(ids.values()) == {task.node}, "all rows of a sub-batch stand at the node that runs"
        assert task.rows == len(ids) <= task.padded_rows
        assert task.rows <= lane.rows_max
        assert task.preempted is None or (task.preempted in self.members and task.preempted != task.sub_batch)
        self._check_mates(lane, ids)
        assert all(other.sub_batch != task.sub_batch for other in self.running)
        self.running.append(task)
        return task

    def _opened(self, task: Task) -> None:
        assert task.sub_batch not in self.members
        assert task.node == 0
        self.members[task.sub_batch] = dict.fromkeys(task.opened, 0)

    def _check_mates(self, lane: Lane, ids: dict[int, int]) -> None:
        assert len({self.requests[request_id].signature for request_id in ids}) == 1, "a signature never mixes"
        for model in {self.requests[request_id].model for request_id in ids} - {lane.model}:
            assert lane.model in self.scheduler.lane_of(model).spec.wider, "only rows of narrower lanes ride along"
        assert len(ids) == 1 or not (self.alone & set(ids)), "a row that is retried runs without mates"

    def _evict(self, task: Task, evicted: tuple[int, ...]) -> dict[int, int]:
        ids = self.members[task.sub_batch]
        assert set(evicted) == self.doomed & set(ids), "exactly the rows cancelled while the node ran"
        for request_id in evicted:
            del ids[request_id]
            self._leave(request_id, "cancelled")
        return ids

    def complete(self, task: Task, now: int) -> Completion:
        """The task ran; carry out what follows, in the order a driver must."""
        self.running.remove(task)
        answer = self.scheduler.complete(task, now)
        ids = self._evict(task, answer.evicted)
        for request_id in ids:
            ids[request_id] += 1
        if answer.finished:
            nodes = self.scheduler.lane_of(task.model).nodes
            assert set(answer.finished) == set(ids), "a sub-batch finishes as a whole"
            assert set(ids.values()) == {nodes}, "every node ran once"
            for request_id in answer.finished:
                self._leave(request_id, "finished")
        if answer.finished or not ids:
            del self.members[task.sub_batch]
        self._merge(answer.merges)
        return answer

    def fail(self, task: Task, now: int) -> Failure:
        """The task raised."""
        self.running.remove(task)
        answer = self.scheduler.fail(task, now)
        ids = self._evict(task, answer.evicted)
        del self.members[task.sub_batch]
        assert set(answer.failed) | set(answer.retried) == set(ids)
        assert not set(answer.failed) & set(answer.retried)
        for request_id in answer.failed:
            self._leave(request_id, "failed")
        assert not self.alone & set(answer.retried), "a row is retried once"
        self.alone.update(answer.retried)
        self._merge(answer.merges)
        return answer

    def _merge(self, merges: tuple[Merge, ...]) -> None:
        for merge in merges:
            source = self.members.pop(merge.source)
            target = self.members[merge.target]
            assert set(source.values()) == set(target.values()), "sub-batches merge at equal nodes only"
            target.update(source)
            lane = self.scheduler.lane_of(merge.model)
            assert len(target) <= lane.rows_max
            assert not lane.spec.allowed_sizes or len(target) in lane.spec.allowed_sizes
            self._check_mates(lane, target)

    def finish(self, now: int, *, steps_max: int = 10_000) -> int:
        """Drive the scheduler until it is empty; returns the time. Every row must have left exactly once by then."""
        scheduler = self.scheduler
        scheduler.drain()
        for _ in range(steps_max):
            self.expire(now)
            if self.schedule(now) is not None:
                continue
            if self.running:
                now += 1
                self.complete(self.running[0], now)
            elif scheduler.idle:
                break
            else:
                wake = scheduler.next_wakeup()
                assert wake is not None, "rows wait, nothing runs, and nobody will wake the driver"
                assert wake > now, "a wake-up in the past would spin the driver"
                now = wake
        assert scheduler.idle, f"not empty after {steps_max} steps"
        self.check_counts()
        assert set(self.left) == set(self.requests), "every row that was added has left"
        return now

    def check_counts(self) -> None:
        """The scheduler's counts agree with what was seen to leave."""
        counts = self.scheduler.counts
        seen = list(self.left.values())
        assert counts.added == len(self.requests)
        assert counts.finished == seen.count("finished")
        assert counts.failed == seen.count("failed")
        assert counts.cancelled == seen.count("cancelled")
        assert counts.rejected == seen.count("rejected")
        assert counts.dropped == seen.count("dropped")


def waiting_ids(lane: Lane) -> list[int]:
    """Ids in a lane's queue."""
    return sorted(request.id for request in lane.queue)


def is_alone(request: Request) -> bool:
    """Whether a queued row is to run without mates."""
    return isinstance(request.signature, Alone)
