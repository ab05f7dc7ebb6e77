"""The machines and models that policies are compared on.

Owns: `Profile` and `profile`: four synthetic machines, the tables of the analytic NPU, and every measured table under
`profiles/`; the equivalent tables with fewer nodes that make long comparisons affordable.
Must not know: policies, workloads, what is compared.

Two tables stand for one profile. `nodes` is what policies that preempt run on; of a long table, neighbours are joined
to at most `NODES` nodes of similar time, which is a partition like any other (fewer boundaries, the same whole times).
`whole` has one node: policies that never preempt do exactly the same there, many times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput
from lazybatch.profiles import load

TABLES = Path(__file__).resolve().parents[1] / "profiles"
NPU = "npu-128x128"
NPU_ROWS, MEASURED_ROWS = 64, 16
NODES = 20
SYNTHETIC = {
    "gpu": (6.1, 1.39, 50, 64),
    "launch": (10.0, 0.15, 50, 64),
    "half": (5.0, 5.0, 20, 32),
    "nogain": (1.0, 25.0, 18, 64),
}
"""name -> F, c, nodes, largest batch: S(b) = F + c b milliseconds, spread evenly over the nodes.

A GPU-like ResNet (fitted to the logs of the LazyBatching authors' prototype), a model bound by its launches, one where
half of the time is shared, and one that gains nothing from batches."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on a machine. rows_max: largest batch. nodes, whole: see the module's text. source_nodes: before joining.

    source: where the table comes from, for provenance.
    """

    name: str
    rows_max: int
    nodes: LatencyTable
    whole: LatencyTable
    source_nodes: int
    source: str

    def whole_ns(self, rows: int) -> int:
        """S(rows)."""
        return self.whole.median_ns[0][rows - 1]

    @property
    def capacity_rps(self) -> float:
        """Requests per second of the best batch size."""
        return max(rows * 1e9 / time_ns for rows, time_ns in enumerate(self.whole.median_ns[0], start=1))

    @property
    def tight_ns(self) -> int:
        """A tight SLA target: 2.5 S(1)."""
        return round(2.5 * self.whole_ns(1))

    @property
    def loose_ns(self) -> int:
        """A loose SLA target: 10 S(1), or twice the largest batch where that is longer."""
        return max(10 * self.whole_ns(1), 2 * self.whole_ns(self.rows_max))


def joined(table: LatencyTable, nodes: int, rows_max: int) -> LatencyTable:
    """The same model in at most ``nodes`` nodes of similar time, with a time for each of 1..rows_max rows.

    A node ends where its share of the time of one row, averaged with that of a full batch, is nearest to being full.
    """
    dense = table.dense_ns(rows_max)
    if len(dense) <= nodes:
        groups = [[node] for node in range(len(dense))]
    else:
        alone, full = (sum(times[rows] for times in dense) for rows in (1, rows_max))
        weights = [times[1] / alone / 2 + times[rows_max] / full / 2 for times in dense]
        middles = [end - weight / 2 for end, weight in zip(accumulate(weights), weights, strict=True)]
        by_slot: dict[int, list[int]] = {}
        for node, middle in enumerate(middles):
            by_slot.setdefault(min(int(middle * nodes), nodes - 1), []).append(node)
        groups = list(by_slot.values())
    times = tuple(
        tuple(sum(dense[node][rows] for node in group) for rows in range(1, rows_max + 1)) for group in groups
    )
    names = tuple(f"node{k}" for k in range(len(groups)))
    return LatencyTable(table.model, names, tuple(range(1, rows_max + 1)), times, times, table.provenance)


def known() -> tuple[str, ...]:
    """Names that `profile` knows: the synthetic ones, then "folder/table" of what lies under `profiles/`."""
    files = sorted(TABLES.glob("*/*.json"))
    return (*SYNTHETIC, *(f"{file.parent.name}/{file.stem}" for file in files))


def chosen(names: Sequence[str] | None) -> tuple[str, ...]:
    """Known names that are, or begin with, one of these ("npu-128x128" takes seven); all without any.

    Raises `InvalidInput` for a name that takes none.
    """
    every = known()
    if not names:
        return every
    found: list[str] = []
    for name in names:
        taken = [one for one in every if one == name or one.startswith(name + "/")]
        if not taken:
            raise InvalidInput(f"unknown profile {name!r}; known are {', '.join(every)}")
        found += taken
    return tuple(dict.fromkeys(found))


@cache
def profile(name: str) -> Profile:
    """A profile by name. Raises `InvalidInput` for an unknown one, or a table that cannot be used."""
    if name in SYNTHETIC:
        fixed_ms, per_row_ms, nodes, rows_max = SYNTHETIC[name]
        table = LatencyTable.uniform(
            name, nodes, round(fixed_ms * 1e6), round(per_row_ms * 1e6), range(1, rows_max + 1)
        )
        return Profile(name, rows_max, table, joined(table, 1, rows_max), nodes, "synthetic")
    if name not in known():
        raise InvalidInput(f"unknown profile {name!r}; known are {', '.join(known())}")
    table = load(TABLES / f"{name}.json")
    folder = name.partition("/")[0]
    rows_max = NPU_ROWS if folder == NPU else min(MEASURED_ROWS, table.batch_sizes[-1])
    source = "analytic" if folder == NPU else "measured"
    return Profile(name, rows_max, joined(table, NODES, rows_max), joined(table, 1, rows_max), len(table.nodes), source)
