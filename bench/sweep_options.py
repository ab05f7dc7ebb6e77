"""What a sweep over SLA targets and rates may be told.

Owns: the options of `bench/sla_sweep.py`, its help, its defaults, and what is refused before anything is loaded.
Must not know: how runs are made.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from bench.common import parser
from bench.models import NAMES
from bench.programs import LOOPED
from bench.variants import USUAL, USUAL_LOOPS, Variant, variants
from lazybatch.config import BATCH_SIZE_MAX, QUEUE_CAPACITY_MAX, whole
from lazybatch.errors import InvalidInput

TITLE = "SLA targets against rates on your own model: who meets what, and the highest rate that each policy sustains."
REQUESTS_MAX = 10_000_000
QUICK = ("graph:0", "graph:5", "lazy", "lookahead")
QUICK_LOOPS = ("graph:0", "continuous", "lazy", "lookahead")
"""What --quick --live compares."""

EPILOG = f"""\
Start with your model's latency table and no other option:

  lazybatch profile model.onnx -o table.json
  python bench/sla_sweep.py --table table.json

This simulates the scheduler itself in virtual time: requests arrive at random at each rate, every policy serves the
very same arrivals, and what counts is the share of requests whose latency, from arrival to result, is within the
target. The last table answers the question most people have: how many requests per second can I take at this SLA?
Then check the answer on the real model, which takes real time (runs x --seconds; it is said before it begins):

  python bench/sla_sweep.py --live model.onnx --sla-ms 20 50 --policy graph:0 lookahead

policies   {", ".join(USUAL)}; graph:W is batching of whole
           graphs with a window of W ms, what most servers offer; graph:0 takes all that wait whenever the processor is
           free. Add aimd, cellular, or any other window.
targets    --sla-ms, or --sla-x as multiples of S(1), the time of one request on an idle machine. A target below S(1)
           cannot be met and is refused.
rates      --load as shares of the capacity of the best batch size in the table, or --rate in requests per second.
arrivals   poisson, or bursty: a tenth of the time the rate is four times the mean.
loops      a table of a program has loops: --lengths FILE (recorded or characterized lengths, rows are drawn from it) or
           --trips N say how often rows go round. Live they are learnt from the rows unless given. Policies are then
           {", ".join(USUAL_LOOPS)}; S(1) is that of the mean row, and capacity that of whole batches, which run
           until their longest row is done.
models     for --live: {", ".join((*NAMES, *LOOPED))},
           an ONNX file whose dimensions other than the batch are fixed, or a program.json

Fair play: arrivals are open loop with fixed seeds; live, policies take turns run by run, each run has its own warm-up,
the first tenth of the requests is not judged, latency runs from submit to result, and a load generator that was itself
late is reported. Refused requests (queue full) do not meet the target. A rate counts as sustained only if all lower
rates that were run meet the target too; simulated, the gap to the next rate is then halved --refine times.

written    DIR/sla_sweep.json (rows, provenance, figures, advice), .csv (the rows), -targets.png and -rates.png

examples
  python bench/sla_sweep.py --table profiles/cpu-2-cores/ppocr-rec.json --quick
  python bench/sla_sweep.py --table t.json --sla-ms 5 10 20 --load 0.2 0.4 0.6 0.8 0.95 --seeds 5 --arrivals bursty
  python bench/sla_sweep.py --live ppocr-cls --quick

