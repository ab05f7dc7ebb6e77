"""The scheduler: every decision, for every model on one processor (or a pool of workers for one-node graphs).

Owns: `Scheduler`, the only writer of lanes, stacks and queues; the log of its decisions.
Must not know: the clock (every call takes ``now`` in integer nanoseconds), threads, tensors, futures; how the stack is
kept in order (`core.flight`), what a policy may get wrong (`core.guarded_policy`).

A driver calls `add` and `cancel` as things happen, and at every node boundary: `expire`, `schedule`, run what it
returns, then `complete` or `fail`. The policy is asked only when there is something to choose: while nothing waits,
the active sub-batch simply goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.counts import Counts
from lazybatch.core.flight import Flight
from lazybatch.core.guarded_policy import GuardedPolicy
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.lanes import lanes_by_model
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.policies.base import Policy, Start, Stay, Wait
from lazybatch.core.request import Request
from lazybatch.core.task import (
    NOTHING,
    Cancellation,
    Comparison,
    Completion,
    Expired,
    Failure,
    Merge,
    Reason,
    Split,
    Task,
    Where,
)
from lazybatch.errors import InvalidInput, InvariantError

_CONTINUE = Reason.CONTINUE
_new = tuple.__new__  # a NamedTuple's own constructor is one more call, and two are made on every dispatch
_DECISIONS_KEPT = 100_000


class Decision(NamedTuple):
    """One entry of the decision log. now_ns: reading of the driver's clock, as `Scheduler.schedule` was given it."""

    now_ns: int
    task: Task


