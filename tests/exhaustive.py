"""Schedules by trying everything: slow and obviously right, the oracle of `lazybatch.bounds`.

Owns: exhaustive search at node and at graph level over tiny traces.
Must not know: any argument why some schedules need not be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

from lazybatch.core.latency import LatencyTable

State = tuple[int, ...]


def _subsets(items: list[int], largest: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, min(len(items), largest) + 1):
        yield from combinations(items, size)


def node_level(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int], sla_ns: int | None = None) -> int:
    """The smallest summed latency; with an SLA target, the most requests on time (others may be left undone).

    At every moment: run any node on any requests that stand there and have arrived, or wait for the next arrival.
    """
    dense, count = table.dense_ns(rows_max), len(arrivals_ns)
    nodes = len(dense)

    @cache
    def best(now: int, cursors: State) -> float:
        if all(cursor == nodes for cursor in cursors):
            return 0
        found = -0.0 if sla_ns is not None else float("inf")
        later = [at_ns for at_ns in arrivals_ns if at_ns > now]
        if later:
            found = _better(found, best(later[0], cursors))
        for node in range(nodes):
            here = [k for k in range(count) if cursors[k] == node and arrivals_ns[k] <= now]
            if sla_ns is not None:
                here = [k for k in here if now < arrivals_ns[k] + sla_ns]
            for chosen in _subsets(here, rows_max):
                end_ns = now + dense[node][len(chosen)]
                after = tuple(cursor + (k in chosen) for k, cursor in enumerate(cursors))
                gained = sum(_worth(end_ns, arrivals_ns[k]) for k in chosen) if node == nodes - 1 else 0
                found = _better(found, gained + best(end_ns, after))
        return found

    def _worth(end_ns: int, at_ns: int) -> int:
        return end_ns - at_ns if sla_ns is None else int(end_ns <= at_ns + sla_ns)

    def _better(one: float, other: float) -> float:
        return min(one, other) if sla_ns is None else max(one, other)

    return int(best(min(arrivals_ns, default=0), (0,) * count))


def graph_level(table: LatencyTable, rows_max: int, arrivals_ns: Sequence[int], sla_ns: int | None = None) -> int:
    """As `node_level`, for batches that run from the first node to the last."""
    whole = tuple(sum(times[rows] for times in table.dense_ns(rows_max)) for rows in range(rows_max + 1))
    one = LatencyTable(table.model, ("all",), tuple(range(1, rows_max + 1)), (whole[1:],), (whole[1:],))
    return node_level(one, rows_max, arrivals_ns, sla_ns)
