"""Latency tables of the real models on this machine, as data for simulations: profiles/cpu-2-cores/.

Owns: which models are measured, how long, and where the tables go.
Must not know: how a model is measured (`lazybatch.profile`).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench.common import ROOT, Report, parser, progress, progress_end, run_script
from bench.models import LARGE, NAMES, subject
from lazybatch.config import whole
from lazybatch.errors import InvalidInput
from lazybatch.profiler import Progress
from lazybatch.profiles import usable_cores

MODELS = ("ppocr-cls", "ppocr-rec", LARGE, "mobilenetv2", "resnet50", "bert-base")
EPILOG = f"""\
models     {", ".join(MODELS)} (all of these; {", ".join(NAMES)} can be named)
written    DIR/MODEL.json, one table each, by default below profiles/cpu-N-cores/ for a machine of N cores

Run it on a machine that does nothing else: times are medians, and a neighbour shifts them all. Each size of batch gets
at least three passes after its warm-up, which for large models takes longer than --seconds.

examples
  python bench/profile_cpu.py
  python bench/profile_cpu.py ppocr-cls ppocr-rec --seconds 5 -o out/tables

status: 0 written, 2 bad input
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("Latency tables of the real models on this machine.", EPILOG)
    made.add_argument("models", nargs="*", metavar="MODEL", help="names or ONNX files (all listed below)")
    made.add_argument("--seconds", type=float, metavar="S", help="of measuring per model (40)")
    made.add_argument("--max-batch-size", type=int, default=16, metavar="N", help="largest batch (16)")
    folder = ROOT / "profiles" / f"cpu-{usable_cores()}-cores"
    made.add_argument("-o", "--output", type=Path, default=folder, metavar="DIR", help="folder of the tables")
    return made


def table_of(name: str, rows_max: int, seconds: float) -> lb.LatencyTable:
    """Load, cut and measure one model."""
    target = subject(name)
    progress(f"{name}: loading")
    model = target.load()
    sizes = sorted({size for size in (1, 2, 4, 8, 16, 32, 64) if size < rows_max} | {rows_max})

    def note(done: Progress) -> None:
        progress(f"{name}: {done.share:4.0%} measured")

    made = lb.profile(
        model,
        sizes,
        budget_s=seconds,
        inputs=target.rows(8),
        progress=note,
        command=f"python bench/profile_cpu.py {name}",
    )
    progress_end()
    machine = dict(made.provenance["machine"])  # type: ignore[call-overload]
    machine.pop("release", None)  # the kernel's build decides nothing, and comparing tables does not look at it
    return replace(made, provenance={**made.provenance, "machine": machine})


def main(chosen: argparse.Namespace) -> int:
    """Measure and write every model asked for."""
    whole("--max-batch-size", chosen.max_batch_size, 1, 4096)
    seconds = chosen.seconds if chosen.seconds is not None else 3.0 if chosen.quick else 40.0
    if not 0 < seconds < 1e6:
        raise InvalidInput(f"--seconds must be positive, got {seconds}")
    names = chosen.models or (MODELS[:2] if chosen.quick else MODELS)
    targets = [subject(name) for name in names]  # unknown names are refused before anything is measured
    report = Report("bench/profile_cpu.py", settings=vars(chosen))
    chosen.output.mkdir(parents=True, exist_ok=True)
    print(f"{'model':16}{'nodes':>6}{'S(1) ms':>10}{'S(max) ms':>11}{'gain':>7}{'longest node ms':>17}{'took s':>8}")
    for name, target in zip(names, targets, strict=True):
        start_s = time.perf_counter()
        made = table_of(name, chosen.max_batch_size, seconds)
        made.save(chosen.output / f"{target.name}.json")
        largest = made.batch_sizes[-1]
        row = {
            "model": target.name,
            "nodes": len(made.nodes),
            "alone_ms": made.whole_ns(1) / 1e6,
            "largest": largest,
            "largest_ms": made.whole_ns(largest) / 1e6,
            "gain": largest * made.whole_ns(1) / made.whole_ns(largest),
            "longest_node_ms": max(node[0] for node in made.median_ns) / 1e6,
            "took_s": time.perf_counter() - start_s,
        }
        report.rows.append(row)
        print(
            f"{row['model']:16}{row['nodes']:>6}{row['alone_ms']:>10.2f}{row['largest_ms']:>11.1f}{row['gain']:>7.2f}"
            f"{row['longest_node_ms']:>17.2f}{row['took_s']:>8.1f}"
        )
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
