"""The scheduler: every decision, for every model on one processor (or a pool of workers for one-node graphs).

Owns: `Scheduler`, the only writer of lanes, stacks and queues.
Must not know: the clock (every call takes ``now`` in integer nanoseconds), threads, tensors, futures.

A driver calls `add` and `cancel` as things happen, and at every node boundary: `expire`, `schedule`, run what it
returns, then `complete` or `fail`. The policy is asked only when there is something to choose: while nothing waits,
the active sub-batch simply goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lazybatch.core.batch_table import SubBatch
from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.policies.base import Choice, Policy, Start, Stay, Wait
from lazybatch.core.policies.graph_batching import GraphBatching
from lazybatch.core.request import Request
from lazybatch.core.task import (
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

_NOTHING = Completion()
_CONTINUE = Reason.CONTINUE
_new = tuple.__new__  # a NamedTuple's own constructor is one more call, and two are made on every dispatch
_DECISIONS_KEPT = 100_000


class Decision(NamedTuple):
    """One entry of the decision log. now_ns: reading of the driver's clock, as `Scheduler.schedule` was given it."""

    now_ns: int
    task: Task


@dataclass(slots=True)
class Counts:
    """Rows that ever entered and how they left, for `Scheduler.validate` and statistics."""

    added: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    dropped: int = 0
    policy_failures: int = 0
    """Times the policy raised, or chose what cannot be done. Decisions were made by graph batching instead."""


