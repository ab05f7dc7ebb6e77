"""Heat maps of `bench/dominance.py`: profile by load, ours against the best other policy.

Owns: drawing. Must not know: how cells were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.dominance_cells import MEASURES, Cell

SPANS = {"mean": (0.9, 1.0, 1.1), "p99": (0.8, 1.0, 1.2), "violations": (-1.0, 0.0, 1.0)}
"""Colours reach from green, better, over white to red, worse."""


def draw(cells: Sequence[Cell], folder: Path) -> list[Path]:
    """One picture per measure, with a panel per kind of arrivals and SLA target."""
    import matplotlib as mpl

    mpl.use("Agg")
    return [_draw(cells, measure, title, folder / f"dominance_{measure}.png") for measure, title in MEASURES.items()]


def _draw(cells: Sequence[Cell], measure: str, title: str, path: Path) -> Path:
    from matplotlib import pyplot
    from matplotlib.colors import TwoSlopeNorm

    profiles = list(dict.fromkeys(cell.profile for cell in cells))
    loads = sorted({cell.load for cell in cells})
    kinds = list(dict.fromkeys((cell.arrivals, cell.target) for cell in cells))
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    size = (columns * (2.2 + 0.62 * len(loads)), lines * (1.2 + 0.34 * len(profiles)))
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    low, even, high = SPANS[measure]
    norm = TwoSlopeNorm(even, low, high)
    image: Any = None
    for axis, kind in zip(axes.flat, kinds, strict=False):
        found = {(c.profile, c.load): c.compared(measure).value for c in cells if (c.arrivals, c.target) == kind}
        grid = [[found.get((name, load), float("nan")) for load in loads] for name in profiles]
        image = axis.imshow(grid, cmap="RdYlGn_r", norm=norm, aspect="auto")
        for (line, name), (column, load) in ((a, b) for a in enumerate(profiles) for b in enumerate(loads)):
            if (name, load) in found:
                text = f"{found[name, load]:.2f}".replace("-0.00", "0.00")
                axis.text(column, line, text, ha="center", va="center", fontsize=7)
        axis.set_xticks(range(len(loads)), [f"{load:g}" for load in loads], fontsize=8)
        axis.set_yticks(range(len(profiles)), [name.replace("npu-128x128", "npu") for name in profiles], fontsize=8)
        axis.set_xlabel("load")
        axis.set_title(f"{kind[0]} arrivals, {kind[1]} SLA", fontsize=9)
    for axis in list(axes.flat)[len(kinds) :]:
        axis.set_axis_off()
    unit = "less the best other's" if measure == "violations" else "over the best other policy's"
    figure.suptitle(f"lookahead: {title} {unit} (green: better), simulated", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
