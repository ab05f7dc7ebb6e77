"""The virtual-time driver: a trace of requests through the real scheduler, with table latencies instead of execution.

Owns: `simulate` and `SimulationResult`. One of the two drivers of the one core; the other is the live engine.
Must not know: the engine, threads, tensors, the wall clock. Everything it reports is simulated.

At one instant things happen in this order: the running node ends, then arrivals join the queue in trace order, then the
scheduler decides. The live engine keeps the same order at its node boundaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.base import Policy
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.scheduler import Scheduler
from lazybatch.core.task import Completion, Expired, Merge, Task
from lazybatch.errors import InvalidInput, Overloaded
from lazybatch.executors.simulated_loops import TripCounter
from lazybatch.metrics import Observer, Observers, Outcome


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened to every request of a trace, in virtual time.

    latencies_ns: arrival to end of the last node, by request id, completed requests only.
    late: ids of completed requests that missed their deadline. dropped: ids refused (queue full), timed out in it, or
    dropped there as hopeless.
    dispatches: nodes run; batches: sub-batches started; rows_run: sum of rows over dispatches; end_ns: time of the last
    event.
    """

    latencies_ns: dict[int, int] = field(repr=False)
    late: tuple[int, ...] = field(repr=False)
    dropped: tuple[int, ...] = field(repr=False)
    dispatches: int
    batches: int
    preemptions: int
    merges: int
    rows_run: int
    start_ns: int
    end_ns: int
    scheduler: Scheduler = field(repr=False)

    @property
    def throughput_rps(self) -> float:
        """Completed requests per second between the first arrival and the last event."""
        return len(self.latencies_ns) * 1e9 / max(1, self.end_ns - self.start_ns)

    @property
    def mean_batch(self) -> float:
        """Mean rows per dispatch; 0.0 when nothing ran."""
        return self.rows_run / self.dispatches if self.dispatches else 0.0

    @property
    def violations(self) -> float:
        """Share of all requests that missed their deadline or were dropped."""
        total = len(self.latencies_ns) + len(self.dropped)
        return (len(self.late) + len(self.dropped)) / total if total else 0.0


def requests_from(
    arrivals_ns: Sequence[int], model: str, *, sla_ns: int | None = None, first_id: int = 0
) -> list[Request]:
    """Requests for one model from its arrival times, with deadlines at arrival + SLA."""
    return [
        Request(first_id + k, model, at_ns, UNBOUNDED_NS if sla_ns is None else at_ns + sla_ns)
        for k, at_ns in enumerate(arrivals_ns)
    ]