status: 0 done, 1 a live call failed or a policy had to be replaced, 2 bad input
"""


def options() -> argparse.ArgumentParser:
    """The command line. Defaults that depend on --quick or --live are filled in by `fill`."""
    made = parser(TITLE, EPILOG)
    made.add_argument("--table", type=Path, metavar="FILE", help="latency table: simulate it, or serve --live with it")
    made.add_argument("--lengths", type=Path, metavar="FILE", help="of tables with loops: lengths to draw rows from")
    made.add_argument("--trips", metavar="N", help="instead: the same for all rows, 20 or encoder=12,decoder=20")
    made.add_argument("--live", metavar="MODEL", help="serve this model for real; profiled first without --table")
    made.add_argument("--policy", nargs="+", metavar="P", help="policies to compare")
    target = made.add_mutually_exclusive_group()
    target.add_argument("--sla-ms", nargs="+", type=float, metavar="MS", help="targets in milliseconds")
    target.add_argument(
        "--sla-x", nargs="+", type=float, metavar="X", help="targets as multiples of S(1) (1.5 2 3 5 10)"
    )
    rate = made.add_mutually_exclusive_group()
    rate.add_argument("--load", nargs="+", type=float, help="rates as shares of capacity (0.2 0.35 0.5 0.65 0.8 0.95)")
    rate.add_argument("--rate", nargs="+", type=float, metavar="RPS", help="rates in requests per second")
    made.add_argument("--arrivals", choices=("poisson", "bursty"), default="poisson")
    made.add_argument(
        "--late",
        choices=("serve", "drop"),
        default="serve",
        help="drop fails waiting requests that cannot make it (serve)",
    )
    made.add_argument("--meet", type=float, default=99.0, metavar="PERCENT", help="of the requests within target (99)")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each point, with seeds 1 to N (3)")
    made.add_argument("--requests", type=int, metavar="N", help="simulated: requests of a run (3000)")
    made.add_argument("--refine", type=int, metavar="N", help="simulated: halvings of the gap to the next rate (5)")
    made.add_argument("--seconds", type=float, metavar="S", help="live: length of a run (10)")
    made.add_argument("--max-batch-size", type=int, metavar="N", help="rows in a batch (the table's largest; live 16)")
    made.add_argument("--queue-capacity", type=int, default=1024, metavar="N", help="waiting rows (1024)")
    made.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="simulated: processes")
    made.add_argument("-o", "--output", type=Path, default=Path("out/bench"), metavar="DIR", help="(%(default)s)")
    made.add_argument("--no-plots", action="store_true", help="JSON and CSV only; needs no matplotlib")
    return made


def fill(chosen: argparse.Namespace) -> None:
    """Defaults of what was not given. --quick makes them small, and overrides nothing that was given."""
    live, quick = chosen.live is not None, chosen.quick
    loads, multiples = [0.2, 0.35, 0.5, 0.65, 0.8, 0.95], [1.5, 2.0, 3.0, 5.0, 10.0]
    if quick:
        loads, multiples = ([0.3, 0.7], [3.0, 10.0]) if live else ([0.25, 0.5, 0.75, 0.9], [2.0, 5.0, 10.0])
    defaults: dict[str, Any] = {
        "seeds": 1 if quick and live else 2 if quick else 3,
        "requests": 500 if quick else 3000,
        "refine": 3 if quick else 5,
        "seconds": 1.0 if quick else 10.0,
    }
    for name, value in defaults.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    if chosen.sla_ms is None and chosen.sla_x is None:
        chosen.sla_x = multiples
    if chosen.load is None and chosen.rate is None:
        chosen.load = loads


def check(chosen: argparse.Namespace) -> None:
    """Refuse what cannot be, before anything is loaded. Raises `InvalidInput` naming the option."""
    if chosen.table is None and chosen.live is None:
        raise InvalidInput("give --table FILE to simulate, or --live MODEL to serve for real (see --help)")
    if chosen.policy is not None:
        variants(chosen.policy)
    whole("--seeds", chosen.seeds, 1, 1000)
    whole("--requests", chosen.requests, 20, REQUESTS_MAX)
    whole("--refine", chosen.refine, 0, 30)
    whole("--jobs", chosen.jobs, 1, 256)
    whole("--queue-capacity", chosen.queue_capacity, 1, QUEUE_CAPACITY_MAX)
    if chosen.max_batch_size is not None:
        whole("--max-batch-size", chosen.max_batch_size, 1, BATCH_SIZE_MAX)
    for name in ("sla_ms", "sla_x", "load", "rate"):
        for value in getattr(chosen, name) or ():
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"--{name.replace('_', '-')} must be positive, got {value}")
    if not (math.isfinite(chosen.seconds) and 0 < chosen.seconds <= 86_400):
        raise InvalidInput(f"--seconds must be more than 0 and at most a day, got {chosen.seconds}")
    if not 0 < chosen.meet <= 100:
        raise InvalidInput(f"--meet must be a percentage above 0, got {chosen.meet}")


def compared(chosen: argparse.Namespace, *, loops: bool) -> list[Variant]:
    """The policies, or what is usual for such a model. Raises `InvalidInput` for a name that is none."""
    if chosen.policy is not None:
        return variants(chosen.policy)
    if chosen.quick and chosen.live is not None:
        return variants(QUICK_LOOPS if loops else QUICK)
    return variants(USUAL_LOOPS if loops else USUAL)


def targets(chosen: argparse.Namespace, model: str, alone_ms: float, least_ms: float) -> list[float]:
    """Targets in ms, ascending. Raises `InvalidInput` for one that a single request on an idle machine would miss.

    alone_ms: S(1), which --sla-x counts in. least_ms: the same for the shortest request.
    """
    wanted = chosen.sla_ms if chosen.sla_ms is not None else [float(f"{x * alone_ms:.3g}") for x in chosen.sla_x]
    for target_ms in wanted:
        if target_ms < least_ms:
            raise InvalidInput(
                f"SLA target {target_ms:g} ms cannot be met: one request alone takes {least_ms:.3f} ms ({model})"
            )
    return sorted(set(wanted))


def rates(chosen: argparse.Namespace, capacity_rps: float) -> list[tuple[float, int]]:
    """(requests per second, number of requests), ascending."""
    per_s = sorted(set(chosen.rate or [load * capacity_rps for load in chosen.load]))
    if chosen.live is None:
        return [(rate_rps, chosen.requests) for rate_rps in per_s]
    return [(rate_rps, max(20, round(rate_rps * chosen.seconds))) for rate_rps in per_s]
