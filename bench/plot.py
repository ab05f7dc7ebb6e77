"""Pictures of what the other scripts measured.

Owns: drawing. Must not know: how anything was measured.

    python bench/plot.py out/bench/overhead.json out/bench/load.json -o out/bench
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.sweep_plot import draw as draw_sweep

Rows = list[dict[str, Any]]


def draw_overhead(document: dict[str, Any], path: Path) -> None:
    """Chain over whole per model and batch size, against the target."""
    from matplotlib import pyplot

    rows: Rows = [row for row in document["rows"] if row["what"] == "chain"]
    if not rows:
        raise ValueError("no rows of chain against whole: run bench/overhead.py with the part 'chain'")
    names = list(dict.fromkeys(row["model"] for row in rows))
    sizes = sorted({row["batch"] for row in rows})
    figure, axis = pyplot.subplots(figsize=(1.8 + 1.5 * len(names), 4), constrained_layout=True)
    width = 0.8 / len(sizes)
    for k, size in enumerate(sizes):
        values = {row["model"]: row["chain_over_whole"] for row in rows if row["batch"] == size}
        places = [names.index(name) + (k - (len(sizes) - 1) / 2) * width for name in values]
        bars = axis.bar(places, list(values.values()), width, label=f"batch {size}")
        axis.bar_label(bars, fmt="%.3f", fontsize=8)
    axis.axhline(1.05, color="black", linestyle=":", label="target 1.05")
    axis.set_xticks(range(len(names)), names)
    axis.set_ylim(bottom=0.8)
    axis.set_ylabel("time node by node / time of the whole model")
    axis.legend()
    _save(figure, path, document)


def draw_load(document: dict[str, Any], path: Path) -> None:
    """Latency and throughput over load, one line per policy; of open-loop rows."""
    from matplotlib import pyplot

    rows: Rows = [row for row in document["rows"] if row["load"] is not None]
    if not rows:
        raise ValueError("no open-loop rows: run bench/load.py with --mode open")
    panels: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("median latency [ms]", lambda row: row["p50_ms"]),
        ("99th percentile latency [ms]", lambda row: row["p99_ms"]),
        ("answered rows [1/s]", lambda row: row["rows_per_s"]),
    ]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 4), constrained_layout=True)
    series = list(dict.fromkeys((row["policy"], row["max_delay_ms"]) for row in rows))
    for axis, (label, value) in zip(axes, panels, strict=True):
        for policy, delay_ms in series:
            mine = [row for row in rows if (row["policy"], row["max_delay_ms"]) == (policy, delay_ms)]
            name = policy if delay_ms is None else f"{policy} {delay_ms:g} ms"
            axis.plot([row["load"] for row in mine], [value(row) for row in mine], marker="o", label=name)
        axis.set_xlabel("load: offered rate / capacity")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in axes[:2]:
        axis.set_yscale("log")
    _save(figure, path, document, f"{rows[0]['model']}, Poisson arrivals, one seeded run per point")


def _save(figure: Any, path: Path, document: dict[str, Any], title: str = "") -> None:
    """Save with a line saying where the numbers were measured."""
    from matplotlib import pyplot

    provenance = document["provenance"]
    machine = provenance["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, ONNX Runtime {provenance['versions'].get('onnxruntime')}"
    figure.suptitle(f"{title}\n{where}" if title else where, fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


DRAWERS: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "bench/overhead.py": draw_overhead,
    "bench/load.py": draw_load,
    "bench/sla_sweep.py": draw_sweep,
}


def main(arguments: list[str] | None = None) -> int:
    """Draw every file given; 0 when all are drawn, 2 for one that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files written by the benchmark scripts")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"), metavar="DIR", help="(out/bench)")
    chosen = parser.parse_args(arguments)
    import matplotlib as mpl

    mpl.use("Agg")
    chosen.output.mkdir(parents=True, exist_ok=True)
    for file in chosen.files:
        target = chosen.output / file.with_suffix(".png").name
        try:
            document = json.loads(file.read_text())
            DRAWERS[document["provenance"]["script"]](document, target)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"plot.py: {file}: {error}", file=sys.stderr)
            return 2
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
