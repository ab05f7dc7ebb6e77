"""Is the default policy ever worse than what could have been configured by hand? Every policy, in virtual time.

Owns: the grid that is run, the report, files.
Must not know: how a spot is run (`dominance_runs`), what follows from it (`dominance_cells`), drawing
(`dominance_plot`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, make_folder, parser, progress_bar, progress_end, run_script
from bench.dominance_cells import MEASURES, add_figures, cells_of, markdown, worst
from bench.dominance_runs import OURS, WARM_UP, Job, Row, Spot, names_for, run_all
from bench.journal import Journal
from bench.laboratory import NODES, SYNTHETIC, chosen, profile
from bench.small_optimum import LIMIT, Small, smalls_of
from lazybatch.errors import InvalidInput

LOADS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
QUICK_LOADS = (0.1, 0.4, 0.8)
ARRIVALS = ("poisson", "bursty")
TARGETS = ("tight", "loose")
JOURNAL = "dominance.partial.jsonl"
EPILOG = """\
Simulated throughout. Load: offered rate over the throughput of the best batch size. SLA targets: tight 2.5 S(1), loose
10 S(1) or twice the largest batch. Bursty: a tenth of the time at four times the mean rate, about 40 requests a burst.
Others: serial, graph batching with windows and with smaller maxima, and every policy of the package.
Written to DIR: dominance.md and a heat map per measure. Until then what is done is kept in dominance.partial.jsonl: a
run that was interrupted goes on where it was, if code and profiles are the same.

examples
  python bench/dominance.py --quick
  python bench/dominance.py --json out/bench/dominance.json
  python bench/dominance.py --profiles gpu npu-128x128/gnmt --loads 0.4 0.8 --arrivals poisson --seeds 2

status: 0 every figure holds, 1 one does not, 2 bad input
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("The default policy against the best of all others, simulated.", EPILOG)
    made.add_argument("-o", "--output", type=Path, default=Path("out/bench"), metavar="DIR", help="(%(default)s)")
    made.add_argument("--profiles", nargs="+", metavar="P", help="names, or folders of profiles/ (all)")
    made.add_argument("--loads", nargs="+", type=float, metavar="L", help=f"({' '.join(map(str, LOADS))})")
    made.add_argument("--arrivals", nargs="+", choices=ARRIVALS, default=list(ARRIVALS), help="(both)")
    made.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="(both)")
    made.add_argument("--policies", nargs="+", metavar="P", help="others to run besides ours (all)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each point (5)")
    made.add_argument("--requests", type=int, metavar="N", help="requests of a run (1500)")
    made.add_argument("--workers", type=int, default=2, metavar="N", help="processes (%(default)s)")
    made.add_argument("--no-misjudging", action="store_true", help="leave out runs with a wrong rate or table")
    made.add_argument("--no-optimum", action="store_true", help="leave out the solved small instances")
    made.add_argument("--no-plots", action="store_true", help="needs no matplotlib then")
    return made


def spots_of(asked: argparse.Namespace) -> list[Spot]:
    """What to run, the longest first. Raises `InvalidInput` for anything unknown or out of range."""
    quick = asked.quick
    names = chosen(asked.profiles or (tuple(SYNTHETIC) if quick else None))
    loads = asked.loads or (QUICK_LOADS if quick else LOADS)
    seeds = asked.seeds if asked.seeds is not None else (1 if quick else 5)
    requests = asked.requests if asked.requests is not None else (400 if quick else 1500)
    for option, value, least in (("seeds", seeds, 1), ("requests", requests, 20), ("workers", asked.workers, 1)):
        if value < least:
            raise InvalidInput(f"--{option} must be at least {least}, got {value}")
    for load in loads:
        if not 0 < load < 1:
            raise InvalidInput(f"--loads must lie between 0 and 1, got {load:g}")
    if asked.policies is not None:
        for policy in asked.policies:
            if not any(policy in names_for(profile(name).rows_max) for name in names):
                raise InvalidInput(f"unknown policy {policy!r}; known are {', '.join(names_for(64))}")
    wanted = None if asked.policies is None else (*asked.policies, OURS)
    return [
        Spot(
            name,
            load,
            arrivals,
            tuple(range(1, seeds + 1)),
            requests,
            tuple(asked.targets),
            wanted,
            misjudging=arrivals == "poisson" and not asked.no_misjudging,
        )
        for load in sorted(loads)
        for name in names
        for arrivals in asked.arrivals
    ]


