"""Latency tables: NodeLatency(node, rows).

Owns: `LatencyTable`, the profiled time of every node at every batch size, interpolated to a dense table; `EngineTime`,
what the engine takes besides.
Must not know: how the numbers were measured, or the file they lie in (`lazybatch.profiles`).

Between two profiled sizes the time is interpolated linearly. Beyond the largest it is extrapolated conservatively:
along the last segment, but never cheaper per row than the largest profiled size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise

from lazybatch.errors import InvalidInput

BATCH_SIZE_MAX = 65_536
"""Tables are kept dense, so a size mistyped in a file must not ask for all the memory there is."""


_TIME_MAX_NS = 1 << 63
"""292 years: what is above is a mistake, and sums of such times would leave the range of floats."""


def _dense(sizes: Sequence[int], times_ns: Sequence[int], rows_max: int) -> tuple[int, ...]:
    """Times for 0..rows_max rows; entry 0 is 0 so that the index is the number of rows."""
    dense = [0]
    for low, high, t_low, t_high in zip(sizes, sizes[1:], times_ns, times_ns[1:], strict=False):
        dense += [t_low + (t_high - t_low) * (rows - low) // (high - low) for rows in range(low, high)]
    dense.append(times_ns[-1])
    last, t_last = sizes[-1], times_ns[-1]
    slope = (t_last - times_ns[-2]) / (last - sizes[-2]) if len(sizes) > 1 else 0.0
    for rows in range(last + 1, rows_max + 1):
        dense.append(int(max(t_last + slope * (rows - last), t_last * rows / last)))
    return tuple(dense[: rows_max + 1])


@dataclass(frozen=True, slots=True)
class EngineTime:
    """What the engine itself takes for a dispatch, besides the node's own time: deciding, keeping books, moving rows.

    open_ns, open_row_ns: before the graph's first node, with which a sub-batch begins, and more for each of its rows;
    the end of the sub-batch before it, with its results, is part of that. continue_ns, continue_row_ns: likewise before
    any other node. Of a graph that begins with a loop, whose first node mostly goes on, both are the same.
    move_ns, move_row_ns: in loops, each time rows come to others or leave others that go on, and more for each of them;
    where a loop is the graph's first stage, each time rows begin.
    Simulations reckon with it. Thresholds that did so, too, were no better: rows have to come and go sooner or later.

    Raises `InvalidInput` for what is not a whole number of nanoseconds from 0 to 2**63.
    """

    open_ns: int = 0
    open_row_ns: int = 0
    continue_ns: int = 0
    continue_row_ns: int = 0
    move_ns: int = 0
    move_row_ns: int = 0

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InvalidInput(f"engine time: {name} must be a whole number of at least 0, got {value!r}")
            if value > _TIME_MAX_NS:
                raise InvalidInput(f"engine time: {name} is above 2**63 nanoseconds")

    def before_ns(self, node: int, rows: int) -> int:
        """The engine's time for running node number ``node`` once with so many rows."""
        if node:
            return self.continue_ns + self.continue_row_ns * rows
        return self.open_ns + self.open_row_ns * rows

    def moving_ns(self, moves: float, rows: float) -> float:
        """The engine's time for moving rows in loops: how often, and how many in all."""
        return self.move_ns * moves + self.move_row_ns * rows


