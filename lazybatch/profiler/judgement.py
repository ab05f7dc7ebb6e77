"""What a latency table says about batching.

Owns: `verdict` and `Verdict`, of a whole model and of the stages of a program.
Must not know: how the table came about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from lazybatch.core.latency import LatencyTable
from lazybatch.table_loops import loops_of

_PAYS_FROM = 1.1
"""Throughput gained, from which on we say that batching pays: less is within what tables differ from run to run."""

Point = tuple[int, int, float]
"""Rows, S(rows) in ns, throughput over that of single rows."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a table says about batching one model; ``str()`` is the sentence for people.

    curve: (rows, S(rows) in ns, throughput over that of single rows) per profiled size. best_rows: the profiled size
    of the highest throughput; gain: its throughput over that of single rows; pays: whether that is worth waiting for.
    stages: of a program: the curve of each stage, of a loop for one iteration.
    """

    model: str
    curve: tuple[Point, ...]
    best_rows: int
    gain: float
    pays: bool
    sentence: str
    stages: tuple[tuple[str, tuple[Point, ...]], ...] = ()

    def __str__(self) -> str:
        return self.sentence


def verdict(table: LatencyTable) -> Verdict:
    """Whether batching pays, and where, judged by S(n), the time of the whole graph at n rows (medians).

    In a graph with loops rows go round each as often as they did when it was measured.
    """
    loops = loops_of(table)
    if not loops:
        return _judge(table)
    weights = [1] * len(table.nodes)
    for loop, _, iterations in loops:
        weights[loop.first : loop.stop] = [iterations] * (loop.stop - loop.first)
    made = _judge(table.weighted(weights))
    rounds = ", ".join(f"{iterations} of {loop.name!r}" for loop, _, iterations in loops)
    stages = groupby(enumerate(table.nodes), key=lambda entry: entry[1].partition("/")[0])
    curves = tuple((name, _stage_curve(table, [number for number, _ in nodes])) for name, nodes in stages)
    return replace(made, sentence=f"{made.sentence} (iterations: {rounds})", stages=curves)


def _stage_curve(table: LatencyTable, nodes: list[int]) -> tuple[Point, ...]:
    times_ns = [sum(table.median_ns[node][place] for node in nodes) for place in range(len(table.batch_sizes))]
    return tuple(
        (rows, time_ns, rows * times_ns[0] / time_ns) for rows, time_ns in zip(table.batch_sizes, times_ns, strict=True)
    )


def _judge(table: LatencyTable) -> Verdict:
    single_ns = table.whole_ns(1)
    curve = tuple((rows, table.whole_ns(rows), rows * single_ns / table.whole_ns(rows)) for rows in table.batch_sizes)
    best_rows, _, gain = max(curve, key=lambda point: (point[2], -point[0]))
    pays = gain >= _PAYS_FROM
    if pays:
        sentence = f"{table.model}: batching gains {gain:.1f}x at {best_rows}"
    elif table.provenance.get("joinable") is False:
        sentence = f"{table.model}: rows are served alone: {table.provenance.get('reason') or 'they cannot be joined'}"
    elif len(curve) == 1:
        sentence = f"{table.model}: only single rows were profiled, nothing is known about batching"
    else:
        rows, whole_ns, _ = curve[-1]
        sentence = (
            f"{table.model}: batching does not pay here: {rows} rows together take {whole_ns / single_ns:.1f}x "
            f"the time of one"
        )
    return Verdict(table.model, curve, best_rows, gain, pays, sentence)