def notes_of(spots: Sequence[Spot]) -> list[str]:
    """What a reader must know of how this was made."""
    made = [profile(name) for name in dict.fromkeys(spot.profile for spot in spots)]
    notes = [
        f"Seeds per point: {len(spots[0].seeds)}, each {spots[0].requests} requests; the first {WARM_UP:.0%} are "
        "left out. Means: the median over the seeds of the ratio on equal arrivals. 99th percentile and violations: of "
        "all seeds' requests together.",
        "The best other policy is chosen with hindsight, anew in every cell and for every measure.",
        "Policies that never preempt run on a table of one node; they do the same there as on all nodes.",
    ]
    shortened = [
        f"{one.name} ({one.source_nodes} to {len(one.nodes.nodes)})"
        for one in made
        if one.source_nodes != len(one.nodes.nodes)
    ]
    if shortened:
        notes.append(f"Neighbouring nodes were joined to at most {NODES} of similar time: {', '.join(shortened)}.")
    return notes


def collect(jobs: Sequence[Job], workers: int, journal: Journal) -> list[Row]:
    """All rows, in the order of the jobs' profile, then arrivals, load, target; small instances last.

    Jobs that the journal has are not run again.
    """
    rows = {job: found for job in jobs if (found := journal.rows_of(job)) is not None}
    progress_bar(len(rows), len(jobs), "cells")
    for job, found in run_all([job for job in jobs if job not in rows], workers):
        journal.keep(job, found)
        rows[job] = found
        progress_bar(len(rows), len(jobs), "cells")
    progress_end()
    spots = [job for job in jobs if isinstance(job, Spot)]
    order = {name: k for k, name in enumerate(dict.fromkeys(spot.profile for spot in spots))}
    made = [row for spot in spots for row in rows[spot]]
    made.sort(key=lambda row: (order[row["profile"]], row["arrivals"] != "poisson", row["load"], row["target"]))
    return made + [row for job in jobs if isinstance(job, Small) for row in rows[job]]


def main(asked: argparse.Namespace) -> int:
    """Run the grid and report."""
    make_folder(asked.output)
    spots = spots_of(asked)
    notes = notes_of(spots)
    settings = {
        "quick": asked.quick,
        "profiles": list(dict.fromkeys(spot.profile for spot in spots)),
        "loads": list(dict.fromkeys(spot.load for spot in spots)),
        "seeds": spots[0].seeds,
        "requests": spots[0].requests,
        "notes": notes,
        "simulated": True,
    }
    report = Report("bench/dominance.py", settings=settings)
    smalls = [] if asked.no_optimum else smalls_of(*((2_000, 1) if asked.quick else (20_000, 3)))
    journal = Journal(asked.output / JOURNAL)
    if journal.kept:
        print(f"{journal.kept} cells of an interrupted run are taken from {asked.output / JOURNAL}", file=sys.stderr)
    try:
        report.rows = collect([*smalls, *spots], asked.workers, journal)
    finally:
        journal.close()
    small = report.rows[len(report.rows) - len(smalls) :]
    cells = cells_of(report.rows[: len(report.rows) - len(smalls)])
    add_figures(report, cells)
    if small:
        report.at_most("mean_over_node_optimum", max(row["over_optimum"] for row in small), LIMIT)
    text = markdown(cells, str(report.provenance()["command"]), notes)
    (asked.output / "dominance.md").write_text(text)
    print(text)
    for measure, title in MEASURES.items():
        found, where = worst(cells, measure)
        print(f"worst {title}: {found.value:.3f} against {found.best}: {where}")
    if not asked.no_plots:
        from bench.dominance_plot import draw

        draw(cells, asked.output)
    status = report.finish(asked.json)
    journal.remove()
    return status


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
