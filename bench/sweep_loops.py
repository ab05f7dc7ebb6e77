"""What a sweep knows of a model with loops: how often rows go round, and what follows for capacity and targets.

Owns: `Loops`, read from options or learnt from rows, and the capacity of whole batches where rows differ.
Must not know: policies that are compared, what is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lazybatch as lb
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LengthGuess
from lazybatch.core.policies import GraphBatching
from lazybatch.errors import InvalidInput
from lazybatch.lengths import Lengths, guesses_for, load_lengths
from lazybatch.simulator import requests_from, simulate
from lazybatch.table_loops import graph_of, loops_of
from lazybatch.trips import Trips, drawn, fixed

OVERLOAD_BATCHES = 40


@dataclass(frozen=True, slots=True)
class Loops:
    """One of two: lengths that were seen, or the same trips for every row."""

    lengths: Lengths | None = None
    trips: str | None = None

    def of(self, table: LatencyTable, requests: int, seed: int) -> Trips:
        """What the rows of one run do. Raises `InvalidInput` where that does not fit the table's loops."""
        if self.lengths is None:
            assert self.trips is not None, "one of both is given"
            return fixed(table, self.trips)
        return drawn(table, self.lengths, requests, seed)

    def guesses(self, table: LatencyTable) -> dict[str, LengthGuess]:
        """What schedulers are told, by loop."""
        found = self.of(table, 1, 0).guesses if self.lengths is None else guesses_for(graph_of(table), self.lengths)
        names = [one.loop.name for one in loops_of(table)]
        return {name: guess for name, guess in zip(names, found, strict=True) if guess is not None}


def read_loops(table: LatencyTable, lengths: Path | None, trips: str | None) -> Loops | None:
    """From options; None for a table without loops. Raises `InvalidInput` for too much or too little said."""
    if not loops_of(table):
        if lengths is not None or trips is not None:
            raise InvalidInput(f"--lengths and --trips are for models with loops; {table.model!r} has none")
        return None
    if (lengths is None) == (trips is None):
        raise InvalidInput(f"{table.model!r} has loops: say with --lengths FILE or --trips N how often rows go round")
    made = Loops(None if lengths is None else load_lengths(lengths), trips)
    made.of(table, 1, 0)
    return made


def learnt(model: Any, rows: Sequence[Any]) -> Loops:
    """From serving these rows once: their sizes, and the trips they made. Raises what serving a row raises."""
    with lb.LazyBatcher(model, policy="continuous", queue_capacity=max(256, len(rows))) as batcher:
        answers = batcher.predict_batch(rows)
    sizes = [model.admit(row).size for row in rows]
    loops = model.graph.loops
    pairs = {
        loop.name: [(size, answer.trips[number]) for size, answer in zip(sizes, answers, strict=True)]
        for number, loop in enumerate(loops)
    }
    return Loops(Lengths(pairs))


def commonest(model: Any, rows: Sequence[Any]) -> list[Any]:
    """Those rows that have the commonest shapes: a table is measured with rows that may share a batch."""
    signatures = [model.admit(row).signature for row in rows]
    most = max(signatures, key=signatures.count)
    return [row for row, signature in zip(rows, signatures, strict=True) if signature == most]


def alone_ns(lane: LaneSpec, kind: str) -> int:
    """S(1) of the "shortest" or the "mean" row."""
    table = lane.unrolled("shortest" if kind == "shortest" else "mean")
    assert table is not None, "lanes of a sweep have tables"
    return table.whole_ns(1)


def capacity_rps(lane: LaneSpec, loops: Loops) -> float:
    """Rows per second of whole batches when there are always more: the middle half of an overloaded run, simulated."""
    assert lane.latency is not None, "lanes of a sweep have tables"
    count = OVERLOAD_BATCHES * lane.max_batch_size
    trips = loops.of(lane.latency, count, 0)
    requests = requests_from([0] * count, lane.graph.model)
    roomy = replace(lane, queue_capacity=count, sla_ns=None, late="serve")
    result = simulate([roomy], GraphBatching(), trips.told(requests), trips=trips.truth(requests))
    ends_ns = sorted(result.latencies_ns.values())
    first, last = count // 4, 3 * count // 4
    return (last - first) * 1e9 / max(1, ends_ns[last] - ends_ns[first])


def as_lengths(loops: Loops | None, table: LatencyTable) -> Mapping[str, LengthGuess] | None:
    """As `lazybatch.LazyBatcher` takes them."""
    return None if loops is None else loops.guesses(table)
