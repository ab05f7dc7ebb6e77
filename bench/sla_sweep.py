"""SLA targets against rates on your own model: who meets what, and the highest rate that each policy sustains.

Owns: the order of the runs, the processes they are spread over, what is shown and written.
Must not know: how one run is made (`sweep_runs`), how rows become advice (`sweep_advice`), drawing (`sweep_plot`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench import sweep_advice, sweep_runs
from bench.common import Report, make_folder, progress, progress_bar, progress_end, run_script
from bench.programs import Looped, served
from bench.sweep_advice import Advice
from bench.sweep_loops import Loops, capacity_rps, commonest, learnt, read_loops
from bench.sweep_options import check, compared, fill, options, rates, targets
from bench.sweep_runs import Row, Run, Setting
from bench.variants import Variant, controls_for, joinable, loop_controls_for
from lazybatch.bounds import graph_capacity_rps
from lazybatch.config import whole

RUNS_MAX = 100_000
SIZES = (1, 2, 4, 8, 16, 32, 64)
ROWS, LOOP_ROWS = 32, 128
"""Different rows that live runs draw from: more where they differ in how often they go round."""

# -- simulated ---------------------------------------------------------------------------------------------------------

_setting: list[Setting] = []


def _begin(setting: Setting) -> None:
    """In each worker process: what all runs share."""
    _setting[:] = [setting]


def _simulate(run: Run) -> list[Row]:
    return sweep_runs.simulated(_setting[0], run)


def _refine(one: Variant, found: Advice, plan: argparse.Namespace) -> tuple[Advice, list[Row]]:
    def probe(rate_rps: float) -> list[Row]:
        tried = [Run(one, rate_rps, seed, plan.requests, (found.sla_ms,), True) for seed in range(1, plan.seeds + 1)]
        return [row for run in tried for row in _simulate(run)]

    return sweep_advice.narrow(found, probe, plan.meet / 100, plan.refine)


def sweep_simulated(
    chosen: argparse.Namespace, setting: Setting, compared: Sequence[Variant], planned: Sequence[Run]
) -> tuple[list[Row], list[Advice]]:
    """All runs in virtual time, then the search between the last rate that holds and the first that fails."""
    # Processes with a linear algebra thread per core each would fight for the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn"), _begin, (setting,)) as pool:
        rows = [row for made in _all([pool.submit(_simulate, run) for run in planned], "runs") for row in made]
        coarse = conclude(rows, compared, chosen.meet)
        narrowed = _all([pool.submit(_refine, one, found, chosen) for one, found in coarse], "searches")
    return rows + [row for _, made in narrowed for row in made], [found for found, _ in narrowed]


def _all(futures: Sequence[Future[Any]], what: str) -> list[Any]:
    """Their results in order; an error ends the rest."""
    try:
        for number, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress_bar(number, len(futures), what)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    progress_end()
    return [future.result() for future in futures]


def conclude(rows: Sequence[Row], compared: Sequence[Variant], meet: float) -> list[tuple[Variant, Advice]]:
    """What the rows say of every policy, for every target. meet: per cent of the requests."""
    return [
        (one, sweep_advice.advice(rows, sla_ms, one.title, meet / 100))
        for sla_ms in sorted({row["sla_ms"] for row in rows})
        for one in compared
    ]


# -- live --------------------------------------------------------------------------------------------------------------


def sweep_live(setting: Setting, model: Any, inputs: Sequence[Any], planned: Sequence[Run]) -> list[Row]:
    """All runs, one after the other, in an order that rotates among the policies."""
    offered_s = sum(run.requests / run.rate_rps for run in planned)
    print(f"{len(planned)} live runs, about {offered_s * 1.1 / 60:.1f} minutes", file=sys.stderr)
    rows: list[Row] = []
    for number, run in enumerate(planned):
        progress_bar(number, len(planned), f"{run.variant.title} at {run.rate_rps:.1f}/s")
        rows += sweep_runs.live(setting, model, inputs, run)
    progress_end()
    return rows


def note_lateness(rows: Sequence[Row]) -> None:
    """Say where the load generator did not keep its own schedule: latencies there are too kind."""
    every = {(row["policy"], row["rate_rps"], row["seed"]) for row in rows}
    late = {(row["policy"], row["rate_rps"], row["seed"]) for row in rows if row["generator_late"]}
    if late:
        worst_ms = max(row["submit_lag_p99_ms"] for row in rows)
        print(
            f"note: the load generator itself was late in {len(late)} of {len(every)} runs "
            f"(99th percentile up to {worst_ms:.1f} ms); the machine was too busy for its own clients"
        )


# -- the script --------------------------------------------------------------------------------------------------------


def prepare(chosen: argparse.Namespace) -> tuple[Setting, Any, list[Any]]:
    """The table and its limits, and for a live sweep the model and its rows."""
    model, inputs = None, []
    if chosen.live is not None:
        target = served(chosen.live)
        progress(f"{target.name}: loading")
        model = target.load()
        inputs = target.rows(LOOP_ROWS if model.graph.loops else ROWS)
        if isinstance(target, Looped) and chosen.lengths is None and chosen.trips is None:
            chosen.lengths = target.lengths
    if chosen.table is not None:
        table = lb.LatencyTable.load(chosen.table)
    else:
        assert model is not None, "check() wants a table or a model"
        progress(f"{model.name}: profiling")
        most = chosen.max_batch_size or 16
        sizes = sorted({size for size in SIZES if size < most} | {most})
        table = lb.profile(model, sizes, budget_s=3.0 if chosen.quick else 20.0, inputs=commonest(model, inputs))
    rows_max = (chosen.max_batch_size or table.batch_sizes[-1]) if joinable(table) else 1
    waiting = max(chosen.queue_capacity, rows_max)
    if model is not None and model.graph.loops and chosen.lengths is None and chosen.trips is None:
        progress(f"{model.name}: learning how often rows go round")
        loops: Loops | None = learnt(model, inputs)
    else:
        loops = read_loops(table, chosen.lengths, chosen.trips)
    made = Setting(table, rows_max, waiting, 0.0, chosen.arrivals, chosen.late, loops)
    best_rps = graph_capacity_rps(table.dispatched(), rows_max) if loops is None else capacity_rps(made.lane(), loops)
    return replace(made, capacity_rps=best_rps), model, inputs


def main(chosen: argparse.Namespace) -> int:
    """Run the sweep, write what was found, and say what it means."""
    make_folder(chosen.output)
    fill(chosen)
    check(chosen)
    setting, model, inputs = prepare(chosen)
    policies = compared(chosen, loops=setting.loops is not None)
    wanted_ms = targets(chosen, setting.table.model, setting.alone_ms, setting.least_ms)
    planned = list(sweep_runs.runs(policies, rates(chosen, setting.capacity_rps), chosen.seeds, wanted_ms))
    whole("the number of runs", len(planned), 1, RUNS_MAX)
    report = Report("bench/sla_sweep.py", settings={**vars(chosen), "simulated": model is None})
    if model is None:
        progress("solving the control")
        setting = replace(
            setting,
            controls=controls_for(policies, [setting.lane()]),
            loop_controls=loop_controls_for(policies, [setting.lane()]),
        )
        report.rows, found = sweep_simulated(chosen, setting, policies, planned)
    else:
        report.rows = sweep_live(setting, model, inputs, planned)
        found = [one for _, one in conclude(report.rows, policies, chosen.meet)]
    report.extra = {"advice": sweep_advice.as_json(found)}
    _figures(report, live=model is not None)
    _show(setting, policies, found, chosen)
    if model is not None:
        note_lateness(report.rows)
    return _write(report, chosen)


def _figures(report: Report, *, live: bool) -> None:
    replaced = sum(row["policy_failures"] for row in report.rows)
    report.figure("policy_failures", replaced, "0", replaced == 0)
    if live:
        failed = sum(row["failed"] for row in report.rows)
        report.figure("failed_calls", failed, "0", failed == 0)


def _show(setting: Setting, compared: Sequence[Variant], found: Sequence[Advice], chosen: argparse.Namespace) -> None:
    table = setting.table
    kind = "simulated" if chosen.live is None else "live"
    seeds = "one seed" if chosen.seeds == 1 else f"{chosen.seeds} seeds together"
    print(
        f"{kind}: {table.model}, {len(table.nodes)} nodes, one request alone {setting.alone_ms:.3g} ms, capacity "
        f"{setting.capacity_rps:.4g}/s at batches up to {setting.rows_max}, {chosen.arrivals} arrivals\n"
        f"highest rate [1/s] at which {chosen.meet:g} % of the requests meet the target, {seeds}:"
    )
    for line in sweep_advice.table(found, [one.title for one in compared]):
        print(line)
    for line in sweep_advice.sentences(found, compared, chosen.meet / 100):
        print(line)


def _write(report: Report, chosen: argparse.Namespace) -> int:
    path = chosen.json or chosen.output / "sla_sweep.json"
    status = report.finish(path)
    written = [path, path.with_suffix(".csv")]
    sweep_advice.write_csv(report.rows, written[1])
    if not chosen.no_plots:
        from bench.sweep_plot import draw

        written += draw({"rows": report.rows, "provenance": report.provenance()}, path.with_suffix(".png"))
    print("written: " + ", ".join(map(str, written)))
    return status


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
