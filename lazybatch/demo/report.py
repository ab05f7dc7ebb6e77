"""What the demo shows: a table, who won where, and a picture.

Owns: words and drawings.
Must not know: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybatch.demo.serving import MODELS, POLICIES, Run, Setting
from lazybatch.policies import DEFAULT
from lazybatch.words import counted

NEAR = 0.02
"""Goodputs closer than this share are called equal: one run of a few seconds cannot tell them apart."""

HEADINGS = (
    *("load", "policy", "answers in\ntime per s"),
    *(f"{model}\n{figure}" for model in MODELS for figure in ("p50", "p99", "late")),
    *("rows per\ndispatch", "preempted,\nmerged"),
)


def _cells(run: Run) -> list[str]:
    cells = [f"{run.load:.2f}", run.title, f"{run.goodput_rps:.1f}"]
    for model in MODELS:
        figures = run.per_model[model]
        late = figures["late"]
        cells += [_ms(figures["p50_ms"]), _ms(figures["p99_ms"]), "-" if late is None else f"{late:.0%}"]
    return [*cells, "-" if run.mean_rows is None else f"{run.mean_rows:.2f}", f"{run.preemptions}, {run.merges}"]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def table(runs: Sequence[Run], title: str) -> None:
    """Print one table, with rich where it is installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        rows = [[heading.replace("\n", " ") for heading in HEADINGS], *(_cells(run) for run in runs)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(HEADINGS))]
        print(title)
        for row in rows:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        return
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADINGS:
        shown.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for number, run in enumerate(runs):
        last = number + 1 == len(runs) or runs[number + 1].load != run.load
        shown.add_row(*_cells(run), end_section=last)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(shown)


def verdicts(runs: Sequence[Run]) -> list[str]:
    """One line per load: whose goodput was best, and how the default policy stood to the others. Says when it lost."""
    said = []
    for load in dict.fromkeys(run.load for run in runs):
        here = [run for run in runs if run.load == load]
        best = max(here, key=lambda run: run.goodput_rps)
        winners = [run.title for run in here if run.goodput_rps >= (1 - NEAR) * best.goodput_rps]
        own = next((run for run in here if run.title == DEFAULT), None)
        others = [run for run in here if run is not own]
        line = f"load {load:.2f}: most answers in time: {', '.join(winners)} ({best.goodput_rps:.1f}/s)"
        if own is not None and others:
            for model in MODELS:
                rival = min(others, key=lambda run: run.per_model[model]["p99_ms"] or float("inf"))
                ours, theirs = own.per_model[model]["p99_ms"], rival.per_model[model]["p99_ms"]
                if ours is not None and theirs is not None:
                    word = "wins" if ours < 0.95 * theirs else "loses" if ours > 1.05 * theirs else "ties"
                    line += f"; {model} p99: {DEFAULT} {ours:.0f} ms {word} against {rival.title} {theirs:.0f} ms"
        said.append(line)
    return said


def answers(runs: Sequence[Run]) -> str:
    """One line on correctness."""
    total = sum(run.requests - run.failed for run in runs)
    wrong, moved = sum(run.wrong for run in runs), sum(run.moved_rows for run in runs)
    difference = max(run.max_abs_diff for run in runs)
    verdict = "every one is what the whole model says" if not wrong else f"{wrong} DIFFER from the whole model's"
    return (
        f"answers: {total}, of which {moved} were parked or merged on their way; {verdict} "
        f"(largest difference of a probability: {difference:.1e})"
    )


def plot(runs: Sequence[Run], setting: Setting, path: Path) -> None:
    """Latency per model and goodput over load, one line per policy. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.4), constrained_layout=True)
    styles = dict(
        zip(
            (title for title, _, _ in POLICIES),
            (("#888888", "s"), ("#d08000", "^"), ("#b04040", "v"), ("#509050", "D"), ("#1060b0", "o")),
            strict=True,
        )
    )
    panels: list[tuple[str, str, Any]] = [
        (f"{model}: 99th percentile latency [ms]", model, lambda run, model=model: run.per_model[model]["p99_ms"])
        for model in MODELS
    ]
    panels.append(("answers within their target [1/s]", "", lambda run: run.goodput_rps))
    for axis, (label, model, value) in zip(axes, panels, strict=True):
        for title, (colour, marker) in styles.items():
            points = [(run.load, value(run)) for run in runs if run.title == title]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, label=title)
        if model:
            axis.axhline(setting.sla_s[model] * 1e3, color="black", linestyle=":", label="target")
            axis.set_yscale("log")
        else:
            loads = sorted({(run.load, run.rate_rps) for run in runs})
            axis.plot(*zip(*loads, strict=True), color="black", linestyle=":", label="offered")
            axis.set_ylim(bottom=0)
        axis.set_xlabel("load: offered rate / capacity")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle("Two trained models on one machine: text direction and recognition, Poisson arrivals")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def show(runs: Sequence[Run], setting: Setting, said: Sequence[str], files: dict[str, str]) -> None:
    """Everything on stdout: what was served, the table, the verdicts, the files."""
    alone = ", ".join(f"{model} {setting.alone_ms[model]:.1f} ms alone" for model in MODELS)
    target = ", ".join(f"{model} {setting.sla_s[model] * 1e3:.0f} ms" for model in MODELS)
    nodes = ", ".join(f"{model} in {counted(len(setting.served[model].graph), 'node')}" for model in MODELS)
    print(f"PP-OCR's direction model and recogniser, requests in equal parts: {nodes}; {alone}; targets: {target}.")
    lines_read = dict(example for run in runs for example in run.examples)
    for text, read in list(lines_read.items())[:3]:
        print(f"  drawn {text!r}, read {read!r}")
    title = f"Latencies in ms; load 1.00 is {setting.capacity_rps:.1f} requests/s. One seed; policies take turns."
    table(runs, title)
    for line in said:
        print(line)
    for name, path in files.items():
        print(f"{name}: {path}" + (" (open it in ui.perfetto.dev)" if name == "trace" else ""))
