"""How fast the machine was while rows were served, and what would have happened at that pace.

Owns: `Pace`, which sees what nodes took in a run; `Paced`, that knowledge, and requests simulated at that pace.
Must not know: which policies are compared, what a model is.

Every node's time is known, so a run tells how fast the machine was, moment by moment. What the engine took between
nodes is the policy's own doing, and is not taken for the machine's.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import EngineTime, LatencyTable
from lazybatch.core.policies.base import Policy
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.core.task import Task
from lazybatch.metrics import Observer, Outcome
from lazybatch.simulator import simulate

PIECE_NS = 100_000_000
"""How long the pace is taken for constant: some nodes at least, and no longer than machines take to change."""
WAITED = 20
"""The engine took longer than this many times what the table says of it: the policy waited, or the machine was away."""


class Pace(Observer):
    """What nodes took and what they should have by a table, and the same of the engine's own time before each node.

    The engine's time begins where the node before it ended, or with a row that came since: there may have been nothing
    to run before. Gathering the rows of a sub-batch and handing out its results are seen as part of its first and last
    node, though tables count them as the engine's: of a model of one short node the pace is seen above 1 by that much.
    rows_max: the largest sub-batch that is served. A table that says nothing of the engine leaves its time out.
    """

    def __init__(self, table: LatencyTable, rows_max: int) -> None:
        self._table = replace(table, engine=None)
        self._engine = replace(table.engine or EngineTime(), move_ns=0, move_row_ns=0)  # in what dispatches take
        self._expected = table.dense_ns(rows_max)
        self.restart()

    def restart(self) -> None:
        """Forget what was seen; while nothing runs."""
        self._ran: list[_Ran] = []
        self._arrivals_ns: dict[int, int] = {}
        self._latencies_ns: dict[int, int] = {}
        self._busy_from_ns = 0
        self._engine_ns = self._engine_expected_ns = 0

    def arrived(self, now_ns: int, request: Request) -> None:
        """See `Observer.arrived`."""
        self._busy_from_ns = max(self._busy_from_ns, request.arrival_ns)
        self._arrivals_ns[request.id] = request.arrival_ns

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """See `Observer.dispatched`."""
        if not failed:
            engine_ns = self._engine.before_ns(task.node, task.padded_rows)
            took = start_ns - self._busy_from_ns
            if took <= WAITED * engine_ns:
                self._engine_ns += took
                self._engine_expected_ns += engine_ns
            expected_ns = self._expected[task.node][task.padded_rows]
            self._ran.append(_Ran(task.node, expected_ns, start_ns, end_ns))
        self._busy_from_ns = end_ns

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """See `Observer.exited`."""
        if request.id in self._arrivals_ns:
            self._latencies_ns[request.id] = now_ns - request.arrival_ns

    def answer_ns(self, latencies_ns: Sequence[int | None]) -> int:
        """What callers wait longer than the engine takes, the median. latencies_ns: theirs, in order of arrival."""
        seen = [self._latencies_ns.get(request) for request in sorted(self._arrivals_ns)]
        if len(seen) != len(latencies_ns):  # some were refused, and which ones is not seen here
            return 0
        both = zip(latencies_ns, seen, strict=True)
        longer = [theirs - ours for theirs, ours in both if theirs is not None and ours is not None]
        return round(statistics.median(longer)) if longer else 0

    @property
    def ratio(self) -> float:
        """What all nodes took, over what the table says: 1.2 where the machine was a fifth slower. 1 where none ran."""
        return _over(self._ran, 1.0)

    def factors(self) -> list[float]:
        """The same by node; those that did not run are as fast as the others."""
        by_node: list[list[_Ran]] = [[] for _ in self._expected]
        for ran in self._ran:
            by_node[ran.node].append(ran)
        ratio = self.ratio
        return [_over(of_node, ratio) for of_node in by_node]

    def engine(self) -> EngineTime:
        """What the engine took before nodes, on a machine whose nodes take what the table says."""
        if not self._engine_expected_ns:
            return self._engine
        return _times(self._engine, self._engine_ns / self._engine_expected_ns / self.ratio)

    def table(self) -> LatencyTable:
        """The table as it would have been meanwhile, each node at its own pace; the engine's time is not in it."""
        return slowed(self._table, self.factors())

    def clock(self, first_ns: int) -> WorkClock:
        """Time as it passes for a machine of constant pace, that of `table`; the wall's clock shows ``first_ns`` when
        the first row came."""
        factors = self.factors()
        shift_ns = first_ns - min(self._arrivals_ns.values(), default=first_ns)
        wall_ns, work_ns = [0.0], [0.0]
        some: list[_Ran] = []
        for ran in self._ran:
            some.append(ran._replace(expected_ns=round(ran.expected_ns * factors[ran.node])))
            if ran.end_ns - some[0].start_ns >= PIECE_NS:
                _append(wall_ns, work_ns, some)
                some = []
        if some:
            _append(wall_ns, work_ns, some)
        return WorkClock([at_ns + shift_ns for at_ns in wall_ns], [at_ns + shift_ns for at_ns in work_ns])

    def seen(self, submit_ns: Sequence[int], latencies_ns: Sequence[int | None]) -> Paced:
        """All that a simulation of the run needs. submit_ns, latencies_ns: in order of arrival, by the submitter's
        clock."""
        answer_ns = self.answer_ns(latencies_ns)
        return Paced(self.clock(submit_ns[0]), self.table(), self.ratio, self.engine(), answer_ns)


