"""What node-level scheduling costs: chain against whole model, decisions, the live gap, memory.

Owns: which measurements make up the report, and the figures drawn from them.
Must not know: how any of them is made (`bench.measure_*`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Report, parser, progress, run_script
from bench.measure_chain import measure_chain
from bench.measure_core import POLICIES, measure_decisions, measure_policy, measure_simulator
from bench.measure_live import measure_gaps
from bench.measure_loop import measure_loop
from bench.measure_memory import measure_memory
from bench.models import subject
from lazybatch.errors import InvalidInput

CHAIN_MODELS = ("resnet50", "mobilenetv2", "bert-base", "ppocr-det", "ppocr-rec")
QUICK_MODELS = ("ppocr-rec", "ppocr-cls")
PARTS = ("core", "chain", "torch", "loop", "live", "steps", "memory")
DISPATCH_LIMIT_US = {"lookahead": 60.0}
SIMULATED_LEAST = {"lookahead": 25_000}

EPILOG = """\
parts
  core    scheduler microseconds per dispatch (every policy; one model and four), the default policy's decisions;
          simulated dispatches/s
  chain   one batch node by node against the whole optimised model, interleaved; are the answers bit-identical?
  torch   the same for torch modules of the zoo, against the module itself run eagerly (needs torch)
  loop    a decoder step through a program against a loop over the same model written by hand; are the answers the same?
  live    time between the end of one node and the start of the next while clients keep the engine busy; what a
          decision of the default policy takes there
  steps   what an iteration of a loop costs with 64 rows, outside of its model, while rows come and go (needs torch)
  memory  what the process grows by against what the executor planned, in a fresh process

examples
  python bench/overhead.py --quick                          everything on the small trained models, under a minute
  python bench/overhead.py --json out/bench/overhead.json   the full report; exports the zoo first (needs torch)
  python bench/overhead.py --parts chain --models resnet50 my.onnx

status: 0 every figure holds, 1 one does not, 2 bad input. Run it on an idle machine; it says which one it was.
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__.split("\n")[0] if __doc__ else "", EPILOG)
    made.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default all)")
    made.add_argument("--models", nargs="+", metavar="MODEL", help="names or ONNX files for chain and memory")
    made.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8], metavar="N", help="for chain (default 1 8)")
    made.add_argument("--seconds", type=float, metavar="S", help="per model and batch size of chain (default 12)")
    return made


def core_part(report: Report, quick: bool) -> None:
    """Decisions and simulator."""
    progress("core: decisions")
    decisions = measure_decisions(1_000 if quick else 20_000)
    report.rows += decisions
    for policy in POLICIES:
        worst = max(row["median_us"] for row in decisions if row["policy"] == policy)
        report.at_most(f"decision_median_us/{policy}", worst, DISPATCH_LIMIT_US.get(policy, 15.0), " us")
    asked = measure_policy(1_000 if quick else 20_000)
    report.rows += asked
    report.at_most("lookahead_fresh_median_us", max(row["fresh_median_us"] for row in asked), 60.0, " us")
    progress("core: simulator")
    simulated = measure_simulator(2_000 if quick else 20_000)
    report.rows += simulated
    for row in simulated:
        limit = SIMULATED_LEAST.get(row["policy"], 100_000)
        report.at_least(f"simulated_dispatches_per_s/{row['policy']}", row["dispatches_per_s"], limit)


def chain_part(report: Report, models: list[str], batch_sizes: tuple[int, ...], seconds: float) -> None:
    """Chain over whole, and bit-identity, per model and batch size."""
    for name in models:
        progress(f"chain: {name}")
        rows = measure_chain(subject(name), batch_sizes, seconds)
        report.rows += rows
        for row in rows:
            report.at_most(f"chain_over_whole/{name}/batch{row['batch']}", row["chain_over_whole"], 1.05)
            report.figure(
                f"bit_identical/{name}/batch{row['batch']}", row["bit_identical"], "True", row["bit_identical"]
            )


