"""The live sweep over all models there are: the default policy beside the alternatives, on this machine.

Owns: which models, the ratios between policies, the page and the picture that come of them.
Must not know: how one model is swept (`sla_sweep`).

A cell is a model, a load and an SLA target. All policies serve the same arrivals in turns, seed by seed. Ratios are
taken seed by seed, between runs that follow one another; what is judged is their median (`paired`). A load is a share
of what the machine can serve at the pace it had a moment ago, so that one that has become slower is not overloaded.
Models without loops are simulated as well, every policy at the pace that the machine had in its own run and in the
others': so it is known what a change of pace between two runs did to their ratio, and how near the simulator comes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import sla_sweep, sweep_options, sweep_runs
from bench.common import Report, fill_in, make_folder, parser, progress, progress_bar, progress_end, run_script
from bench.paired import AT_PACE, ONE_PACE, SURE, Middle, SideBySide, in_turns, simulated_over_live
from bench.sweep_runs import Row
from bench.variants import variants
from lazybatch.config import whole
from lazybatch.errors import InvalidInput

STATIC = ("resnet50", "vgg16", "mobilenetv2", "bert-base", "minilm", "ppocr-det", "ppocr-rec", "ppocr-cls")
LOOPS = ("gnmt-short", "transformer-short", "las-short", "silero-vad", "g2p")
QUICK = ("ppocr-cls", "g2p")
OURS = "lookahead"
POLICIES = ("serial", "graph:0", OURS)
LOOP_POLICIES = ("graph:0", "continuous", OURS)
NOISE = 0.05
"""By so much a live ratio may miss 1 and still be called equal."""
REQUESTS_LEAST = 120
"""Of a run, where the model is so slow that --seconds hold fewer. A run begins with nothing to do: of 40 requests most
come before a queue has grown, so that near saturation serving one by one looks as good as it is not."""

EPILOG = f"""\
models     {", ".join((*STATIC, *LOOPS))},
           and whatever bench/sla_sweep.py --live takes
loads      shares of what the best batch size can serve by the profile that is made first; of models with loops, of what
           whole batches can
targets    multiples of S(1), the time of one mean row alone

examples
  python bench/zoo_sweep.py --quick
  python bench/zoo_sweep.py --json out/bench/zoo.json -o out/bench/zoo
  python bench/zoo_sweep.py --models resnet50 bert-base --seconds 10 --seeds 5

Written to DIR: zoo.md and zoo.png.
status: 0 all targets are met, 1 one is not, 2 bad input
"""


@dataclass(frozen=True, slots=True)
class Cell(SideBySide):
    """The runs of one model at one load and target."""

    model: str
    load: float
    sla_ms: float

    @property
    def rate_rps(self) -> float:
        """The median seed's."""
        return float(statistics.median(row["rate_rps"] for rows in self.runs.values() for row in rows))

    @property
    def others(self) -> list[str]:
        """All but ours."""
        return [title for title in self.runs if title != OURS]

    def met(self, title: str) -> float:
        """The share of requests in time, of all seeds."""
        return float(sum(row["met"] for row in self.runs[title]) / sum(row["judged"] for row in self.runs[title]))

    def over(self, other: str, measure: str = "mean_ms") -> Middle:
        """Ours over another's: the median of the seeds."""
        return self.ratio(OURS, other, measure)

    def simulated(self, title: str) -> float | None:
        """A policy's mean simulated at its pace over the real one, the median of the seeds; None where it was not."""
        if any(AT_PACE not in row for row in self.runs[title]):
            return None
        return statistics.median(map(simulated_over_live, self.runs[title]))

    def best_other(self) -> str:
        """The one that ours does worst against."""
        return max(self.others, key=self.over)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser((__doc__ or "").split("\n")[0], EPILOG)
    made.add_argument("--models", nargs="+", metavar="M", help="(all named below)")
    made.add_argument("--load", nargs="+", type=float, default=[0.5, 0.9], metavar="L", help="(0.5 0.9)")
    made.add_argument("--sla-x", nargs="+", type=float, default=[3.0, 10.0], metavar="X", help="(3 10)")
    made.add_argument("--seconds", type=float, metavar="S", help="length of a run (2)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each (8)")
    made.add_argument("-o", "--output", type=Path, default=Path("out/bench/zoo"), metavar="DIR", help="(%(default)s)")
    made.add_argument("--no-plots", action="store_true", help="needs no matplotlib then")
    return made


