"""Pictures of a sweep over SLA targets and rates.

Owns: drawing rows of `bench/sla_sweep.py`. Must not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.variants import USUAL

Row = dict[str, Any]
PANELS_MAX = 4
MEASURES: tuple[tuple[str, str, str], ...] = (
    ("goodput_rps", "answers within target [1/s]", "linear"),
    ("mean_ms", "mean latency [ms]", "log"),
    ("p99_ms", "99th percentile latency [ms]", "log"),
)


def draw(document: dict[str, Any], path: Path) -> list[Path]:
    """Two pictures beside ``path``: violations over targets, and goodput and latency over rates. Their paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    rows = [row for row in document["rows"] if not row["refined"]]
    title = _title(document, rows)
    files = [path.with_name(f"{path.stem}-targets.png"), path.with_name(f"{path.stem}-rates.png")]
    _targets(rows, files[0], title)
    _rates(rows, files[1], title)
    return files


def _title(document: dict[str, Any], rows: Sequence[Row]) -> str:
    first, provenance = rows[0], document["provenance"]
    seeds = len({row["seed"] for row in rows})
    kind = "simulated" if first["simulated"] else f"live on {provenance['machine']['cpu']}"
    return f"{first['model']}, {first['arrivals']} arrivals, {kind}; lines: median of {seeds} seeds, bands: p25-p75"


def _targets(rows: Sequence[Row], path: Path, title: str) -> None:
    """Share of requests that miss the target, over the target; a panel per load."""
    loads = _some(sorted({row["load"] for row in rows}))
    axes, colours = _panels(1, len(loads))[0], _colours(rows)
    for axis, load in zip(axes, loads, strict=True):
        here = [row for row in rows if row["load"] == load]
        _lines(axis, here, colours, lambda row: row["sla_ms"], lambda row: 100 * row["violations"])
        axis.set_title(f"load {load:.2f}: {here[0]['rate_rps']:.4g} requests/s", fontsize=9)
        axis.set_xlabel("SLA target [ms]")
        axis.set_xscale("log")
        axis.set_xticks(sorted({row["sla_ms"] for row in here}))
        axis.minorticks_off()
        axis.xaxis.set_major_formatter("{x:g}")
        axis.tick_params(axis="x", labelsize=7)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_ylim(0, 110)
        axis.axhline(1.0, color="black", linestyle=":", linewidth=0.8)
    axes[0].set_ylabel("requests that miss the target [%]")
    _save(axes, path, title)


def _rates(rows: Sequence[Row], path: Path, title: str) -> None:
    """Goodput, mean and p99 over the rate; a row of panels per target."""
    targets = _some(sorted({row["sla_ms"] for row in rows}))
    grid, colours = _panels(len(targets), len(MEASURES)), _colours(rows)
    for line, sla_ms in zip(grid, targets, strict=True):
        here = [row for row in rows if row["sla_ms"] == sla_ms]
        for axis, (key, label, scale) in zip(line, MEASURES, strict=True):
            _lines(axis, here, colours, itemgetter("rate_rps"), itemgetter(key))
            axis.set_yscale(scale)
            axis.set_xlabel("offered rate [1/s]")
            axis.set_ylabel(label)
            axis.set_title(f"SLA target {sla_ms:g} ms", fontsize=9)
            if key != "goodput_rps":
                axis.axhline(sla_ms, color="black", linestyle=":", linewidth=0.8)
    _save(grid[0], path, title)


def _lines(
    axis: Any,
    rows: Sequence[Row],
    colours: Sequence[str],
    x: Callable[[Row], float],
    y: Callable[[Row], float | None],
) -> None:
    """One line per policy through the medians over seeds, with a band from p25 to p75; gaps where nothing came back."""
    for policy in sorted({row["policy"] for row in rows}, key=colours.index):
        points: dict[float, list[float]] = {}
        for row in rows:
            value = y(row)
            if row["policy"] == policy and value is not None:
                points.setdefault(x(row), []).append(value)
        places, colour = sorted(points), f"C{colours.index(policy)}"
        low, middle, high = ([_quartiles(points[place])[k] for place in places] for k in range(3))
        axis.plot(places, middle, marker="o", markersize=3, label=policy, color=colour)
        axis.fill_between(places, low, high, alpha=0.2, color=colour)
    axis.grid(alpha=0.3)


def _colours(rows: Sequence[Row]) -> list[str]:
    """All policies, in an order that does not depend on the order of the runs: a policy's place is its colour."""
    titles = {row["policy"] for row in rows}
    return [title for title in USUAL if title in titles] + sorted(titles.difference(USUAL))


def _quartiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(quantiles(values, n=4, method="inclusive")) if len(values) > 1 else (values[0],) * 3


def _some(values: Sequence[float]) -> list[float]:
    """At most `PANELS_MAX` of them, spread, the first and the last among them."""
    if len(values) <= PANELS_MAX:
        return list(values)
    step = (len(values) - 1) / (PANELS_MAX - 1)
    return [values[round(k * step)] for k in range(PANELS_MAX)]


def _panels(lines: int, columns: int) -> Any:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(
        lines, columns, figsize=(1 + 3.6 * columns, 0.8 + 2.9 * lines), squeeze=False, constrained_layout=True
    )
    return axes


def _save(axes: Iterable[Any], path: Path, title: str) -> None:
    from matplotlib import pyplot

    first = next(iter(axes))
    first.legend(fontsize=7)
    first.figure.suptitle(title, fontsize=9)
    first.figure.savefig(path, dpi=110)
    pyplot.close(first.figure)