class Scheduler:
    """Several lanes, one policy. See the module's text for the order of calls.

    processors: tasks that may run at once; more than one only where every graph has a single node.
    isolate_failures: rows of a failed sub-batch are run again one by one, so that only the culprits fail.

    Raises `InvalidInput` for no lanes, two lanes of one model, or a policy that needs a table a lane lacks.
    """

    def __init__(
        self, lanes: Sequence[LaneSpec], policy: Policy, *, processors: int = 1, isolate_failures: bool = True
    ) -> None:
        if not lanes:
            raise InvalidInput("a scheduler needs at least one model")
        if processors < 1:
            raise InvalidInput(f"processors must be at least 1, got {processors}")
        self._by_model: dict[str, Lane] = {}
        for spec in lanes:
            if spec.graph.model in self._by_model:
                raise InvalidInput(f"two models are called {spec.graph.model!r}")
            if policy.needs_table and spec.latency is None:
                raise InvalidInput(f"policy {policy!r} needs a latency table for model {spec.graph.model!r}")
            if processors > 1 and (len(spec.graph) > 1 or spec.graph.loops):
                what = "loops" if spec.graph.loops else f"{len(spec.graph)} nodes"
                raise InvalidInput(f"model {spec.graph.model!r} has {what}: one processor only")
            self._by_model[spec.graph.model] = Lane(spec, whole=getattr(policy, "whole_batches", False))
        for spec in lanes:
            _check_wider(spec, self._by_model)
        self.lanes: tuple[Lane, ...] = tuple(self._by_model.values())
        self.stack: list[SubBatch] = []
        self.draining = False
        self.counts = Counts()
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)
        self.policy_error: Exception | None = None
        self._policy = policy
        self._on_arrival: Callable[[Request], None] | None = getattr(policy, "arrived", None)
        self._on_completion: Callable[[SubBatch, int], None] | None = getattr(policy, "completed", None)
        self._fallback = GraphBatching()
        self._processors = processors
        self._isolate = isolate_failures
        self._running = 0
        self._waiting = 0
        self._next_sub_batch = 0
        self._sub_batches: dict[int, SubBatch] = {}
        self._located: dict[int, tuple[Lane, SubBatch | None]] = {}
        self._wakeup_ns: int | None = None
        self._timed = any(lane.spec.levels or lane.spec.late == "drop" for lane in self.lanes)

    # -- what a policy may look at -------------------------------------------------------------------------------

    @property
    def active(self) -> SubBatch | None:
        """The sub-batch to go on with; None when nothing is in flight, or when all of it is running."""
        if self.stack and not self.stack[-1].running:
            return self.stack[-1]
        return None

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
        if request.id in self._located:
            raise InvalidInput(f"request id {request.id} is in use")
        if request.trips:
            lane.check(request)
        lane.queue.push(request)
        if self._on_arrival is not None:
            self._tell(self._on_arrival, request)
        self._located[request.id] = (lane, None)
        self._waiting += 1
        self.counts.added += 1

    def expire(self, now: int) -> tuple[Expired, ...]:
        """Let waiting rows go whose level's queue timeout has passed, or which are hopeless where such are dropped."""
        if not (self._timed and self._waiting):
            return ()
        gone: list[Expired] = []
        for lane in self.lanes:
            if now >= lane.queue.due_ns:
                gone += [Expired(request.id, False) for request in lane.queue.expire(now)]
                gone += [Expired(request.id, True) for request in lane.queue.drop(now)]
        for request_id, hopeless in gone:
            del self._located[request_id]
            if hopeless:
                self.counts.dropped += 1
            else:
                self.counts.rejected += 1
        self._waiting -= len(gone)
        return tuple(gone)

    def cancel(self, request_id: int, now: int) -> Cancellation:
        """Withdraw a request: at once while it is queued or parked, at the next node boundary while it runs."""
        found = self._located.get(request_id)
        if found is None:
            return Cancellation(Where.UNKNOWN)
        lane, entry = found
        if entry is not None and entry.running:
            entry.doomed.add(request_id)
            return Cancellation(Where.RUNNING, entry.id)
        del self._located[request_id]
        self.counts.cancelled += 1
        if entry is None:
            lane.queue.remove(request_id)
            self._waiting -= 1
            return Cancellation(Where.QUEUED)
        lane.table.evict(entry, {request_id})
        if not entry.requests:
            self._forget(entry)
        return Cancellation(Where.PARKED, entry.id, emptied=not entry.requests, merges=self._merge(lane))

    def drain(self) -> None:
        """No further request will come: batching windows need not wait any longer."""
        self.draining = True

    # -- node boundaries -----------------------------------------------------------------------------------------

    def schedule(self, now: int) -> Task | None:
        """The next thing to run. None: no processor is free, or nothing should run before `next_wakeup`."""
        self._wakeup_ns = None
        if self._running == self._processors:
            return None
        entry = self.active
        if not self._waiting:
            return None if entry is None else self._dispatch(entry, (), None, _CONTINUE, None, now)
        choice = self._choose(entry, now)
        if type(choice) is Start:
            return self._start(choice, entry, now)
        if type(choice) is Wait:
            self._wakeup_ns = choice.until_ns
            return None
        assert entry is not None, "going on was checked to be possible"
        if type(choice) is Stay:
            return self._dispatch(entry, (), None, choice.reason, choice.comparison, now)
        return self._dispatch(entry, (), None, _CONTINUE, None, now)

    def _choose(self, active: SubBatch | None, now: int) -> Choice:
        """What the policy wants; a policy that raises or asks for the impossible must not stop the server."""
        try:
            choice = self._policy.decide(self, now)
            if (choice is None and active is not None) or self._possible(choice, now):
                return choice
            self.policy_error = InvalidInput(f"policy {self._policy!r} chose what cannot be done: {choice!r}"[:300])
        except Exception as error:
            self.policy_error = error
        self.counts.policy_failures += 1
        return self._fallback.decide(self, now)

    def _tell(self, hook: Callable[..., None], *news: object) -> None:
        """Let the policy know; that it cannot cope is counted and stops nothing."""
        try:
            hook(*news)
        except Exception as error:
            self.policy_error = error
            self.counts.policy_failures += 1

    def _possible(self, choice: Choice, now: int) -> bool:
        """Whether this can be done, and leads anywhere. A policy may come from outside: its answer can be anything."""
        if choice is None or type(choice) is Stay:
            return self.active is not None
        if type(choice) is Start:
            lane = choice.lane
            room = min(lane.rows_max, lane.rows_max * self._processors - lane.table.rows)
            return (
                self._by_model.get(lane.model) is lane
                and 1 <= choice.rows <= room
                and 0 <= choice.skip < len(lane.queue)
                and (choice.skip == 0 or len(lane.queue.peek(now, 1, skip=choice.skip)) > 0)
                and (not choice.riders or self._may_ride(choice, room, now))
            )
        if type(choice) is not Wait or self.active is not None:
            return False
        if choice.until_ns is None:  # for news: there must be some to come
            return self._running > 0 or not self.draining
        return choice.until_ns > now

    def _may_ride(self, choice: Start, room: int, now: int) -> bool:
        """Whether rows of other lanes can be taken along into a batch that can start."""
        batch = choice.lane.queue.peek(now, choice.rows, choice.size_budget, choice.skip)
        models = [model for model, _ in choice.riders]
        if len(batch) + sum(rows for _, rows in choice.riders) > room or len(set(models)) < len(models):
            return False
        for model, rows in choice.riders:
            other = self._by_model.get(model)
            if other is None or choice.lane.model not in other.spec.wider:
                return False
            riding = other.queue.peek(now, rows)
            if rows < 1 or len(riding) < rows or riding[0].signature != batch[0].signature:
                return False
        return True

    def next_wakeup(self) -> int | None:
        """When `schedule` should be called again at the latest, after it returned None; None: only on news."""
        times = [self._wakeup_ns, *(lane.queue.next_timeout_ns() for lane in self.lanes if self._timed)]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def complete(self, task: Task, now: int, done: Collection[int] = ()) -> Completion:
        """The task's node ran. Advances its sub-batch; says who leaves and what merges.

        done: where this was the last node of a loop's body, the rows that were found to be done with the loop. Rows
        whose trips are known leave by themselves.
        """
        entry = self._sub_batches[task.sub_batch]
        lane = self._by_model[task.model]
        entry.running = False
        self._running -= 1
        evicted = self._evict_doomed(lane, entry) if entry.doomed else ()
        if not entry.requests:
            self._forget(entry)
            return Completion(evicted, (), None, self._merge(lane))
        if lane.loops:
            return self._advance(lane, entry, evicted, done, now)
        entry.cursor += 1
        if entry.cursor < lane.nodes:
            if len(self.stack) == 1:  # nothing to meet
                return Completion(evicted) if evicted else _NOTHING
            merges = self._merge(lane)
            return Completion(evicted, (), None, merges) if merges or evicted else _NOTHING
        return Completion(evicted, self._finish(lane, entry, now), None, self._merge(lane))

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
                other = self._open(lane, list(leavers.requests), leavers.cursor, entry.started_ns, entry)
                split = Split(lane.model, entry.id, other.id, ids)
        elif len(self.stack) == 1 and not (evicted or leavers.truncated):
            return _NOTHING
        return Completion(evicted, finished, split, self._merge(lane), leavers.truncated)

    def _finish(self, lane: Lane, entry: SubBatch, now: int) -> tuple[int, ...]:
        """The last node of a sub-batch has run: it is over, and its rows are finished."""
        finished = self._left(entry.ids())
        lane.table.remove(entry)
        self._forget(entry)
        if self._on_completion is not None:
            self._tell(self._on_completion, entry, now)
        return finished

    def _left(self, finished: tuple[int, ...]) -> tuple[int, ...]:
        for request_id in finished:
            del self._located[request_id]
        self.counts.finished += len(finished)
        return finished

    def fail(self, task: Task, now: int) -> Failure:
        """The task's node raised. Its sub-batch is over: a row that ran alone fails, others go back to run one by one.

        A row whose mates have all been cancelled meanwhile did not run alone: one of them may have been the culprit.
        """
        entry = self._sub_batches[task.sub_batch]
        lane = self._by_model[task.model]
        entry.running = False
        self._running -= 1
        evicted = self._evict_doomed(lane, entry) if entry.doomed else ()
        requests = entry.requests
        if requests:
            lane.table.remove(entry)
        self._forget(entry)
        merges = self._merge(lane)
        if self._isolate and task.rows > 1:
            for request in requests:
                home = self._by_model[request.model]  # another than the batch's, for a row that rode along
                home.queue.requeue_alone(request)
                self._located[request.id] = (home, None)
            self._waiting += len(requests)
            return Failure((), tuple(request.id for request in requests), evicted, merges)
        failed = tuple(request.id for request in requests)
        for request_id in failed:
            del self._located[request_id]
        self.counts.failed += len(failed)
        return Failure(failed, (), evicted, merges)

    def _start(self, choice: Start, active: SubBatch | None, now: int) -> Task:
        lane = choice.lane
        requests = lane.queue.take(now, choice.rows, choice.size_budget, choice.skip)
        for model, rows in choice.riders:
            requests += self._by_model[model].queue.take(now, rows)
        self._waiting -= len(requests)
        entry = self._open(lane, requests, 0, now)
        opened = entry.ids()
        if isinstance(lane.table, LoopTable) and lane.table.meets_below():  # a loop comes first, and others go round it
            self._merge(lane)
            target = self._located[opened[0]][1]
            assert target is not None, "it was merged into"
            preempted = None if active is target or active is None else active.id
            return self._dispatch(target, opened, preempted, choice.reason, choice.comparison, now, entry.id)
        preempted = None if active is None else active.id
        return self._dispatch(entry, opened, preempted, choice.reason, choice.comparison, now)

    def _open(
        self, lane: Lane, requests: list[Request], cursor: int, started_ns: int, origin: SubBatch | None = None
    ) -> SubBatch:
        """A new sub-batch on top of everything; but where its rows wait for those they left, it lies below these."""
        entry = SubBatch(self._next_sub_batch, lane.model, requests, lane.padded_rows(len(requests)), started_ns)
        entry.cursor = cursor
        self._next_sub_batch += 1
        self._sub_batches[entry.id] = entry
        table = lane.table
        if origin is not None and isinstance(table, LoopTable) and table.waits(cursor):
            table.push_below(entry, origin)
            self.stack.insert(self.stack.index(origin), entry)
        else:
            table.push(entry)
            self.stack.append(entry)
        for request in requests:
            self._located[request.id] = (lane, entry)
        return entry

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

    def _merge(self, lane: Lane) -> tuple[Merge, ...]:
        """Merge what meets in the lane's stack; the merged sub-batch takes the place of the newer one.

        But rows of the same model that lie between the two stay above where they have left the last loop.
        """
        if len(lane.table) < 2:
            return ()
        merges = lane.table.merge()
        stack = self.stack
        for merge in merges:
            source, target = self._sub_batches.pop(merge.source), self._sub_batches[merge.target]
            lower, upper = stack.index(target), stack.index(source)
            between = [entry for entry in stack[lower + 1 : upper] if entry.model == lane.model]
            if isinstance(lane.table, LoopTable) and lane.table.stays_below(target, between):
                del stack[upper]
            else:
                stack[upper] = target
                del stack[lower]
            for request in source.requests:
                self._located[request.id] = (lane, target)
        return merges

    def _evict_doomed(self, lane: Lane, entry: SubBatch) -> tuple[int, ...]:
        evicted = lane.table.evict(entry, entry.doomed)
        entry.doomed = set()
        for request_id in evicted:
            del self._located[request_id]
        self.counts.cancelled += len(evicted)
        return evicted

    def _forget(self, entry: SubBatch) -> None:
        self.stack.remove(entry)
        del self._sub_batches[entry.id]

    # -- what a driver may ask -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._located

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
        tabled = [entry for lane in self.lanes for entry in lane.table]
        if {entry.id for entry in tabled} != {entry.id for entry in self.stack} or len(tabled) != len(self.stack):
            raise InvariantError(f"scheduler: stack {self.stack} but tables {tabled}")
        if tabled != [entry for lane in self.lanes for entry in self.stack if entry.model == lane.model]:
            raise InvariantError(f"scheduler: stack {self.stack} in another order than tables {tabled}")
        if {entry.id: entry for entry in tabled} != self._sub_batches:
            raise InvariantError(f"scheduler: tables {tabled} but index {self._sub_batches}")
        if sum(entry.running for entry in tabled) != self._running or not 0 <= self._running <= self._processors:
            raise InvariantError(f"scheduler: {self._running} tasks counted as running, stack {self.stack}")
        if sum(len(lane.queue) for lane in self.lanes) != self._waiting:
            raise InvariantError(f"scheduler: {self._waiting} rows counted as waiting")
        located = {request.id: entry for entry in tabled for request in entry.requests}
        located_queued = {request.id for lane in self.lanes for request in lane.queue}
        if set(located) & located_queued or set(located) | located_queued != set(self._located):
            raise InvariantError("scheduler: a request is in two places, or in none")
        if any(self._located[request_id][1] is not entry for request_id, entry in located.items()):
            raise InvariantError("scheduler: a request is located in the wrong sub-batch")
        counts = self.counts
        left = counts.finished + counts.failed + counts.cancelled + counts.rejected + counts.dropped
        if counts.added != left + len(self._located):
            raise InvariantError(f"scheduler: {counts} with {len(self._located)} requests inside")


def _check_wider(spec: LaneSpec, lanes: Mapping[str, Lane]) -> None:
    """Raise `InvalidInput` where rows of a lane may ride in batches of what is not the same chain."""
    for model in spec.wider:
        other = lanes.get(model)
        if other is None or model == spec.graph.model:
            raise InvalidInput(f"rows of model {spec.graph.model!r} may ride with {model!r}, which is no other model")
        if other.spec.graph.nodes != spec.graph.nodes or spec.graph.loops or other.loops:
            raise InvalidInput(
                f"rows of model {spec.graph.model!r} may ride with {model!r}, whose nodes are not the same chain"
            )
