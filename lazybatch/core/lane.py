"""Lanes: one model each, as the scheduler sees it.

Owns: `LaneSpec` (the frozen description a driver gives) and `Lane` (the same with its queue, stack and cost tables).
Must not know: the other lanes; policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from lazybatch.core.batch_table import BatchTable
from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import InfQ, PriorityLevel
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LENGTH_MAX, LengthGuess
from lazybatch.core.loop_latency import LoopLatency
from lazybatch.core.loop_table import LoopTable
from lazybatch.core.request import UNBOUNDED_NS, Request
from lazybatch.errors import InvalidInput, TableMismatch

_NEAR_BEST = 0.98
"""Share of the best throughput: differences below are within the error of a measured table."""


class Trips(NamedTuple):
    """Trips in one loop: the least that were seen, the mean (rounded), those that cover most rows."""

    shortest: int
    mean: int
    covering: int


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One model for the scheduler.

    latency: may be None for policies that need no prediction. Whatever table is given, this holds what its nodes take
    as the engine runs them (`LatencyTable.dispatched`), so that policies, simulations and bounds reckon with the same
    times. max_batch_size: rows in one sub-batch, and in flight.
    queue_capacity: waiting rows. joinable: when False every sub-batch has one row.
    allowed_sizes: executed sizes are padded up to one of these; empty for any, as it must be where there are loops,
    in which rows come and go at every step. levels: queue timeouts by priority.
    ageing_ns: waiting this long raises a request by one priority level. late: "serve" runs rows whatever their
    deadlines; "drop" lets a waiting row go once it would miss its deadline even if it ran alone from then on.
    lengths: per loop of the graph, how many trips rows make whose requests do not say it; empty for None everywhere.
    length: what rows are padded to, where they are: such a model has a lane per length. wider: models of the same nodes
    in whose batches rows of this one may ride: its lanes of greater lengths.

    Raises `InvalidInput` for options that contradict each other, `TableMismatch` for a table with other nodes.
    """

    graph: NodeGraph
    latency: LatencyTable | None = None
    max_batch_size: int = 16
    queue_capacity: int = 256
    sla_ns: int | None = None
    joinable: bool = True
    allowed_sizes: tuple[int, ...] = ()
    levels: Mapping[int, PriorityLevel] = field(default_factory=dict)
    ageing_ns: int | None = None
    late: Literal["serve", "drop"] = "serve"
    lengths: tuple[LengthGuess | None, ...] = ()
    length: int | None = None
    wider: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        model = self.graph.model
        if self.max_batch_size < 1:
            raise InvalidInput(f"model {model!r}: max_batch_size must be at least 1, got {self.max_batch_size}")
        if self.sla_ns is not None and self.sla_ns <= 0:
            raise InvalidInput(f"model {model!r}: the SLA target must be positive, got {self.sla_ns} ns")
        sizes = self.allowed_sizes
        if sizes and (sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes))):
            raise InvalidInput(f"model {model!r}: allowed sizes must be positive and increase, got {list(sizes)}")
        if sizes and sizes[-1] != self.max_batch_size:
            raise InvalidInput(
                f"model {model!r}: the largest allowed size is {sizes[-1]}, max_batch_size is {self.max_batch_size}; "
                "they must be equal"
            )
        if sizes and self.graph.loops:
            raise InvalidInput(
                f"model {model!r} has loops, where rows come and go at every step: it cannot be held to the allowed "
                f"sizes {list(sizes)}"
            )
        if self.late not in ("serve", "drop"):
            raise InvalidInput(f"model {model!r}: late must be 'serve' or 'drop', got {self.late!r}")
        if self.late == "drop" and self.latency is None:
            raise InvalidInput(f"model {model!r}: late='drop' needs a latency table, to tell when a row is hopeless")
        if self.lengths and len(self.lengths) != len(self.graph.loops):
            raise InvalidInput(
                f"model {model!r}: lengths of {len(self.lengths)} loops, the graph has {len(self.graph.loops)}"
            )
        names = tuple(node.name for node in self.graph.nodes)
        if self.latency is not None and self.latency.nodes != names:
            raise TableMismatch(
                f"model {model!r} has the nodes {_short(names)}, the latency table of {self.latency.model!r} "
                f"has {_short(self.latency.nodes)}"
            )
        if self.latency is not None:
            object.__setattr__(self, "latency", self.latency.dispatched())

    def guess(self, loop: int) -> LengthGuess | None:
        """What lengths of a loop that were seen say; None where none were."""
        return self.lengths[loop] if self.lengths else None

    def trips(self, loop: int) -> Trips:
        """What is known of the trips of all rows in a loop, whatever their sizes.

        Where no lengths were seen, the loop's maximum (at most `LENGTH_MAX`) stands for all but the least, or 1 where
        there is none.
        """
        guess, most = self.guess(loop), self.graph.loops[loop].trips_max
        if guess is None:
            most = min(most or 1, LENGTH_MAX)
            return Trips(1, most, most)
        covering = max(group.covering[0] for group in guess.groups)
        trips = (min(group.shortest for group in guess.groups), max(1, round(guess.mean_trips)), covering)
        return Trips(*trips) if most is None else Trips(*(min(count, most) for count in trips))

    def unrolled(self, kind: Literal["shortest", "mean", "covering"]) -> LatencyTable | None:
        """The latency table of the whole run of a row: a loop's nodes take as often their time as it makes trips."""
        if self.latency is None or not self.graph.loops:
            return self.latency
        weights = [1] * len(self.graph)
        for number, loop in enumerate(self.graph.loops):
            weights[loop.first : loop.stop] = [getattr(self.trips(number), kind)] * (loop.stop - loop.first)
        return self.latency.weighted(weights)


