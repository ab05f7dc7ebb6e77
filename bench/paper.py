"""The paper's evaluation in virtual time: every figure and study, with GraphB(0) and the bounds beside it.

Owns: running the studies, writing rows, figures, per-study files and the table "paper said / we get / why".
Must not know: what a study runs (`paper_studies`), what is concluded (`paper_claims`), drawing (`paper_plot`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, make_folder, parser, progress, progress_end, run_script
from bench.paper_cells import NAMES, Cell, Row, run
from bench.paper_claim import Claim
from bench.paper_claims import claims
from bench.paper_results import Results
from bench.paper_studies import STUDIES, Plan
from lazybatch.errors import InvalidInput

WORKERS = 2
EPILOG = """\
Simulated throughout: seven networks on an analytic NPU (python -m graphs.npu), Poisson arrivals, fixed seeds, the first
tenth of the requests excluded from latencies. Written to DIR: one JSON file and one picture per study, and paper.md.

examples
  python bench/paper.py --quick
  python bench/paper.py --json out/bench/paper.json -o out/bench/paper
  python bench/paper.py --studies fig15 colocation --policies graph lazy

status: 0 all targets are met, 1 one is not, 2 bad input
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("The paper's evaluation, simulated.", EPILOG)
    made.add_argument("-o", "--output", type=Path, default=Path("out/bench/paper"), metavar="DIR", help="(%(default)s)")
    made.add_argument("--studies", nargs="+", default=list(STUDIES), metavar="S", help=f"of {', '.join(STUDIES)} (all)")
    made.add_argument("--policies", nargs="+", metavar="P", help=f"of {', '.join(NAMES)} (all)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each point (5)")
    made.add_argument("--requests", type=int, metavar="N", help="requests of a run at low rates (1000)")
    made.add_argument("--no-plots", action="store_true", help="JSON and table only; needs no matplotlib")
    return made


def plan_of(chosen: argparse.Namespace) -> Plan:
    """How much to run. Raises `InvalidInput` for unknown studies or policies."""
    for study in chosen.studies:
        if study not in STUDIES:
            raise InvalidInput(f"unknown study {study!r}; known are {', '.join(STUDIES)}")
    names = tuple(dict.fromkeys(chosen.policies or NAMES))
    for name in names:
        if name not in NAMES:
            raise InvalidInput(f"unknown policy {name!r}; known are {', '.join(NAMES)}")
    if not {"graph", "lazy"} <= set(names):
        raise InvalidInput(f"the policies must include 'graph' and 'lazy', which all others are compared with: {names}")
    for option in ("seeds", "requests"):
        if getattr(chosen, option) is not None and getattr(chosen, option) < 1:
            raise InvalidInput(f"--{option} must be at least 1, got {getattr(chosen, option)}")
    plan = _quick(names) if chosen.quick else Plan(names)
    if chosen.requests is not None:
        plan = replace(plan, requests=chosen.requests, seconds=chosen.requests / 1000)
    return plan if chosen.seeds is None else replace(plan, seeds=tuple(range(1, chosen.seeds + 1)))


def _quick(names: tuple[str, ...]) -> Plan:
    return Plan(
        names,
        rates=(64, 500, 4000),
        loads=(0.2, 0.8),
        windows_ms=(5, 95),
        seeds=(1,),
        requests=120,
        seconds=0.1,
        targets_ms=(20, 60, 100),
        models=("resnet50", "transformer"),
        others=("mobilenet",),
        batches=(16, 64),
        pairs=("18,18", "18,24"),
    )


def run_all(cells: Sequence[Cell]) -> list[Row]:
    """The rows of all cells in their order, on at most two processes."""
    rows: list[Row] = []
    context = multiprocessing.get_context("spawn")
    # Two processes with a linear algebra thread per core each would fight for the cores.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(WORKERS, context) as pool:
        for number, found in enumerate(pool.map(run, cells, chunksize=4), start=1):
            rows += found
            progress(f"{number} of {len(cells)} runs")
    progress_end()
    return rows


def markdown(found: Iterable[Claim], command: str) -> str:
    """The table, as a document."""
    lines = [
        "# The paper's evaluation, simulated",
        "",
        f"Made by `{command}`. All figures are virtual time, on analytic latency tables. A ratio above 1 speaks for "
        "the policy named first.",
        "",
        "| Statement | Paper said | lazybatch | Why they differ |",
        "|---|---|---|---|",
    ]
    lines += [f"| {claim.what} | {claim.paper} | {claim.ours} | {claim.why} |" for claim in found]
    return "\n".join(lines) + "\n"


def main(chosen: argparse.Namespace) -> int:
    """Run the studies chosen, write what was found, and report."""
    make_folder(chosen.output)
    plan = plan_of(chosen)
    cells = [cell for study in chosen.studies for cell in STUDIES[study](plan)]
    settings = {"quick": chosen.quick, "studies": chosen.studies, "policies": plan.policies, "seeds": plan.seeds}
    report = Report("bench/paper.py", settings={**settings, "requests": plan.requests, "simulated": True})
    report.rows = run_all(cells)
    found = claims(Results(report.rows, plan.windowed, plan.policies), report, chosen.studies)
    provenance = report.provenance()
    for study in chosen.studies:
        rows = [row for row in report.rows if row["study"] == study]
        text = json.dumps({"rows": rows, "provenance": provenance}, indent=1)
        (chosen.output / f"{study}.json").write_text(text + "\n")
    table = markdown(found, str(provenance["command"]))
    (chosen.output / "paper.md").write_text(table)
    for claim in found:
        print(f"{claim.what}\n    paper  {claim.paper}\n    we     {claim.ours}")
    if not chosen.no_plots:
        from bench.paper_plot import draw_all

        draw_all(report.rows, chosen.output)
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
