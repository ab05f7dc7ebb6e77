"""What live runs of models with loops say: ratios seed by seed, against what is wanted, as figures and as a page.

Owns: what is wanted, how runs are compared, and the page made of the files that `loops_live` writes.
Must not know: how runs are made.

Ratios are taken between runs of one seed, which follow one another; what is judged is their median (`paired`). Means
and 99th percentiles of a policy are the median seed's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, run_script
from bench.paired import ONE_PACE, SURE, Middle, SideBySide, middle, simulated_over_live
from lazybatch.errors import InvalidInput
from lazybatch.metrics import latency_summary

GRAPH, CONTINUOUS, OURS = "graph:0", "continuous", "lookahead"
FASTER = {0.5: 2.0, 0.9: 4.0}
"""How many times lower than whole batches' the mean must be, by load."""
NEAR_CAPACITY, FASTER_THAN_CONTINUOUS = 0.95, 1.5
SUSTAINED_MEET = 0.99
NOISE = 0.05
"""By so much a live ratio may miss 1 and still be called equal."""
WITHIN = 0.15

Rows = Sequence[Mapping[str, Any]]
Load = tuple[str, float]
"""Of which policy's capacity, and the share of it."""


@dataclass(frozen=True, slots=True)
class Cell(SideBySide):
    """The runs of one model at one load."""

    load: Load

    @property
    def name(self) -> str:
        """For figures and tables."""
        return f"{self.load[1]:g} of {self.load[0]}"

    def off(self, policy: str, kind: str) -> Middle:
        """What was "predicted" before the run, or "simulated" at its pace, over what the mean was."""
        if kind == "simulated":
            return middle([simulated_over_live(row) for row in self.runs[policy]])
        return middle([row["predicted_mean_ms"] / row["mean_ms"] for row in self.runs[policy]])


def cells(rows: Rows) -> Iterator[Cell]:
    """All loads, in the order in which they were run."""
    runs = [_summed(row) for row in rows if row["what"] == "run"]
    for load in dict.fromkeys((row["load_of"], row["load"]) for row in runs):
        here = sorted((row for row in runs if (row["load_of"], row["load"]) == load), key=lambda row: row["seed"])
        policies = sorted({row["policy"] for row in here})
        yield Cell({policy: [row for row in here if row["policy"] == policy] for policy in policies}, load)


def _summed(row: Mapping[str, Any]) -> dict[str, Any]:
    summary = latency_summary([round(ms * 1e6) for ms in row["latencies_ms"]]).as_ms()
    return {**row, "mean_ms": summary["mean_ms"], "p99_ms": summary["p99_ms"]}


def p99_ms(rows: Rows, policy: str, load: Load) -> float:
    """The 99th percentile of a policy at a load, of all seeds together."""
    mine = [
        row for row in rows if row["what"] == "run" and (row["policy"], row["load_of"], row["load"]) == (policy, *load)
    ]
    return latency_summary([round(ms * 1e6) for row in mine for ms in row["latencies_ms"]]).as_ms()["p99_ms"] or 0.0


def judge(report: Report) -> None:
    """Record the figures."""
    for cell in cells(report.rows):
        for policy in cell.runs:
            for kind in ("predicted", "simulated"):
                off = abs(cell.off(policy, kind).median - 1)
                report.at_most(f"{kind}_mean_off/{policy}/{cell.name}", off, WITHIN)
        _ratios(report, cell)
    for row in report.rows:
        if row["what"] == "sustained":
            report.at_least("met_at_1.5_times_the_rate", statistics.median(row["met"]), SUSTAINED_MEET)
    failed = sum(row["failed"] for row in report.rows if row["what"] == "run")
    report.figure("failed_calls", failed, "0", failed == 0)


def _ratios(report: Report, cell: Cell) -> None:
    if OURS not in cell.runs:
        return
    load_of, load = cell.load
    if GRAPH in cell.runs and load_of == "graph":
        if load in FASTER:
            _gain(report, cell, GRAPH, "mean_graph_over_lookahead", FASTER[load])
        report.at_most(f"p99_over_graph/{cell.name}", cell.ratio(OURS, GRAPH, "p99_ms").median, 1 + NOISE)
    if CONTINUOUS in cell.runs:
        for kind, found in (("", cell.ratio(OURS, CONTINUOUS)), (ONE_PACE, cell.at_one_pace(OURS, CONTINUOUS))):
            if found is not None:
                report.at_most(f"mean_over_continuous{kind}/{cell.name}", found.median, 1 + NOISE)
        report.at_most(f"p99_over_continuous/{cell.name}", cell.ratio(OURS, CONTINUOUS, "p99_ms").median, 1 + NOISE)
        if cell.load == (CONTINUOUS, NEAR_CAPACITY):
            _gain(report, cell, CONTINUOUS, "mean_continuous_over_lookahead", FASTER_THAN_CONTINUOUS)


def _gain(report: Report, cell: Cell, other: str, name: str, wanted: float) -> None:
    """Live, and at one pace."""
    report.at_least(f"{name}/{cell.name}", cell.ratio(other, OURS).median, wanted)
    paced = cell.at_one_pace(other, OURS)
    if paced is not None:
        report.at_least(f"{name}{ONE_PACE}/{cell.name}", paced.median, wanted)