def fill(chosen: argparse.Namespace) -> None:
    """Fill in defaults and refuse what cannot be. Raises `InvalidInput`."""
    fill_in(chosen, ("models", [*STATIC, *LOOPS], list(QUICK)), ("seconds", 2.0, 1.0), ("seeds", 8, 1))
    whole("--seeds", chosen.seeds, 1, 1000)
    for name in ("load", "sla_x", "seconds"):
        values = getattr(chosen, name)
        for value in values if isinstance(values, list) else [values]:
            if not 0 < value < 1e6:
                raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {value}")


def swept(name: str, chosen: argparse.Namespace) -> list[Row]:
    """The rows of one model. Raises `InvalidInput` for a model that is none."""
    words = ["--live", name, "--sla-x", *chosen.sla_x, "--load", *chosen.load, *(["--quick"] if chosen.quick else [])]
    mine = sweep_options.options().parse_args(list(map(str, words)))
    sweep_options.fill(mine)
    sweep_options.check(mine)
    setting, model, inputs = sla_sweep.prepare(mine)
    compared = variants(POLICIES if setting.loops is None else LOOP_POLICIES)
    told_ms = sweep_options.targets(mine, name, setting.alone_ms, setting.least_ms)
    least = 1 if chosen.quick else REQUESTS_LEAST
    rows: list[Row] = []
    pace, rounds = 1.0, [(seed, load) for seed in range(1, chosen.seeds + 1) for load in chosen.load]
    for number, (seed, load) in enumerate(rounds):
        rate_rps = load * setting.capacity_rps / pace
        runs = sweep_runs.beside(compared, rate_rps, max(least, round(rate_rps * chosen.seconds)), seed, told_ms)
        found = []
        for place, run in enumerate(in_turns(runs, seed)):
            text = f"{name}: {run.variant.title} at {load:g}, seed {seed}"
            progress_bar(number * len(runs) + place, len(rounds) * len(runs), text)
            found.append((run, *sweep_runs.seen_live(setting, model, inputs, run)))
        for run, made, _, own in found if setting.loops is None else ():
            for row in made:
                row[AT_PACE] = {
                    other.variant.title: sweep_runs.mean_ms_at_pace(setting, run, outcome, seen.under(own))
                    for other, _, outcome, seen in found
                    if row["sla_ms"] in other.targets_ms
                }
        rows += [row | {"model": name, "load": load} for _, made, _, _ in found for row in made]
        pace = statistics.median(made[0]["pace"] for _, made, _, _ in found)
    progress_end()
    return rows


def cells(rows: Sequence[Row]) -> Iterator[Cell]:
    """One model's rows, side by side. Raises `InvalidInput` where a run answered nothing."""
    for row in rows:
        if row["mean_ms"] is None:
            raise InvalidInput(
                f"{row['model']}: {row['policy']} answered nothing at {row['rate_rps']:.4g}/s; give more --seconds"
            )
    for load, sla_ms in sorted({(row["load"], row["sla_ms"]) for row in rows}):
        here = sorted(
            (row for row in rows if (row["load"], row["sla_ms"]) == (load, sla_ms)), key=lambda row: row["seed"]
        )
        titles = dict.fromkeys(row["policy"] for row in here)
        runs = {title: [row for row in here if row["policy"] == title] for title in titles}
        yield Cell(runs, here[0]["model"], load, sla_ms)


def judge(report: Report, found: Sequence[Cell]) -> None:
    """The default against the best other in each cell."""
    for cell in found:
        name = f"{cell.model}/{cell.load:.2g}/{cell.sla_ms:.4g} ms"
        report.at_most(f"mean_over_best_other/{name}", cell.over(cell.best_other()).median, 1 + NOISE)
        others = [cell.at_one_pace(OURS, title) for title in cell.others]
        if None not in others:
            worst = max(one.median for one in others if one is not None)
            report.at_most(f"mean_over_best_other{ONE_PACE}/{name}", worst, 1 + NOISE)
    failed = sum(row["failed"] + row["policy_failures"] for row in report.rows)
    report.figure("failed_calls_and_policies", failed, "0", failed == 0)


