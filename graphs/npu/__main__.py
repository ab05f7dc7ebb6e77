"""Command line of the simulated NPU: `python -m graphs.npu -o DIR` writes the tables and prints the calibration.

Owns: the options and the printed table. Must not know: networks, formulas.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphs.npu import NETWORKS, PAPER_MS, latency_table
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import LazyBatchError

HEADER = f"{'model':12} {'nodes':>5} {'S(1) ms':>8} {'S(16)':>8} {'S(64)':>8} {'gain':>6} {'paper ms':>9} {'error':>8}"


def _line(table: LatencyTable) -> str:
    whole = {rows: table.whole_ns(rows) / 1e6 for rows in (1, 16, 64)}
    best = table.best_rows(64)
    gain = best * whole[1] / (table.whole_ns(best) / 1e6)
    line = f"{table.model:12} {len(table.nodes):5d} {whole[1]:8.3f} {whole[16]:8.2f} {whole[64]:8.2f} {gain:5.1f}x"
    paper = PAPER_MS.get(table.model)
    return line if paper is None else f"{line} {paper:9.1f} {100 * (whole[1] / paper - 1):+7.1f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one table per network; 0, or 2 when a file cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m graphs.npu",
        description="Latency tables of seven networks on the simulated 128 x 128 NPU, and how they compare with the "
        "single-batch latencies of the LazyBatching paper. gain: throughput of the best batch over batch 1.",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write into")
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        print(HEADER)
        for name, build in NETWORKS.items():
            table = latency_table(build())
            table.save(options.output / f"{name}.json")
            print(_line(table))
    except (LazyBatchError, OSError) as error:
        print(f"graphs.npu: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
