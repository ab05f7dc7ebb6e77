"""Pictures of the paper's figures, from rows.

Owns: drawing. Must not know: how rows were made.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphs.npu import NETWORKS, latency_table

Row = Mapping[str, Any]
NAMES = {
    "graph": "GraphB(0)",
    "lazy": "LazyBatching",
    "serial": "Serial",
    "lookahead": "Lookahead",
    "oracle": "Oracle",
    "cellular": "Cellular",
    "aimd": "AIMD",
}
COLOURS = {
    "serial": "C7",
    "graph": "C0",
    "cellular": "C9",
    "aimd": "C4",
    "lazy": "C1",
    "oracle": "C2",
    "lookahead": "C3",
}


def _name(policy: str) -> str:
    return NAMES.get(policy, policy.replace("graph:", "GraphB(") + (")" if policy.startswith("graph:") else ""))


def _policies(rows: Sequence[Row]) -> list[str]:
    return [policy for policy in dict.fromkeys(row["policy"] for row in rows) if policy != "bounds"]


def _style(policy: str) -> dict[str, Any]:
    """A policy looks the same in every picture; ours on top, windows thin and grey, cellular over GraphB(0) dotted."""
    if policy.startswith("graph:"):
        shade = 0.45 + 0.35 * min(float(policy.partition(":")[2]), 100) / 100
        return {"color": f"{shade:.2f}", "linewidth": 1, "linestyle": "--"}
    style = {"color": COLOURS.get(policy, "C5"), "linewidth": 1.6, "marker": "o", "markersize": 3}
    if policy == "lookahead":
        return style | {"linewidth": 2.4, "zorder": 5}
    return style | ({"linestyle": ":", "zorder": 4} if policy == "cellular" else {})


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _lines(axis: Any, rows: Sequence[Row], across: str, value: Callable[[Row], float]) -> None:
    """One line per policy: the median over seeds, with the quartiles as a band."""
    for policy in _policies(rows):
        groups: dict[float, list[float]] = {}
        for row in rows:
            if row["policy"] == policy:
                groups.setdefault(row[across], []).append(value(row))
        places = sorted(groups)
        low, middle, high = zip(*(_quartiles(groups[place]) for place in places), strict=True)
        style = _style(policy)
        axis.plot(places, middle, label=_name(policy), **style)
        axis.fill_between(places, low, high, color=style["color"], alpha=0.15)
    axis.grid(alpha=0.3)


def _bounds(axis: Any, rows: Sequence[Row], across: str) -> None:
    labels = {
        "clairvoyant_ms": "clairvoyant, graph level",
        "lower_bound_ms": "lower bound",
        "closed_form_ms": "closed form",
    }
    for (key, label), line in zip(labels.items(), ("-.", ":", (0, (1, 4))), strict=True):
        groups: dict[float, list[float]] = {}
        for row in rows:
            if row["policy"] == "bounds" and key in row:
                groups.setdefault(row[across], []).append(row[key])
        if not groups:
            continue
        places = sorted(groups)
        axis.plot(places, [statistics.median(groups[k]) for k in places], "k", linestyle=line, linewidth=1, label=label)


def _panels(count: int) -> tuple[Any, Any]:
    from matplotlib import pyplot

    columns = min(count, 4)
    lines = -(-count // columns)
    size = (max(6.0, 3.6 * columns + 0.6), 3.3 * lines + 0.9)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes.flat[:count]


def _finish(figure: Any, axes: Any, title: str, path: Path) -> None:
    from matplotlib import pyplot

    drawn = [axis.get_legend_handles_labels() for axis in axes]
    handles = {label: handle for found in drawn for handle, label in zip(*found, strict=True)}
    if handles:
        columns = 4 if figure.get_figwidth() < 9 else 8
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=8)
    figure.suptitle(f"{title} (simulated)", fontsize=10)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def draw_fig3(path: Path) -> None:
    """Throughput and latency per row by batch size, from the table."""
    table = latency_table(NETWORKS["resnet50"]())
    sizes = list(table.batch_sizes)
    figure, (axis,) = _panels(1)
    axis.plot(sizes, [rows * 1e9 / table.whole_ns(rows) for rows in sizes], "o-", label="throughput [1/s]")
    right = axis.twinx()
    right.plot(sizes, [table.whole_ns(rows) / rows / 1e6 for rows in sizes], "s-", color="C1")
    right.set_ylabel("latency per row [ms] (squares)")
    axis.set_xlabel("batch size")
    axis.set_ylabel("throughput [1/s]")
    _finish(figure, [axis], "Fig. 3: ResNet-50 by batch size", path)


def _by_model(rows: Sequence[Row], across: str, metric: str, label: str, title: str, path: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = _panels(len(models))
    for axis, model in zip(axes, models, strict=True):
        mine = [row for row in rows if row["model"] == model]
        _lines(axis, [row for row in mine if row["policy"] != "bounds"], across, lambda row: row[metric])
        if metric == "mean_ms":
            _bounds(axis, mine, across)
        axis.set_title(model, fontsize=9)
        axis.set_xlabel({"rate_rps": "requests/s", "load": "rate / capacity", "max_batch": "largest batch"}[across])
        axis.set_ylabel(label)
        axis.set_yscale("log")
        if across == "rate_rps":
            axis.set_xscale("log")
    _finish(figure, axes, title, path)


def draw_fig14(rows: Sequence[Row], path: Path) -> None:
    """Cumulative distributions; the first seed of each policy."""
    figure, (axis,) = _panels(1)
    for policy in _policies(rows):
        row = next(row for row in rows if row["policy"] == policy)
        style = {key: value for key, value in _style(policy).items() if not key.startswith("marker")}
        axis.plot(row["cdf_ms"], [q / 200 for q in range(201)], label=_name(policy), **style)
    axis.set_xscale("log")
    axis.set_xlabel("latency [ms]")
    axis.set_ylabel("share of requests")
    axis.grid(alpha=0.3)
    _finish(figure, [axis], f"Fig. 14: {rows[0]['model']} at {rows[0]['rate_rps']:g}/s", path)


def draw_fig15(rows: Sequence[Row], path: Path) -> None:
    """Violations by SLA target, per model, at each rate."""
    panels = list(dict.fromkeys((row["model"], row["rate_rps"]) for row in rows))
    figure, axes = _panels(len(panels))
    for axis, (model, rate) in zip(axes, panels, strict=True):
        spread = [
            {"policy": row["policy"], "target": float(target), "share": 100 * share}
            for row in rows
            if (row["model"], row["rate_rps"]) == (model, rate)
            for target, share in row["violations_at"].items()
        ]
        _lines(axis, spread, "target", lambda row: row["share"])
        axis.set_title(f"{model} at {rate:g}/s", fontsize=9)
        axis.set_xlabel("SLA target [ms]")
        axis.set_ylabel("violations [%]")
    _finish(figure, axes, "Fig. 15: violations by SLA target", path)


def _bars(rows: Sequence[Row], across: str, metric: str, scale: float, label: str, title: str, path: Path) -> None:
    figure, (axis,) = _panels(1)
    groups, names = list(dict.fromkeys(row[across] for row in rows)), _policies(rows)
    for number, policy in enumerate(names):
        values = [
            statistics.fmean(scale * row[metric] for row in rows if (row["policy"], row[across]) == (policy, group))
            for group in groups
        ]
        places = [k + (number - (len(names) - 1) / 2) * 0.8 / len(names) for k in range(len(groups))]
        axis.bar(places, values, 0.8 / len(names), label=_name(policy), color=_style(policy)["color"])
    axis.set_xticks(range(len(groups)), [str(group) for group in groups], fontsize=8)
    axis.set_xlabel(across)
    axis.set_ylabel(label)
    _finish(figure, [axis], title, path)


def draw_colocation(rows: Sequence[Row], path: Path) -> None:
    """Four models: mean latency of all and of each, and the shortest one's tail."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    panels = [(models[0], "mean_ms"), (models[1], "p99_ms"), *((model, "mean_ms") for model in models[1:])]
    figure, axes = _panels(len(panels))
    for axis, (model, metric) in zip(axes, panels, strict=True):
        _lines(axis, [row for row in rows if row["model"] == model], "load", lambda row, metric=metric: row[metric])
        axis.set_title("all four" if "+" in model else model, fontsize=9)
        axis.set_xlabel("load of the machine")
        axis.set_ylabel({"mean_ms": "mean latency [ms]", "p99_ms": "99th percentile [ms]"}[metric])
        axis.set_yscale("log")
    _finish(figure, axes, "Four models on one processor", path)


