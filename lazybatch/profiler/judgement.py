"""What a latency table says about batching.

Owns: `verdict` and `Verdict`.
Must not know: how the table came about.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazybatch.core.latency import LatencyTable

_PAYS_FROM = 1.1
"""Throughput gained, from which on we say that batching pays: less is within what tables differ from run to run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a table says about batching one model; ``str()`` is the sentence for people.

    curve: (rows, S(rows) in ns, throughput over that of single rows) per profiled size. best_rows: the profiled size
    of the highest throughput; gain: its throughput over that of single rows; pays: whether that is worth waiting for.
    """

    model: str
    curve: tuple[tuple[int, int, float], ...]
    best_rows: int
    gain: float
    pays: bool
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def verdict(table: LatencyTable) -> Verdict:
    """Whether batching pays, and where, judged by S(n), the time of the whole graph at n rows (medians)."""
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
