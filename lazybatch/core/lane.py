"""Lanes: one model each, as the scheduler sees it.

Owns: `LaneSpec` (the frozen description a driver gives) and `Lane` (the same with its queue, stack and cost tables).
Must not know: the other lanes; policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from lazybatch.core.batch_table import BatchTable
from lazybatch.core.graph import NodeGraph
from lazybatch.core.infq import InfQ, PriorityLevel
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput, TableMismatch

_NEAR_BEST = 0.98
"""Share of the best throughput: differences below are within the error of a measured table."""


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One model for the scheduler.

    latency: may be None for policies that need no prediction. max_batch_size: rows in one sub-batch, and in flight.
    queue_capacity: waiting rows. joinable: when False every sub-batch has one row.
    allowed_sizes: executed sizes are padded up to one of these; empty for any. levels: queue timeouts by priority.
    ageing_ns: waiting this long raises a request by one priority level. late: "serve" runs rows whatever their
    deadlines; "drop" lets a waiting row go once it would miss its deadline even if it ran alone from then on.

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
        if self.late not in ("serve", "drop"):
            raise InvalidInput(f"model {model!r}: late must be 'serve' or 'drop', got {self.late!r}")
        if self.late == "drop" and self.latency is None:
            raise InvalidInput(f"model {model!r}: late='drop' needs a latency table, to tell when a row is hopeless")
        names = tuple(node.name for node in self.graph.nodes)
        if self.latency is not None and self.latency.nodes != names:
            raise TableMismatch(
                f"model {model!r} has the nodes {_short(names)}, the latency table of {self.latency.model!r} "
                f"has {_short(self.latency.nodes)}"
            )


def _short(names: tuple[str, ...]) -> str:
    return f"{len(names)} [{names[0]} .. {names[-1]}]"


class Lane:
    """A model's queue, stack and predicted times. Changed by the scheduler only; policies read it.

    times_ns: per node, by rows 0..max (None without a table); single_left_ns: per cursor, the time one row alone still
    needs (SingleInputExecTime with credit for progress; Algorithm 1 for static graphs). sums_ns: by rows 0..max, as
    they are executed, the time from the first node to each cursor. rows_best: the largest batch whose throughput is
    near the best (without a table: the largest).
    """

    __slots__ = (
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
    )

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.model = spec.graph.model
        self.nodes = len(spec.graph)
        self.rows_max = spec.max_batch_size if spec.joinable else 1
        self.table = BatchTable(self.nodes, self.rows_max, spec.allowed_sizes)
        self.times_ns = None if spec.latency is None else spec.latency.dense_ns(spec.max_batch_size)
        self.sums_ns = () if self.times_ns is None else self._sums(self.times_ns)
        self.single_left_ns = None if spec.latency is None else spec.latency.remaining_ns(1)
        self.rows_best = self.rows_max if spec.latency is None else self._rows_best()
        alone_ns = self.run_ns(1) if spec.late == "drop" else None
        self.queue = InfQ(spec.queue_capacity, levels=spec.levels, ageing_ns=spec.ageing_ns, alone_ns=alone_ns)

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

    def made_late(self, rows: int, now: int) -> int:
        """How many rows in front of the queue a full batch of ``rows`` had better pass over: it would make them late.

        Only where late rows are dropped, and only as many as leave enough rows to fill the batch. Those passed over
        lose nothing that the batch would not have cost them too.
        """
        if self.spec.late != "drop" or len(self.queue) <= rows:
            return 0
        waiting = self.queue.peek(now, len(self.queue))
        end_ns = now + self.run_ns(rows)
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