class _Ran(NamedTuple):
    """A node that ran, and what it should have taken."""

    node: int
    expected_ns: int
    start_ns: int
    end_ns: int


def _over(ran: Sequence[_Ran], otherwise: float) -> float:
    expected_ns = sum(one.expected_ns for one in ran)
    return sum(one.end_ns - one.start_ns for one in ran) / expected_ns if expected_ns else otherwise


def _append(wall_ns: list[float], work_ns: list[float], some: Sequence[_Ran]) -> None:
    """One more piece of constant pace, from where the last one ended to the end of these nodes."""
    start_ns, end_ns = max(wall_ns[-1], some[0].start_ns), some[-1].end_ns
    work_ns += [work_ns[-1] + start_ns - wall_ns[-1]]
    wall_ns += [start_ns]
    work_ns += [work_ns[-1] + (end_ns - start_ns) / _over(some, 1.0)]
    wall_ns += [end_ns]


class WorkClock(NamedTuple):
    """Two clocks that show the same moments: the wall's, and one on which every node takes what the table says.

    So what is simulated between moments of the second one is what a machine of that changing pace would have done.
    """

    wall_ns: Sequence[float]
    work_ns: Sequence[float]

    def work_at(self, wall_ns: float) -> int:
        """The second clock's reading when the wall's shows this."""
        return _reading(wall_ns, self.wall_ns, self.work_ns)

    def wall_at(self, work_ns: float) -> int:
        """The wall's reading when the second one shows this."""
        return _reading(work_ns, self.work_ns, self.wall_ns)


class Paced(NamedTuple):
    """How fast a run went: its clocks, the nodes' table on the second one and the pace that this is, what the engine
    took where the pace is 1, and what callers waited longer than all that."""

    clock: WorkClock
    nodes: LatencyTable
    ratio: float
    engine: EngineTime
    answer_ns: int

    def under(self, other: Paced) -> Paced:
        """The machine as it was in this run, for the policy of the other one: the engine's time is the policy's own."""
        return self._replace(engine=other.engine)

    @property
    def table(self) -> LatencyTable:
        """What nodes take on the second clock, and the engine before them."""
        return replace(self.nodes, engine=_times(self.engine, self.ratio))

    def _deadline_ns(self, request: Request) -> int:
        return request.deadline_ns if request.deadline_ns >= UNBOUNDED_NS else self.clock.work_at(request.deadline_ns)

    def simulated_ns(
        self,
        lane: LaneSpec,
        policy: Policy,
        requests: Sequence[Request],
        trips: Mapping[int, Sequence[int]] | None = None,
    ) -> list[int | None]:
        """What callers wait for these requests at this pace, in virtual time; None for those that are dropped.

        requests: by the wall's clock, in order of arrival. Policies are told the lane's own table. trips: as for
        `simulate`.
        """
        clock = self.clock
        there = [
            replace(one, arrival_ns=clock.work_at(one.arrival_ns), deadline_ns=self._deadline_ns(one))
            for one in requests
        ]
        found = simulate([lane], policy, there, trips=trips, durations={lane.graph.model: self.table}).latencies_ns
        return [
            clock.wall_at(then.arrival_ns + found[one.id]) - one.arrival_ns + self.answer_ns
            if one.id in found
            else None
            for one, then in zip(requests, there, strict=True)
        ]


STEADY = WorkClock([0.0], [0.0])
"""Of a machine that always does what the table says."""


def steady(table: LatencyTable) -> Paced:
    """A run on such a machine."""
    return Paced(STEADY, table, 1.0, table.engine or EngineTime(), 0)


def _reading(at_ns: float, here_ns: Sequence[float], there_ns: Sequence[float]) -> int:
    place = bisect_right(here_ns, at_ns)
    if place == len(here_ns):
        return round(there_ns[-1] + at_ns - here_ns[-1])
    if not place:
        return round(there_ns[0] + at_ns - here_ns[0])
    part = (at_ns - here_ns[place - 1]) / (here_ns[place] - here_ns[place - 1])
    return round(there_ns[place - 1] + part * (there_ns[place] - there_ns[place - 1]))


def _times(engine: EngineTime, factor: float) -> EngineTime:
    return EngineTime(*(round(getattr(engine, one.name) * factor) for one in fields(engine)))


def slowed(table: LatencyTable, factors: Sequence[float]) -> LatencyTable:
    """The table of a machine on which each node takes so many times as long."""

    def scaled(times_ns: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        nodes = zip(times_ns, factors, strict=True)
        return tuple(tuple(max(1, round(time_ns * factor)) for time_ns in node) for node, factor in nodes)

    return replace(table, median_ns=scaled(table.median_ns), high_ns=scaled(table.high_ns))