def page(report: Report, found: Sequence[Cell]) -> str:
    """What was found, as Markdown."""
    about = report.provenance()
    seeds = max((row["seed"] for row in report.rows), default=0)
    stand = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        "# All models, live",
        "",
        f"Made by `{about['command']}` on {about['date'][:10]}: {about['machine']['cpu']}, {about['machine']['cores']} "
        f"cores; {stand}.",
        "Open-loop Poisson arrivals, the same for all policies of a seed, which take turns. Latencies: median of the",
        "seeds' means and 99th percentiles. Load: the rate over what the best batch size can serve (of models with",
        "loops: whole batches), at the pace that the machine had a moment before. Pace: what nodes took, over what the",
        f"profile said. Last columns: lookahead's over this policy's, median of {seeds} seeds, and where the true",
        f"one is with {100 * SURE:.0f} %. One pace: the ratio of the means, less what the machine's change of pace",
        "between the two runs did to it, as simulating both policies at both paces tells. Simulated: the mean,",
        "simulated at the pace of its own run, over the real one.",
        "",
        "| Model | Load | Rate 1/s | Target ms | Policy | Pace | Mean ms | p99 ms | In time | Mean, lookahead over it "
        "| p99 | One pace | Simulated |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in found:
        for title in cell.runs:
            over = ["", "", ""]
            if title != OURS:
                paced = cell.at_one_pace(OURS, title)
                over = [cell.over(title).text(), cell.over(title, "p99_ms").text(), paced.text() if paced else ""]
            simulated = cell.simulated(title)
            ratios = " | ".join([*over, "" if simulated is None else f"{simulated:.2f}"])
            bold = "**" if title == OURS else ""
            lines.append(
                f"| {cell.model} | {cell.load:.2g} | {cell.rate_rps:.4g} | {cell.sla_ms:.3g} | {bold}{title}{bold} | "
                f"{cell.median(title, 'pace'):.2f} | {cell.median(title, 'mean_ms'):.4g} | "
                f"{cell.median(title, 'p99_ms'):.4g} | {100 * cell.met(title):.1f} % | {ratios} |"
            )
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Cell], path: Path) -> None:
    """Ours over the best other in every cell: a dot per cell, a thin one per seed; as measured, and at one pace."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(cell.model for cell in found))
    loads = sorted({round(cell.load, 2) for cell in found})
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 1.4 + 0.42 * len(models)), layout="constrained", sharex=True, sharey=True
    )
    for axis, title, ratios in zip(axes, ("as measured", "at one pace"), (_measured, _paced), strict=True):
        for cell in found:
            rank = loads.index(round(cell.load, 2))
            at = models.index(cell.model) + 0.3 * (rank - (len(loads) - 1) / 2)
            seeds = ratios(cell)
            axis.scatter(seeds, [at] * len(seeds), s=12, color=f"C{rank}", alpha=0.35)
            axis.scatter([statistics.median(seeds)] if seeds else [], [at] if seeds else [], s=42, color=f"C{rank}")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    for rank, load in enumerate(loads):
        axes[0].scatter([], [], s=42, color=f"C{rank}", label=f"load {load:g}")
    axes[0].set_yticks(range(len(models)), models)
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.supxlabel("mean latency, lookahead over the best other policy [ratio; less is better]", fontsize=9)
    figure.suptitle("live; large: median, small: single seeds; both targets", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _measured(cell: Cell) -> list[float]:
    return cell.ratios(OURS, cell.best_other())


def _paced(cell: Cell) -> list[float]:
    """Against the one that ours does worst against so; none of models that were not simulated."""
    each = [cell.ratios_at_one_pace(OURS, title) for title in cell.others]
    return [] if not all(each) else max(each, key=statistics.median)


def main(chosen: argparse.Namespace) -> int:
    """Sweep one model after the other; write after each, so that what was measured is never lost."""
    fill(chosen)
    make_folder(chosen.output)
    report = Report("bench/zoo_sweep.py", settings=vars(chosen))
    found: list[Cell] = []
    for name in chosen.models:
        progress(name)
        rows = swept(name, chosen)
        report.rows += rows
        found += cells(rows)
        report.save(chosen.json)
        (chosen.output / "zoo.md").write_text(page(report, found), encoding="utf-8")
        if not chosen.no_plots:
            draw(found, chosen.output / "zoo.png")
    judge(report, found)
    _show(found)
    sla_sweep.note_lateness(report.rows)
    return report.finish(chosen.json)


def _show(found: Sequence[Cell]) -> None:
    heads = f"{'mean ratio':>22}{'p99 ratio':>22}{'at one pace':>22}{'in time':>9}"
    print(f"{'model':20}{'load':>6}{'SLA ms':>9}  {'best other':12}{heads}")
    for cell in found:
        other = cell.best_other()
        paced = cell.at_one_pace(OURS, other)
        print(
            f"{cell.model:20}{cell.load:>6.2f}{cell.sla_ms:>9.3g}  {other:12}{cell.over(other).text():>22}"
            f"{cell.over(other, 'p99_ms').text():>22}{paced.text() if paced else '':>22}{cell.met(OURS):>9.3f}"
        )


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