def torch_part(report: Report, quick: bool, batch_sizes: tuple[int, ...], seconds: float) -> None:
    """Chain over whole, and bit-identity, of torch modules."""
    try:
        from bench import measure_torch
    except ImportError as error:
        raise InvalidInput(f"the part 'torch' needs torch: {error}") from error
    for name in measure_torch.QUICK_MODELS if quick else measure_torch.MODELS:
        progress(f"torch: {name}")
        rows = measure_torch.measure_torch(name, batch_sizes, seconds)
        report.rows += rows
        for row in rows:
            label = f"{name}/batch{row['batch']}"
            report.at_most(f"torch_chain_over_whole/{label}", row["chain_over_whole"], 1.02)
            report.figure(f"torch_bit_identical/{label}", row["bit_identical"], "True", row["bit_identical"])


def loop_part(report: Report, seconds: float) -> None:
    """The steps of a loop through a program against those by hand."""
    progress("loop: against one by hand")
    rows = measure_loop((1, 8, 64), seconds)
    report.rows += rows
    for row in rows:
        label = f"batch{row['batch']}"
        report.at_most(f"program_over_hand/{label}", row["program_over_hand"], 1.03)
        report.figure(f"loop_identical/{label}", row["identical"], "True", row["identical"])


def live_part(report: Report, quick: bool) -> None:
    """The gap between nodes of a model of several nodes, and, as a harder case, between batches of a one-node model."""
    for name in ("ppocr-rec", "ppocr-cls"):
        target = subject(name)
        for policy in ("graph", "lazy", "lookahead"):
            progress(f"live: {name}, {policy}")
            calls = 2 if quick else 15 if name == "ppocr-rec" else 150
            row = measure_gaps(target, policy, clients=16, calls=calls)
            report.rows.append(row)
            if policy == "lookahead":
                report.at_most(f"live_decision_median_us/{name}/{policy}", row["decision_median_us"], 60.0, " us")
            else:
                report.at_most(f"live_gap_median_us/{name}/{policy}", row["median_us"], 150.0, " us")


def steps_part(report: Report, quick: bool) -> None:
    """Iterations of loops in full sub-batches: whole batches, where nobody comes or goes, and joining at every step."""
    try:
        from bench import measure_steps
        from bench.programs import looped
    except ImportError as error:
        raise InvalidInput(f"the part 'steps' needs torch: {error}") from error
    for policy in measure_steps.POLICIES:
        progress(f"steps: {measure_steps.MODEL}, {policy}")
        row = measure_steps.measure_steps(
            looped(measure_steps.MODEL), policy, rows_max=64, calls=256 if quick else 2048
        )
        report.rows.append(row)
        report.at_most(f"step_overhead_median_us/{row['model']}/{policy}", row["median_us"], 150.0, " us")


def memory_part(report: Report, models: list[str]) -> None:
    """Planned against real memory."""
    for name in models:
        progress(f"memory: {name}")
        row = measure_memory(name)
        report.rows.append(row)
        off = abs(row["grown_over_planned"] - 1.0)
        report.figure(f"memory_off_plan/{name}", off, "<= 0.2 of the plan", off <= 0.2)


def main(chosen: argparse.Namespace) -> int:
    """Measure the chosen parts and report."""
    quick = chosen.quick
    models = chosen.models or list(QUICK_MODELS if quick else CHAIN_MODELS)
    seconds = chosen.seconds if chosen.seconds is not None else (1.5 if quick else 12.0)
    report = Report(
        "bench/overhead.py", settings={"quick": quick, "parts": chosen.parts, "models": models, "seconds": seconds}
    )
    if "core" in chosen.parts:
        core_part(report, quick)
    if "chain" in chosen.parts:
        chain_part(report, models, tuple(chosen.batch_sizes), seconds)
    if "torch" in chosen.parts:
        torch_part(report, quick, tuple(chosen.batch_sizes), seconds)
    if "loop" in chosen.parts:
        loop_part(report, seconds)
    if "live" in chosen.parts:
        live_part(report, quick)
    if "steps" in chosen.parts:
        steps_part(report, quick)
    if "memory" in chosen.parts:
        memory_part(report, models)
    progress("")
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