class Scheduler:
    """Several lanes, one policy. See the module's text for the order of calls.

    processors: tasks that may run at once; more than one only where every graph has a single node.
    isolate_failures: rows of a failed sub-batch are run again one by one, so that only the culprits fail.

    Raises `InvalidInput` for lanes that cannot share a scheduler, see `lanes_by_model`.
    """

    def __init__(
        self, lanes: Sequence[LaneSpec], policy: Policy, *, processors: int = 1, isolate_failures: bool = True
    ) -> None:
        self._by_model = lanes_by_model(lanes, policy, processors)
        self.lanes: tuple[Lane, ...] = tuple(self._by_model.values())
        self.draining = False
        self.counts = Counts()
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)
        self._guarded = GuardedPolicy(policy, self._by_model, processors, self.counts)
        self._flight = Flight()
        self.stack = self._flight.stack
        self._processors = processors
        self._isolate = isolate_failures
        self._running = 0
        self._waiting = 0
        self._wakeup_ns: int | None = None
        self._free_ns: int | None = None
        """When the processor became free, where nothing has run since."""
        self.timed = any(lane.spec.levels or lane.spec.late == "drop" for lane in self.lanes)
        """Whether `expire` can ever have anything to say."""

    # -- what a policy may look at -------------------------------------------------------------------------------

    @property
    def active(self) -> SubBatch | None:
        """The sub-batch to go on with; None when nothing is in flight, or when all of it is running."""
        if self.stack and not self.stack[-1].running:
            return self.stack[-1]
        return None

    @property
    def policy_error(self) -> Exception | None:
        """What the policy did wrong the last time it failed; None while it has not."""
        return self._guarded.error

    def lane_of(self, model: str) -> Lane:
        """The lane of a model. Raises `InvalidInput` for an unknown one."""
        try:
            return self._by_model[model]
        except KeyError:
            raise InvalidInput(f"unknown model {model!r}; known are {', '.join(self._by_model)}") from None

    # -- arrivals and departures ---------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises `Overloaded` (queue full), `InvalidInput` (unknown model, id in use)."""
        lane = self._by_model.get(request.model) or self.lane_of(request.model)
        located = self._flight.located
        if request.id in located:
            raise InvalidInput(f"request id {request.id} is in use")
        if request.trips and request.trips != lane.trips_unknown:
            lane.check(request)
        lane.queue.push(request)
        guarded = self._guarded
        if guarded.arrived is not None:
            guarded.tell(guarded.arrived, request)
        located[request.id] = (lane, None)
        self._waiting += 1
        self.counts.added += 1

    def expire(self, now: int) -> tuple[Expired, ...]:
        """Let waiting rows go whose level's queue timeout has passed, or which are hopeless where such are dropped."""
        if not (self.timed and self._waiting):
            return ()
        gone: list[Expired] = []
        for lane in self.lanes:
            if now >= lane.queue.due_ns:
                gone += [Expired(request.id, False) for request in lane.queue.expire(now)]
                gone += [Expired(request.id, True) for request in lane.queue.drop(now)]
        self._flight.leave(request_id for request_id, _ in gone)
        for _, hopeless in gone:
            if hopeless:
                self.counts.dropped += 1
            else:
                self.counts.rejected += 1
        self._waiting -= len(gone)
        return tuple(gone)

    def cancel(self, request_id: int, now: int) -> Cancellation:
        """Withdraw a request: at once while it is queued or parked, at the next node boundary while it runs."""
        flight = self._flight
        found = flight.located.get(request_id)
        if found is None:
            return Cancellation(Where.UNKNOWN)
        lane, entry = found
        if entry is not None and entry.running:
            entry.doomed.add(request_id)
            return Cancellation(Where.RUNNING, entry.id)
        self.counts.cancelled += 1
        if entry is None:
            lane.queue.remove(request_id)
            flight.leave((request_id,))
            self._waiting -= 1
            return Cancellation(Where.QUEUED)
        flight.evict(lane, entry, {request_id})
        return Cancellation(Where.PARKED, entry.id, emptied=not entry.requests, merges=flight.merge(lane))

    def drain(self) -> None:
        """No further request will come: batching windows need not wait any longer."""
        self.draining = True

    # -- node boundaries -----------------------------------------------------------------------------------------

    def schedule(self, now: int) -> Task | None:
        """The next thing to run. None: no processor is free, or nothing should run before `next_wakeup`."""
        self._wakeup_ns = None
        if self._running == self._processors:
            return None
        stack = self.stack
        entry = stack[-1] if stack and not stack[-1].running else None
        if not self._waiting:
            if entry is None:
                self._free_ns = None
                return None
            return self._dispatch(entry, (), None, _CONTINUE, None, now)
        choice = self._guarded.choose(self, entry, now)
        if type(choice) is Start:
            return self._start(choice, entry, now)
        if type(choice) is Wait:
            self._wakeup_ns, self._free_ns = choice.until_ns, None
            return None
        assert entry is not None, "going on was checked to be possible"
        if type(choice) is Stay:
            return self._dispatch(entry, (), None, choice.reason, choice.comparison, now)
        return self._dispatch(entry, (), None, _CONTINUE, None, now)

    def next_wakeup(self) -> int | None:
        """When `schedule` should be called again at the latest, after it returned None; None: only on news."""
        times = [self._wakeup_ns, *(lane.queue.next_timeout_ns() for lane in self.lanes if self.timed)]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def complete(self, task: Task, now: int, done: Collection[int] = ()) -> Completion:
        """The task's node ran. Advances its sub-batch; says who leaves and what merges.

        done: where this was the last node of a loop's body, the rows that were found to be done with the loop. Rows
        whose trips are known leave by themselves.
        """
        flight = self._flight
        lane, entry, evicted = self._stop(task)
        guarded = self._guarded
        if guarded.ran is not None:
            guarded.tell(guarded.ran, lane, task.node, task.padded_rows, now - entry.dispatched_ns)
        self._free_ns = now
        if not entry.requests:
            return Completion(evicted, (), None, flight.merge(lane))
        if lane.loops:
            return self._advance(lane, entry, evicted, done, now)
        entry.cursor += 1
        if entry.cursor < lane.nodes:
            if len(self.stack) == 1:  # nothing to meet
                return Completion(evicted) if evicted else NOTHING
            merges = flight.merge(lane)
            return Completion(evicted, (), None, merges) if merges or evicted else NOTHING
        return Completion(evicted, self._finish(lane, entry, now), None, flight.merge(lane))

    def _stop(self, task: Task) -> tuple[Lane, SubBatch, tuple[int, ...]]:
        """The task's processor is free again: lane, sub-batch, and which of its rows leave, withdrawn meanwhile."""
        entry = self._flight.sub_batches[task.sub_batch]
        lane = self._by_model[task.model]
        entry.running = False
        self._running -= 1
        return lane, entry, self._evict_doomed(lane, entry) if entry.doomed else ()

    def _advance(
        self, lane: Lane, entry: SubBatch, evicted: tuple[int, ...], done: Collection[int], now: int
    ) -> Completion:
        """Where the graph has loops: rows may leave one while others of their sub-batch stay in it."""
        table = lane.table
        assert isinstance(table, LoopTable), "lanes with loops have one"
        leavers = table.advance(entry, done)
        finished: tuple[int, ...] = ()
        split: Split | None = None
        if entry.cursor == lane.nodes:
            finished = self._finish(lane, entry, now)
        elif leavers.requests:
            ids = tuple([request.id for request in leavers.requests])
            if leavers.cursor == lane.nodes:
                finished = self._left(ids)
            else:
                other = self._flight.open(lane, list(leavers.requests), leavers.cursor, entry.started_ns, entry)
                split = Split(lane.model, entry.id, other.id, ids)
        elif len(self.stack) == 1 and not (evicted or leavers.truncated):
            return NOTHING
        return Completion(evicted, finished, split, self._flight.merge(lane), leavers.truncated)

    def _finish(self, lane: Lane, entry: SubBatch, now: int) -> tuple[int, ...]:
        """The last node of a sub-batch has run: it is over, and its rows are finished."""
        finished = self._left(entry.ids())
        self._flight.remove(lane, entry)
        guarded = self._guarded
        if guarded.completed is not None:
            guarded.tell(guarded.completed, entry, now)
        return finished

    def _left(self, finished: tuple[int, ...]) -> tuple[int, ...]:
        self._flight.leave(finished)
        self.counts.finished += len(finished)
        return finished

    def _evict_doomed(self, lane: Lane, entry: SubBatch) -> tuple[int, ...]:
        """Rows that were withdrawn while the node ran leave; so does a sub-batch of which none is left."""
        evicted = self._flight.evict(lane, entry, entry.doomed)
        entry.doomed = set()
        self.counts.cancelled += len(evicted)
        return evicted

    def fail(self, task: Task, now: int) -> Failure:
        """The task's node raised. Its sub-batch is over: a row that ran alone fails, others go back to run one by one.

        A row whose mates have all been cancelled meanwhile did not run alone: one of them may have been the culprit.
        """
        flight = self._flight
        lane, entry, evicted = self._stop(task)
        requests = entry.requests
        if requests:
            flight.remove(lane, entry)
            flight.leave(entry.ids())
        return self._again(requests, task.rows > 1, evicted, flight.merge(lane))

    def expel(self, task: Task, now: int) -> Failure:
        """The rows that the task was to let in (`Task.joined`) could not be gathered, so its node did not run.

        They go back to run one by one; whom they were to join goes on without them, from where it stood.
        """
        flight = self._flight
        lane, entry, evicted = self._stop(task)
        newcomers = [request for request in entry.requests if request.id in task.opened]
        if newcomers:
            flight.evict(lane, entry, {request.id for request in newcomers})
        return self._again(newcomers, True, evicted, flight.merge(lane))

    def _again(
        self, requests: Sequence[Request], retry: bool, evicted: tuple[int, ...], merges: tuple[Merge, ...]
    ) -> Failure:
        """Requests whose task failed, and which are in flight no more, go back to run one by one, or have failed."""
        ids = tuple([request.id for request in requests])
        if self._isolate and retry:
            for request in requests:
                home = self._by_model[request.model]  # another than the batch's, for a row that rode along
                home.queue.requeue_alone(request)
                self._flight.located[request.id] = (home, None)
            self._waiting += len(requests)
            return Failure((), ids, evicted, merges)
        self.counts.failed += len(requests)
        return Failure(ids, (), evicted, merges)

    def _start(self, choice: Start, active: SubBatch | None, now: int) -> Task:
        lane = choice.lane
        requests = lane.queue.take(now, choice.rows, choice.size_budget, choice.skip)
        for model, rows in choice.riders:
            requests += self._by_model[model].queue.take(now, rows)
        self._waiting -= len(requests)
        flight = self._flight
        entry = flight.open(lane, requests, 0, now)
        opened = entry.ids()
        if isinstance(lane.table, LoopTable) and lane.table.meets_below():  # a loop comes first, and others go round it
            flight.merge(lane)
            target = flight.located[opened[0]][1]
            assert target is not None, "it was merged into"
            preempted = None if active is target or active is None else active.id
            return self._dispatch(target, opened, preempted, choice.reason, choice.comparison, now, entry.id)
        preempted = None if active is None else active.id
        return self._dispatch(entry, opened, preempted, choice.reason, choice.comparison, now)

    def _dispatch(
        self,
        entry: SubBatch,
        opened: tuple[int, ...],
        preempted: int | None,
        reason: Reason,
        comparison: Comparison | None,
        now: int,
        joined: int | None = None,
    ) -> Task:
        entry.running = True
        # What the engine takes between two nodes is part of the second one, in tables as well.
        entry.dispatched_ns = now if self._free_ns is None else self._free_ns
        self._free_ns = None
        self._running += 1
        rows = len(entry.requests)
        task = _new(
            Task,
            (
                entry.model,
                entry.id,
                entry.cursor,
                rows,
                entry.padded_rows or rows,
                opened,
                preempted,
                reason,
                comparison,
                joined,
            ),
        )
        self.decisions.append(_new(Decision, (now, task)))
        return task

    # -- what a driver may ask -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._flight.located

    def queued(self, model: str | None = None) -> int:
        """Rows that wait, of one model or of all."""
        return self._waiting if model is None else len(self.lane_of(model).queue)

    def in_flight(self, model: str | None = None) -> int:
        """Rows in sub-batches, running or parked, of one model or of all."""
        return sum(lane.table.rows for lane in self.lanes if model is None or lane.model == model)

    def validate(self) -> None:
        """Check every invariant of the whole scheduler. Raises `InvariantError`."""
        for lane in self.lanes:
            lane.queue.validate()
            lane.table.validate()
            if lane.table.rows > lane.rows_max * self._processors:
                raise InvariantError(f"scheduler: {lane.table.rows} rows of model {lane.model!r} in flight")
        self._flight.validate(self.lanes)
        if sum(entry.running for entry in self.stack) != self._running or not 0 <= self._running <= self._processors:
            raise InvariantError(f"scheduler: {self._running} tasks counted as running, stack {self.stack}")
        if sum(len(lane.queue) for lane in self.lanes) != self._waiting:
            raise InvariantError(f"scheduler: {self._waiting} rows counted as waiting")
        counts = self.counts
        if counts.added != counts.left + len(self._flight.located):
            raise InvariantError(f"scheduler: {counts} with {len(self._flight.located)} requests inside")
