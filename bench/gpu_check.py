"""One command for a GPU: answers, chain against module, decisions, and latencies under load; JSON and plots.

Owns: which models, in which order, within how much time; figures and plots.
Must not know: how one thing is measured (`gpu_runs`).

    python bench/gpu_check.py -o out/gpu              # at most 8 minutes on a CUDA machine
    python bench/gpu_check.py --device cpu --quick    # the script itself, on small models

Needs Python 3.11 to 3.13, torch 2.6 or later, numpy, onnx and networkx, straight from a checkout; matplotlib for plots.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lazybatch as lb
from bench import gpu_runs
from bench.common import Report, make_folder, parser, progress, run_script
from bench.gpu_runs import Subject
from bench.measure_core import POLICIES, decision_times_ns
from graphs import zoo
from lazybatch.core.lengths import LengthGuess
from lazybatch.errors import InvalidInput

BATCHES = (1, 8, 64)
LOADS = (0.5, 0.9)
QUICK_WAYS = ("serial", "graph 0", "lookahead")
LOOPED = ("gnmt", "transformer")
SEEN, SEEN_SEED = 1_000, 1 << 20
"""Rows of which policies know how often they went round: none of those that are served."""
TOLERANCE = 1e-3
"""Deviation of answers, over their magnitude: float32 on a device that sums in another order, TF32 off."""


class Clock:
    """Time that is left for all sections together."""

    def __init__(self, minutes: float) -> None:
        self._end_s = time.monotonic() + 60 * minutes

    def left_s(self) -> float:
        """Seconds; negative when it is over."""
        return self._end_s - time.monotonic()


def pick_device(asked: str) -> str:
    """The device to run on. Raises `InvalidInput` where there is none such."""
    import torch

    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput("no CUDA device can be used here; --device cpu runs the same script on the CPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return asked


def static(device: str, quick: bool) -> Iterator[Subject]:
    """ResNet-50 and BERT-base; for a quick run a narrow BERT."""
    import torch

    from graphs import bert
    from graphs.build import arguments, build
    from graphs.weights import seed_transformer

    def rows_of(name: str, length: int) -> Any:
        def rows(count: int, seed: int) -> list[dict[str, Any]]:
            whole = zoo.sample(name, count, length=length, seed=seed)
            return [{key: array[k] for key, array in whole.items()} for k in range(count)]

        return rows

    for name in ("bert-base",) if quick else ("resnet50", "bert-base"):
        length = 16 if quick else zoo.LENGTH_DEFAULT
        if quick:
            module: Any = bert.Bert(bert.Size(2, 64, 2, 128))
            seed_transformer(module, 0)
        else:
            module = build(name)
        module = module.to(device)
        given = tuple(one.to(device) for one in arguments(name, 2, length=length))
        model = lb.load(module, example_inputs=given)
        yield Subject(name, model, rows_of(name, length), module, device)
        del model, module
        if device.startswith("cuda"):
            torch.cuda.empty_cache()


def looped(device: str, quick: bool) -> Iterator[Subject]:
    """GNMT and Transformer as programs of torch modules; for a quick run narrow ones."""
    from graphs.programs import torch_program
    from graphs.sizes import FULL, TINY, draw_lengths

    for name in LOOPED[:1] if quick else LOOPED:
        size = (TINY if quick else FULL)[name]
        program = torch_program(name, size=size)
        for stage in program.stages:
            stage.model.to(device)
        model = lb.load(program)
        seen = [target for _, target in draw_lengths(size, SEEN, seed=SEEN_SEED)]
        yield Subject(name, model, _requests(size), None, device, LengthGuess.of(seen))


def _requests(size: Any) -> Any:
    from graphs.sizes import requests

    return lambda count, seed: list(requests(size, count, seed=seed))


def check_answers(report: Report, subject: Subject, quick: bool) -> None:
    """Rows together against rows alone."""
    if subject.loops:
        share = gpu_runs.agreement(subject, 6 if quick else 24)
        report.rows.append({"what": "answers", "model": subject.name, "equal_share": share})
        report.at_least(f"equal_share/{subject.name}", share, 0.95)
        return
    worst, reasons = gpu_runs.deviation(subject), gpu_runs.unrecorded(subject)
    row = {"what": "answers", "model": subject.name, "deviation": worst, "unrecorded": reasons}
    report.rows.append(row)
    report.at_most(f"deviation/{subject.name}", worst, TOLERANCE)


def check_chain(report: Report, subject: Subject, batches: Sequence[int], within_s: float, clock: Clock) -> None:
    """Node by node against the module."""
    for batch in batches:
        if clock.left_s() < 5 * within_s:
            return
        row = gpu_runs.chain_over_whole(subject, batch, within_s)
        report.rows.append({"what": "chain", "model": subject.name, **row})
        best = row.get("recorded_over_whole", row["as_it_is_over_whole"])
        report.at_most(f"chain_over_whole/{subject.name}/{batch}", best, 1.02)


def check_decisions(report: Report, requests: int) -> None:
    """How many decisions a second the scheduler makes, by policy: of the processor, not of the device."""
    for policy in POLICIES:
        times_ns = decision_times_ns(policy, 1, requests)
        each_ns = statistics.median(times_ns)
        report.rows.append({"what": "decisions", "policy": policy, "per_s": 1e9 / each_ns, "median_us": each_ns / 1e3})


def ways(subject: Subject, table: lb.LatencyTable, single_ms: float, rows_max: int) -> dict[str, dict[str, Any]]:
    """Options of a batcher for each policy that is compared."""
    common: dict[str, Any] = {"max_batch_size": rows_max, "lengths": subject.lengths}
    made = {
        "serial": {"policy": "serial", **common},
        "graph 0": {"policy": "graph", **common},
        "graph w": {"policy": "graph", "max_delay": single_ms / 1e3, **common},
        "lookahead": {"policy": "lookahead", "table": table, **common},
    }
    return made | ({"continuous": {"policy": "continuous", **common}} if subject.loops else {})


def sweep(report: Report, subject: Subject, rows_max: int, seconds: float, clock: Clock, quick: bool = False) -> None:
    """Latencies under open-loop load, as shares of what whole batches sustain; policies one after the other."""
    sizes = tuple(size for size in (1, 2, 4, 8, 16, 32, 64) if size <= rows_max)
    table = lb.profile(subject.model, sizes, budget_s=min(20.0, 4 * seconds))
    capacity, single_ms = gpu_runs.capacity_rps(subject, rows_max), gpu_runs.alone_ms(subject)
    report.rows.append(
        {"what": "capacity", "model": subject.name, "graph_rps": capacity, "alone_ms": single_ms, "rows_max": rows_max}
    )
    for load in LOADS[-1:] if quick else LOADS:
        found: dict[str, Mapping[str, float]] = {}
        for name, options in ways(subject, table, single_ms, rows_max).items():
            if quick and name not in QUICK_WAYS:
                continue
            if clock.left_s() < 3 * seconds:
                report.rows.append({"what": "skipped", "model": subject.name, "load": load, "policy": name})
                continue
            progress(f"{subject.name} at {load:g}: {name}")
            found[name] = gpu_runs.offered(subject, load * capacity, seconds, 1, single_ms, options)
            report.rows.append(
                {
                    "what": "load",
                    "model": subject.name,
                    "load": load,
                    "policy": name,
                    "rate_rps": load * capacity,
                    **found[name],
                }
            )
        judge(report, subject, load, found)


def judge(report: Report, subject: Subject, load: float, found: Mapping[str, Mapping[str, float]]) -> None:
    """The default against whole batches."""
    if not {"lookahead", "graph 0"} <= set(found):
        return
    ours, graph = found["lookahead"]["mean_ms"], found["graph 0"]["mean_ms"]
    if subject.loops:
        report.at_least(f"mean_graph_over_lookahead/{subject.name}/{load:g}", graph / ours, 2.0 if load < 0.9 else 4.0)
    else:
        report.at_most(f"mean_lookahead_over_graph/{subject.name}/{load:g}", ours / graph, 1.05)


def draw(report: Report, folder: Path) -> Path | None:
    """Mean latency by load and policy, a panel per model; None without matplotlib, or without runs under load."""
    rows = [row for row in report.rows if row["what"] == "load"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    try:
        import matplotlib
    except ModuleNotFoundError:
        return None
    if not models:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(models), figsize=(4.5 * len(models), 3.6), squeeze=False)
    for panel, model in zip(panels[0], models, strict=True):
        for policy in dict.fromkeys(row["policy"] for row in rows):
            line = [(row["load"], row["mean_ms"]) for row in rows if (row["model"], row["policy"]) == (model, policy)]
            if line:
                panel.plot(*zip(*line, strict=True), marker="o", label=policy)
        panel.set(title=model, xlabel="load over whole batches' capacity", ylabel="mean latency, ms", yscale="log")
        panel.legend()
    figure.tight_layout()
    path = folder / "gpu_check.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def main(chosen: argparse.Namespace) -> int:
    """All sections, as far as time allows."""
    device, clock = pick_device(chosen.device), Clock(chosen.minutes)
    make_folder(chosen.output)
    import torch

    named = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    settings = {"device": device, "named": named, "torch": torch.__version__, "quick": chosen.quick}
    report = Report("bench/gpu_check.py", settings=settings)
    within_s, seconds, rows_max = (0.3, 0.5, 4) if chosen.quick else (3.0, 6.0, 64)
    check_decisions(report, 300 if chosen.quick else 3_000)
    for subject in static(device, chosen.quick):
        progress(subject.name)
        check_answers(report, subject, chosen.quick)
        check_chain(report, subject, BATCHES[:2] if chosen.quick else BATCHES, within_s, clock)
        if chosen.quick or subject.name == "resnet50":
            sweep(report, subject, rows_max, seconds, clock, chosen.quick)
    for subject in looped(device, chosen.quick):
        if clock.left_s() < 30 and not chosen.quick:
            report.rows.append({"what": "skipped", "model": subject.name})
            continue
        progress(subject.name)
        check_answers(report, subject, chosen.quick)
        sweep(report, subject, rows_max, seconds, clock, chosen.quick)
    plot = draw(report, chosen.output)
    for row in report.rows:
        print(
            " ".join(
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
        )
    print(f"plot: {plot or 'none (needs matplotlib)'}")
    return report.finish(chosen.json or chosen.output / "gpu_check.json")


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser("Check and measure this on a GPU, in one command.", "Without a GPU: --device cpu --quick.")
    made.add_argument("--device", default="auto", help="cuda, cuda:1, cpu (default: cuda where there is one)")
    made.add_argument("--minutes", type=float, default=7.5, help="after this nothing more is begun (default 7.5)")
    made.add_argument("-o", "--output", type=Path, default=Path("out/gpu"), help="folder for JSON and plot")
    return made


if __name__ == "__main__":
    sys.exit(run_script(main, options().parse_args()))