def simulate(
    lanes: Sequence[LaneSpec],
    policy: Policy,
    requests: Sequence[Request],
    *,
    observers: Iterable[Observer] = (),
    durations: Mapping[str, LatencyTable] | None = None,
    trips: Mapping[int, Sequence[int]] | None = None,
) -> SimulationResult:
    """Run a trace to its end. Simulated: durations are the medians of the lanes' latency tables, with what these say of
    the engine's own time.

    requests: in order of arrival, ids unique; of one or several models.
    durations: by model, what nodes really take, where that is not what the policy is told (a lane's own table).
    trips: by request id, how many iterations it makes in each loop of its graph. The scheduler is not told; it sees the
    row leave when it is done. Needed for requests of graphs with loops, unless `Request.trips` says it.
    Raises `InvalidInput` for a trace out of order, an id used twice, a lane without a latency table, or a request
    whose trips are not known; `TableMismatch` for durations of other nodes.
    """
    for spec in lanes:
        if spec.latency is None:
            raise InvalidInput(f"model {spec.graph.model!r}: simulation needs a latency table")
    for earlier, later in pairwise(requests):
        if later.arrival_ns < earlier.arrival_ns:
            raise InvalidInput(f"trace out of order: request {later.id} arrives before request {earlier.id}")
    run = _Run(lanes, policy, requests, observers, durations or {}, trips or {})
    if len(run.by_id) < len(requests):
        raise InvalidInput(f"trace: {len(requests)} requests with {len(run.by_id)} different ids")
    return run.to_end()


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        lanes: Sequence[LaneSpec],
        policy: Policy,
        requests: Sequence[Request],
        observers: Iterable[Observer],
        durations: Mapping[str, LatencyTable],
        trips: Mapping[int, Sequence[int]],
    ) -> None:
        self.scheduler = Scheduler(lanes, policy)
        lanes_by_model = {lane.model: lane for lane in self.scheduler.lanes}
        for model, table in durations.items():
            # A lane of its own checks that the nodes are the same, and has the engine's time in its times.
            lanes_by_model[model] = Lane(replace(self.scheduler.lane_of(model).spec, latency=table))
        self.times_ns = {model: lane.times_ns for model, lane in lanes_by_model.items()}
        self.moving = {
            model: lane.spec.latency.engine
            for model, lane in lanes_by_model.items()
            if lane.loops and lane.spec.latency is not None and lane.spec.latency.engine is not None
        }
        # Where rows that meet are in a loop from then on: behind these nodes.
        self.loops_begin = {
            model: {node for loop in lanes_by_model[model].loops for node in (loop.first - 1, loop.stop - 1)}
            for model in self.moving
        }
        self.came: dict[int, int] = {}
        self.loops_first = {model for model in self.moving if lanes_by_model[model].loops[0].first == 0}
        self.requests = requests
        graphs = [spec.graph for spec in lanes]
        self.counter = TripCounter(graphs, requests, trips) if any(graph.loops for graph in graphs) else None
        self.observers = Observers(observers)
        self.watched = len(self.observers) > 0
        self.by_id = {request.id: request for request in requests}
        self.first_dispatch_ns: dict[int, int] = {}
        self.latencies_ns: dict[int, int] = {}
        self.late: list[int] = []
        self.dropped: list[int] = []
        self.dispatches = self.rows_run = 0
        self.batches = self.preemptions = self.merges = 0

    def to_end(self) -> SimulationResult:
        scheduler, requests, watched = self.scheduler, self.requests, self.watched
        expire, schedule, complete = scheduler.expire, scheduler.schedule, scheduler.complete
        times_ns, counter = self.times_ns, self.counter
        arrived, total = 0, len(requests)
        now = start_ns = arrival_ns = requests[0].arrival_ns if requests else 0
        dispatches = rows_run = 0
        if not requests:
            scheduler.drain()
        while True:
            if arrival_ns <= now and arrived < total:
                arrived = self._arrive(arrived, now)
                if arrived < total:
                    arrival_ns = requests[arrived].arrival_ns
                else:
                    scheduler.drain()
            for gone in expire(now):
                self._expire(now, gone)
            task = schedule(now)
            if task is None:
                wake_ns = scheduler.next_wakeup()
                if arrived < total:
                    now = arrival_ns if wake_ns is None else min(arrival_ns, wake_ns)
                elif wake_ns is not None:
                    now = wake_ns
                else:
                    break
                continue
            table = times_ns[task.model]
            assert table is not None, "lanes without a table were refused"
            started_ns = now
            now += table[task.node][task.padded_rows]
            dispatches += 1
            rows_run += task.rows
            if task.opened:
                self._open(task, started_ns)
            if watched:
                self.observers.dispatched(started_ns, now, task)
            if counter is None:
                done = complete(task, now)
            else:
                done = complete(task, now, counter.ran(task))
                counter.settled(task, done)
                if watched and counter.ends_body(task):
                    self.observers.stepped(now, task, done)
            if done.finished:
                self._finish(now, done.finished)
            if done.merges:
                self._merge(now, done.merges)
            if self.moving:
                now += self._moved_ns(task, done)
        self.dispatches, self.rows_run = dispatches, rows_run
        return self._result(start_ns, now)

    def _moved_ns(self, task: Task, done: Completion) -> int:
        """What the engine takes, after a node, for rows that came to others in a loop or left them."""
        engine = self.moving.get(task.model)
        if engine is None:
            return 0
        moves = rows = 0
        if done.merges and task.node in self.loops_begin[task.model]:
            moves, rows = len(done.merges), sum(self.came.get(merge.source, 0) for merge in done.merges)
        left = done.leaving
        if 0 < left < task.rows:
            moves, rows = moves + 1, left
        if task.opened and task.model in self.loops_first:
            moves, rows = moves + 1, rows + len(task.opened)
        return round(engine.moving_ns(moves, rows))

    def _arrive(self, arrived: int, now: int) -> int:
        """Queue all that has come by now, from this position of the trace on; returns the position after them."""
        requests, add, watched = self.requests, self.scheduler.add, self.watched
        for position in range(arrived, len(requests)):
            request = requests[position]
            if request.arrival_ns > now:
                return position
            try:
                add(request)
            except Overloaded:
                self.dropped.append(request.id)
                self.observers.exited(request.arrival_ns, request, Outcome.REJECTED, None)
            else:
                if watched:
                    self.observers.arrived(request.arrival_ns, request)
        return len(requests)

    def _expire(self, now: int, gone: Expired) -> None:
        self.dropped.append(gone.request)
        outcome = Outcome.DROPPED if gone.hopeless else Outcome.EXPIRED
        self.observers.exited(now, self.by_id[gone.request], outcome, None)

    def _open(self, task: Task, now: int) -> None:
        self.batches += 1
        self.preemptions += task.preempted is not None
        if self.counter is not None:
            self.counter.opened(task)
        if self.moving:
            self.came[task.sub_batch] = len(task.opened)
        if task.joined is not None:
            self.merges += 1
        if not self.watched:
            return
        for request_id in task.opened:
            self.first_dispatch_ns[request_id] = now
        if task.preempted is not None:
            self.observers.preempted(now, task)
        self.observers.opened(now, task)

    def _merge(self, now: int, merges: tuple[Merge, ...]) -> None:
        self.merges += len(merges)
        for merge in merges:
            self.observers.merged(now, merge)

    def _finish(self, now: int, request_ids: tuple[int, ...]) -> None:
        for request_id in request_ids:
            request = self.by_id[request_id]
            self.latencies_ns[request_id] = now - request.arrival_ns
            if now > request.deadline_ns:
                self.late.append(request_id)
            if self.watched:
                self.observers.exited(now, request, Outcome.COMPLETED, self.first_dispatch_ns[request_id])

    def _result(self, start_ns: int, end_ns: int) -> SimulationResult:
        return SimulationResult(
            self.latencies_ns,
            tuple(self.late),
            tuple(self.dropped),
            self.dispatches,
            self.batches,
            self.preemptions,
            self.merges,
            self.rows_run,
            start_ns,
            end_ns,
            self.scheduler,
        )