HEADS = (
    "load", "policy", "pace", "mean ms", "p99 ms", "in time", "rows", "it over lookahead: mean", "p99",
    "mean, one pace", "predicted / live", "simulated / live",
)  # fmt: skip


def lines(rows: Rows) -> Iterator[tuple[str, ...]]:
    """What was measured, one line per load and policy, as texts under `HEADS`."""
    for cell in cells(rows):
        for place, policy in enumerate(cell.runs):
            over = [""] * 3
            if policy != OURS and OURS in cell.runs:
                over = [cell.ratio(policy, OURS, measure).text() for measure in ("mean_ms", "p99_ms")]
                paced = cell.at_one_pace(policy, OURS)
                over.append("" if paced is None else paced.text())
            yield (
                "" if place else cell.name,
                policy,
                f"{cell.median(policy, 'pace'):.2f}",
                f"{cell.median(policy, 'mean_ms'):,.4g}",
                f"{cell.median(policy, 'p99_ms'):,.4g}",
                f"{100 * statistics.fmean(row['sla_met'] for row in cell.runs[policy]):.3g} %",
                f"{cell.median(policy, 'mean_rows'):.1f}",
                *over,
                f"{cell.off(policy, 'predicted').median:.2f}",
                f"{cell.off(policy, 'simulated').median:.2f}",
            )


def table(rows: Rows) -> list[str]:
    """For terminals."""
    shown = [f"capacity of {row['policy']}: {row['rps']:.3g} rows/s" for row in rows if row["what"] == "capacity"]
    texts = [HEADS, *lines(rows)]
    widths = [max(len(line[place]) for line in texts) for place in range(len(HEADS))]
    return shown + ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in texts]


def section(document: Mapping[str, Any]) -> list[str]:
    """A model's part of the page."""
    rows, about = document["rows"], document["provenance"]
    serve = {row["policy"]: row["rps"] for row in rows if row["what"] == "capacity"}
    seeds = len({row["seed"] for row in rows if row["what"] == "run"})
    made = [f"## {_name(document)}", "", f"`{about['command']}`, {about['date'][:10]}, {seeds} seeds. "]
    if {GRAPH, CONTINUOUS} <= set(serve):
        made[-1] += f"Whole batches serve {serve[GRAPH]:.3g} rows/s, joining at every step {serve[CONTINUOUS]:.3g}."
    made += ["", f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    made += [f"| {' | '.join(f'**{text}**' if text == OURS else text for text in line)} |" for line in lines(rows)]
    for row in rows:
        if row["what"] == "sustained":
            met = ", ".join(f"{100 * share:.3g} %" for share in row["met"])
            made += [
                "",
                f"At 1.5 times the largest rate whole batches were run at: {met} of the rows (by seed) were within ",
            ]
            made[-1] += f"{row['sla_ms']:,.4g} ms, the time that 99 % of theirs took there."
    return [*made, ""]


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """All models, as Markdown."""
    about = documents[0]["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    made = [
        "# Models with loops, live",
        "",
        f"Made by `bench/loops_live.py`: {about['machine']['cpu']}, {about['machine']['cores']} cores; {versions}.",
        "Open-loop Poisson arrivals, policies in turns on the same arrivals and rows; the first tenth of each run is",
        "left out. Loads: shares of what whole batches serve (of graph) and of what joining at every step serves (of",
        "continuous), at the pace of the machine a moment before. Pace: what nodes took, over what the first profile",
        "said. Means and 99th percentiles: the median seed's. Ratios: medians of the seeds', and where the true one is",
        f"with {100 * SURE:.0f} %. Predicted: the mean simulated with the profile made before each seed; simulated:",
        "with nodes as fast as they were in that very run. One pace: the ratio of the means, less what the machine's",
        "change of pace between the two runs did to it, as simulating both policies at both paces tells.",
        "",
        *(line for document in documents for line in section(document)),
        "## What was wanted",
        "",
        "| figure | wanted | " + " | ".join(_name(document) for document in documents) + " |",
        "|---|---" + "|---" * len(documents) + "|",
    ]
    names = dict.fromkeys(name for document in documents for name in document["figures"])
    for name in names:
        found = [document["figures"].get(name) for document in documents]
        target = next(entry["target"] for entry in found if entry is not None)
        made.append(f"| {name} | {target} | " + " | ".join(map(_verdict, found)) + " |")
    return "\n".join(made) + "\n"


def _name(document: Mapping[str, Any]) -> str:
    return str(next(row["model"] for row in document["rows"] if row["what"] == "run"))


def _verdict(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["value"] is None:
        return ""
    text = f"{entry['value']:.3g}"
    return text if entry["holds"] else f"**{text}, missed**"


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="The page about models with loops, live, from what loops_live.py wrote.")
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what loops_live.py --json wrote")
    return made


def main(chosen: argparse.Namespace) -> int:
    """Print the page. Raises `InvalidInput` for files that are no such results."""
    documents = []
    for path in chosen.files:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if not any(row["what"] == "run" for row in document["rows"]):
                raise InvalidInput(f"{path}: holds no runs")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path}: not written by loops_live.py: {error}") from error
        if not document["figures"]:  # it was stopped between two seeds
            report = Report("bench/loops_live.py", rows=document["rows"])
            judge(report)
            document["figures"] = report.figures
        documents.append(document)
    print(page(documents), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