NO_TIME = EngineTime()


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Node x batch size -> nanoseconds (median, and a high quantile).

    model: the model's name; nodes: its node names in order; batch_sizes: profiled sizes, increasing, starting at 1.
    median_ns, high_ns: one tuple per node, one entry per profiled size.
    provenance: model fingerprint, hardware, versions, threads, date: whatever the profiler recorded, as JSON values.
    shorter: for a model whose rows are padded to one of several lengths, the tables of the same nodes at the others;
    this one is that of the longest.
    engine: what the engine takes besides, as it was measured with the table; None where nothing is known of it, and
    then nothing is added (`dispatched`). All other methods speak of the nodes alone.

    Raises `InvalidInput`, naming the node and the size, for holes, times that are not positive or absurd (above 2**63),
    or sizes out of order.
    """

    model: str
    nodes: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    median_ns: tuple[tuple[int, ...], ...]
    high_ns: tuple[tuple[int, ...], ...]
    provenance: Mapping[str, object] = field(default_factory=dict)
    shorter: Mapping[int, LatencyTable] = field(default_factory=dict)
    engine: EngineTime | None = None

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not self.nodes:
            raise InvalidInput(f"latency table of {self.model!r}: no nodes")
        if not sizes or sizes[0] != 1 or any(b <= a for a, b in pairwise(sizes)):
            raise InvalidInput(f"latency table of {self.model!r}: batch sizes must increase from 1, got {list(sizes)}")
        if sizes[-1] > BATCH_SIZE_MAX:
            raise InvalidInput(f"latency table of {self.model!r}: batch size {sizes[-1]} is above {BATCH_SIZE_MAX}")
        for kind, table in (("median", self.median_ns), ("high", self.high_ns)):
            if len(table) != len(self.nodes):
                raise InvalidInput(
                    f"latency table of {self.model!r}: {len(table)} {kind} rows for {len(self.nodes)} nodes"
                )
            for name, times in zip(self.nodes, table, strict=True):
                if len(times) != len(sizes):
                    raise InvalidInput(
                        f"latency table of {self.model!r}: node {name!r} has {len(times)} {kind} times "
                        f"for {len(sizes)} batch sizes"
                    )
                for rows, time_ns in zip(sizes, times, strict=True):
                    if not isinstance(time_ns, int) or time_ns <= 0:
                        raise InvalidInput(
                            f"latency table of {self.model!r}: node {name!r} at batch {rows}: "
                            f"{kind} time {time_ns!r} is not a positive whole number of nanoseconds"
                        )
                    if time_ns > _TIME_MAX_NS:
                        raise InvalidInput(
                            f"latency table of {self.model!r}: node {name!r} at batch {rows}: "
                            f"{kind} time is above 2**63 nanoseconds"
                        )
        for length, one in self.shorter.items():
            if one.nodes != self.nodes or one.shorter:
                raise InvalidInput(f"latency table of {self.model!r}: that of length {length} is not of the same nodes")

    def at(self, length: int | None) -> LatencyTable:
        """The table for rows padded to this length; that of the longest, which nothing exceeds, where it has none."""
        return self if length is None else self.shorter.get(length, self)

    def dense_ns(self, rows_max: int, *, high: bool = False) -> tuple[tuple[int, ...], ...]:
        """Per node, the time of 0..rows_max rows (index = rows; index 0 is 0)."""
        table = self.high_ns if high else self.median_ns
        return tuple(_dense(self.batch_sizes, times, rows_max) for times in table)

    def node_ns(self, node: int, rows: int) -> int:
        """NodeLatency(node, rows): median time of node number ``node`` with ``rows`` rows."""
        return _dense(self.batch_sizes, self.median_ns[node], rows)[rows]

    def whole_ns(self, rows: int) -> int:
        """Time of the whole graph at one batch size: the sum over its nodes (Algorithm 1, lines 3-5)."""
        return sum(self.node_ns(node, rows) for node in range(len(self.nodes)))

    def remaining_ns(self, rows: int = 1) -> tuple[int, ...]:
        """Per cursor 0..len(nodes), the time from there to the end at one batch size; the last entry is 0."""
        times = [self.node_ns(node, rows) for node in range(len(self.nodes))]
        return tuple(accumulate(reversed(times), initial=0))[::-1]

    def weighted(self, weights: Sequence[int]) -> LatencyTable:
        """The table of a graph that runs every node so many times (each at least 1)."""
        median_ns, high_ns = (
            tuple(tuple(time_ns * weight for time_ns in times) for times, weight in zip(table, weights, strict=True))
            for table in (self.median_ns, self.high_ns)
        )
        return replace(self, median_ns=median_ns, high_ns=high_ns, engine=None)

    def dispatched(self) -> LatencyTable:
        """The table of what nodes take as the engine runs them: the engine's own time is part of every entry, and no
        longer beside them, but for that of moving rows, which belongs to no node. Where nothing is known of it, this
        table. `shorter` tables stay as they are."""
        engine = self.engine
        if engine is None or engine == (moving := EngineTime(move_ns=engine.move_ns, move_row_ns=engine.move_row_ns)):
            return self
        median_ns, high_ns = (
            tuple(
                tuple(
                    time_ns + engine.before_ns(node, rows)
                    for rows, time_ns in zip(self.batch_sizes, times, strict=True)
                )
                for node, times in enumerate(table)
            )
            for table in (self.median_ns, self.high_ns)
        )
        return replace(self, median_ns=median_ns, high_ns=high_ns, engine=None if moving == NO_TIME else moving)

    def best_rows(self, rows_max: int) -> int:
        """The batch size of the highest throughput among 1..rows_max (the smallest of equals)."""
        return max(range(1, rows_max + 1), key=lambda rows: (rows / self.whole_ns(rows), -rows))

    @classmethod
    def uniform(
        cls, model: str, nodes: int, fixed_ns: int, per_row_ns: int, batch_sizes: Sequence[int]
    ) -> LatencyTable:
        """A synthetic table S(b) = fixed + per_row * b over ``nodes`` equal nodes; for tests and simulations."""
        times = tuple(max(1, (fixed_ns + per_row_ns * b) // nodes) for b in batch_sizes)
        names = tuple(f"node{k}" for k in range(nodes))
        return cls(model, names, tuple(batch_sizes), (times,) * nodes, (times,) * nodes, {"synthetic": True})