def draw_overload(rows: Sequence[Row], path: Path) -> None:
    """Share of the requests on time by policy, per model and target, with what is possible."""
    panels = list(dict.fromkeys((row["model"], row["target"]) for row in rows))
    figure, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        mine = [row for row in rows if (row["model"], row["target"]) == panel]
        names = _policies(mine)
        shares = [statistics.median(row["goodput"] for row in mine if row["policy"] == name) for name in names]
        axis.barh(range(len(names)), shares, color=[_style(name)["color"] for name in names])
        axis.set_yticks(range(len(names)), [_name(name) for name in names], fontsize=7)
        axis.invert_yaxis()
        lines = {"goodput_clairvoyant": ("clairvoyant, graph level", "-."), "goodput_bound": ("upper bound", ":")}
        for key, (label, style) in lines.items():
            limits = [row[key] for row in mine if row["policy"] == "bounds"]
            if limits:
                axis.axvline(statistics.median(limits), color="k", linestyle=style, label=label)
        axis.set_title(f"{panel[0]}, {panel[1]} SLA", fontsize=9)
        axis.set_xlabel("share of requests on time")
    _finish(figure, axes, f"Offered {rows[0]['load']:g} times the capacity, late rows dropped", path)


def draw_all(rows: Sequence[Row], folder: Path) -> None:
    """Draw every study that has rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row["study"], []).append(row)
    mean, rate = "mean latency [ms]", "throughput [1/s]"
    draw_fig3(folder / "fig3.png")
    if main := of.get("fig12_13"):
        _by_model(main, "rate_rps", "mean_ms", mean, "Fig. 12: mean latency by rate", folder / "fig12.png")
        runs = [row for row in main if row["policy"] != "bounds"]
        _by_model(runs, "rate_rps", "throughput_rps", rate, "Fig. 13: throughput by rate", folder / "fig13.png")
    if "fig14" in of:
        draw_fig14(of["fig14"], folder / "fig14.png")
    if "fig15" in of:
        draw_fig15(of["fig15"], folder / "fig15.png")
    titles = {"fig16": "Fig. 16: other networks", "fig17": "Fig. 17: GPU-like"}
    for study, title in titles.items():
        if study in of:
            _by_model(of[study], "load", "mean_ms", mean, title, folder / f"{study}.png")
    if "colocation" in of:
        draw_colocation(of["colocation"], folder / "colocation.png")
    if "overload" in of:
        draw_overload(of["overload"], folder / "overload.png")
    if "max_batch" in of:
        _by_model(of["max_batch"], "max_batch", "mean_ms", mean, "Largest batch, 500/s", folder / "max_batch.png")
    if "dec_timesteps" in of:
        title, path = "Transformer at 60 ms", folder / "dec_timesteps.png"
        _bars(of["dec_timesteps"], "dec_timesteps", "violations", 100, "violations [%]", title, path)
    if "language_pairs" in of:
        path = folder / "language_pairs.png"
        _bars(of["language_pairs"], "pair", "mean_ms", 1, mean, "Transformer by lengths, 250/s", path)