def _short(names: tuple[str, ...]) -> str:
    return f"{len(names)} [{names[0]} .. {names[-1]}]"


class Lane:
    """A model's queue, stack and predicted times. Changed by the scheduler only; policies read it.

    times_ns: per node, by rows 0..max (None without a table); single_left_ns: per cursor, the time one row alone still
    needs (SingleInputExecTime with credit for progress; Algorithm 1, with the trips that cover most rows in loops).
    sums_ns: by rows 0..max, as they are executed, the time from the first node to each cursor (in loops, with the mean
    number of trips). loop_latency: what a particular row of a graph with loops takes. trips_unknown: of a request that
    says nothing of its trips. rows_best: the largest batch whose throughput is near the best (without a table: the
    largest).
    """

    __slots__ = (
        "_bodies_ns",
        "loop_latency",
        "loops",
        "model",
        "nodes",
        "queue",
        "rows_best",
        "rows_max",
        "single_left_ns",
        "spec",
        "sums_ns",
        "table",
        "times_ns",
        "trips_unknown",
    )

    def __init__(self, spec: LaneSpec, *, whole: bool = False) -> None:
        self.spec = spec
        self.model = spec.graph.model
        self.nodes = len(spec.graph)
        self.loops = spec.graph.loops
        self.trips_unknown = (None,) * len(self.loops)
        self.rows_max = spec.max_batch_size if spec.joinable else 1
        self.table: BatchTable | LoopTable
        if self.loops:
            self.table = LoopTable(spec.graph, self.rows_max, whole=whole)
        else:
            self.table = BatchTable(self.nodes, self.rows_max, spec.allowed_sizes)
        self.times_ns = None if spec.latency is None else spec.latency.dense_ns(spec.max_batch_size)
        self.sums_ns: tuple[tuple[int, ...], ...] = ()
        self._bodies_ns: list[list[int]] = []
        self.single_left_ns: tuple[int, ...] | None = None
        self.loop_latency: LoopLatency | None = None
        alone_ns: int | None = None
        shortest, mean, covering = spec.unrolled("shortest"), spec.unrolled("mean"), spec.unrolled("covering")
        if spec.latency is not None and shortest is not None and mean is not None and covering is not None:
            self.sums_ns = self._sums(mean.dense_ns(spec.max_batch_size))
            for number, loop in enumerate(self.loops):
                trips = spec.trips(number).mean
                self._bodies_ns.append([(sums[loop.stop] - sums[loop.first]) // trips for sums in self.sums_ns])
            self.single_left_ns = covering.remaining_ns(1)
            if spec.late == "drop":
                alone_ns = shortest.whole_ns(self.padded_rows(1) or 1)
            if self.loops:
                singles_ns = [times_ns[0] for times_ns in spec.latency.median_ns]
                self.loop_latency = LoopLatency(spec.graph, singles_ns, spec.lengths or (None,) * len(self.loops))
        self.rows_best = self.rows_max if spec.latency is None else self._rows_best()
        self.queue = InfQ(spec.queue_capacity, levels=spec.levels, ageing_ns=spec.ageing_ns, alone_ns=alone_ns)

    def check(self, request: Request) -> None:
        """Raise `InvalidInput` for trips that do not fit the graph's loops."""
        trips = request.trips
        if trips and len(trips) != len(self.loops):
            raise InvalidInput(
                f"model {self.model!r}: request {request.id} states {len(trips)} numbers of trips, "
                f"the graph has {len(self.loops)} loops"
            )
        for loop, count in zip(self.loops, trips, strict=False):
            most = UNBOUNDED_NS if loop.trips_max is None else loop.trips_max
            if count is not None and not 1 <= count <= most:
                limit = "" if loop.trips_max is None else f" and at most {most}"
                raise InvalidInput(
                    f"model {self.model!r}: request {request.id} makes {count!r} trips in loop {loop.name!r}; "
                    f"they must be at least 1{limit}"
                )

    def _sums(self, times_ns: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        executed = [self.padded_rows(rows) or rows for rows in range(self.spec.max_batch_size + 1)]
        return tuple(tuple(accumulate((node_ns[rows] for node_ns in times_ns), initial=0)) for rows in executed)

    def _rows_best(self) -> int:
        rates = [rows / self.run_ns(rows) for rows in range(1, self.rows_max + 1)]
        near = _NEAR_BEST * max(rates)
        return max(rows for rows, rate in enumerate(rates, start=1) if rate >= near)

    def run_ns(self, rows: int) -> int:
        """Time of a whole run of so many rows, as they are executed. Only for lanes with a table."""
        return self.sums_ns[rows][-1]

    def body_ns(self, loop: int, rows: int) -> int:
        """Time of one iteration of a loop with so many rows, as they are executed. Only for lanes with a table."""
        return self._bodies_ns[loop][rows]

    def single_ns(self, request: Request) -> int:
        """Time of a waiting row alone, from the first node to the last. Only for lanes with a table."""
        if self.loop_latency is not None:
            return self.loop_latency.left_ns(request)
        assert self.single_left_ns is not None, "the lane has a table"
        return self.single_left_ns[0]

    def made_late(self, rows: int, now: int, pace: float = 1.0) -> int:
        """How many rows in front of the queue a full batch of ``rows`` had better pass over: it would make them late.

        Only where late rows are dropped, and only as many as leave enough rows to fill the batch. Those passed over
        lose nothing that the batch would not have cost them too. pace: what the clock shows over the table.
        """
        if self.spec.late != "drop" or len(self.queue) <= rows:
            return 0
        waiting = self.queue.peek(now, len(self.queue))
        end_ns = now + pace * self.run_ns(rows)
        late = next((place for place, request in enumerate(waiting) if request.deadline_ns >= end_ns), len(waiting))
        return max(0, min(late, len(waiting) - rows))

    def padded_rows(self, rows: int) -> int | None:
        """The next allowed size, when it is larger than ``rows``; None where no padding is needed."""
        for size in self.spec.allowed_sizes:
            if size >= rows:
                return size if size > rows else None
        return None

    def joining_rows(self, rows: int) -> int:
        """The most newcomers, at most ``rows``, whose number lets them merge with all that is in flight here.

        Only allowed sizes restrict it: padded sub-batches never merge, and a merged one must be of an allowed size.
        """
        sizes = self.spec.allowed_sizes
        if not sizes or not len(self.table):
            return rows
        entries = list(self.table)
        if any(entry.padded_rows is not None for entry in entries):
            return 0
        met = list(accumulate(len(entry) for entry in reversed(entries)))
        return max((size for size in sizes if size <= rows and all(size + more in sizes for more in met)), default=0)
