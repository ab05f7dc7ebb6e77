"""The commands as typer sees them, and how errors become exit statuses.

Owns: names, options and help texts of the commands; `run`.
Must not know: how a command does its work (one module each beside this one).
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

import lazybatch
from lazybatch.cli import INTERRUPTED, characterizing, checks, cutting, measuring, simulation
from lazybatch.cli.output import BAD_INPUT, emit, progress_line
from lazybatch.errors import LazyBatchError
from lazybatch.policies import DEFAULT as DEFAULT_POLICY
from lazybatch.policies import names as policy_names

# typer brings click along, under a name that changed between its releases: reach its base of usage errors by class.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]
_INTERNAL_ERROR = 70
_NO_READER = 141
"""As of a program that the signal for it ended, by a shell's custom."""

app = typer.Typer(
    name="lazybatch",
    help="Node-level preemptive batching for DNN inference. Exit status: 0 good, 1 what was checked does not hold, "
    "2 usage or bad input.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, an exported torch program, or a program.json.")
]
Servable = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, an exported torch program, a program.json, or a directory from `partition`.",
    ),
]


PreemptWithin = Annotated[
    float | None,
    typer.Option(help="The longest time the server may be unpreemptible at one row; default: as fine as stays cheap."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="Rows the model accepts: an .npz file, one array per input, rows along its first axis."),
]
Threads = Annotated[int | None, typer.Option(help="Threads that operators share; default: one per core.")]


def _version(asked: bool) -> None:
    if asked:
        print(lazybatch.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Node-level preemptive batching for DNN inference. Exit status: 0 good, 1 does not hold, 2 bad input."""


@app.command("check")
def check_command(
    model: Servable,
    preempt_within_ms: PreemptWithin = None,
    inputs: Inputs = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Say whether rows of different requests may share a batch, and what serving node by node costs.

    Exit status 1 when rows cannot be joined (``reason`` says why; the model can be served all the same, one row at a
    time), or when the nodes' answers are not the whole model's, bit for bit. A program is checked stage by stage, and
    as a whole: rows that join and leave at random must get the answers they get alone, and of rows given with --inputs
    one at least must get an answer.

    Example: lazybatch check bert.onnx --json
    """
    return emit(checks.run(model, preempt_within_ms, inputs, threads), json)


@app.command("partition")
def partition_command(
    model: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to write the nodes to.")],
    preempt_within_ms: PreemptWithin = None,
    inputs: Inputs = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Cut a model into nodes, as files in a directory that can be loaded instead of the model.

    A model whose rows cannot share a batch is cut as well; ``reason`` says why they run alone.

    Example: lazybatch partition bert.onnx -o bert-nodes --preempt-within-ms 5
    """
    return emit(cutting.run(model, output, preempt_within_ms, inputs), json)


@app.command("profile")
def profile_command(
    model: Servable,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="TABLE.json", help="File to write the table to.")],
    batch_sizes: Annotated[str, typer.Option(help="Increasing, from 1, with commas between.")] = "1,2,4,8,16",
    budget_s: Annotated[float, typer.Option(help="Seconds to measure for.")] = 60.0,
    repeats: Annotated[int, typer.Option(help="Measurements per batch size, at most.")] = 50,
    iterations: Annotated[int, typer.Option(help="Of each loop of a program, in one measurement, at most.")] = 16,
    inputs: Inputs = None,
    preempt_within_ms: PreemptWithin = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Measure how long each node takes at each batch size, and say whether batching pays.

    Interrupted, it goes on where it stopped when the same command is given again.

    Example: lazybatch profile bert.onnx -o bert.json --batch-sizes 1,2,4,8 --budget-s 30
    """
    chosen = measuring.Options(
        model=model,
        output=output,
        batch_sizes=batch_sizes,
        budget_s=budget_s,
        repeats=repeats,
        iterations=iterations,
        inputs=inputs,
        preempt_within_ms=preempt_within_ms,
        threads=threads,
    )
    return emit(measuring.run(chosen), json)


@app.command("characterize")
def characterize_command(
    lengths: Annotated[
        Path, typer.Argument(metavar="LENGTHS", help="Recorded lengths: a line per row, `out` or `in,out`; or JSON.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write to.")],
    loop: Annotated[str, typer.Option(help="Whose lengths they are, where the file does not say; default: any.")] = "*",
    coverage: Annotated[float, typer.Option(help="Share of rows that dec_timesteps covers.")] = 0.9,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Say how often a loop runs, from lengths of rows that were seen: what schedulers plan with until rows are done.

    Example: lazybatch characterize sentences.csv -o lengths.json --loop decoder
    """
    return emit(characterizing.run(lengths, output, loop, coverage), json)


@app.command("simulate")
def simulate_command(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="Instead of --table: a model that is profiled first.")
    ] = None,
    table: Annotated[Path | None, typer.Option(help="Latency table, as `profile` writes it.")] = None,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(policy_names())}.")] = DEFAULT_POLICY,
    rate: Annotated[float | None, typer.Option(help="Offered load, requests per second (Poisson).")] = None,
    requests: Annotated[
        int | None, typer.Option(help="How many requests; default: 1000 at a --rate, all of --arrivals.")
    ] = None,
    sla_ms: Annotated[float | None, typer.Option(help="SLA target per request; none: nothing is ever late.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    window_ms: Annotated[float | None, typer.Option(help="Batching window of policy `graph`; default 0.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Rows per sub-batch; default: the largest profiled.")] = None,
    queue_capacity: Annotated[int, typer.Option(help="Rows that may wait; more are dropped.")] = 256,
    late: Annotated[
        str,
        typer.Option(help="`serve` late rows all the same, or `drop` those that cannot make their target even alone."),
    ] = "serve",
    arrivals: Annotated[
        Path | None, typer.Option(help="Instead of --rate: a file of arrival times in seconds, one per line.")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Of tables with loops: lengths to draw rows from, recorded or characterized.")
    ] = None,
    trips: Annotated[
        str | None, typer.Option(help="Instead of --lengths: iterations of every row, 20 or encoder=12,decoder=20.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev there.")] = None,
    explain: Annotated[
        int, typer.Option(metavar="N", help="Print the first N decisions and why they were taken; -N: the last N.")
    ] = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Run a seeded load through the scheduler in virtual time, with the latencies of a table.

    Given a MODEL instead, it is profiled first, for some 20 seconds; the table is not kept.

    ``violations`` is the share of all requests that were late or dropped.

    Example: lazybatch simulate --table bert.json --rate 40 --requests 2000 --sla-ms 100 --seed 1 --explain 10
    """
    chosen = simulation.Options(
        table=table,
        model=model,
        policy=policy,
        rate_rps=rate,
        requests=requests,
        sla_ms=sla_ms,
        seed=seed,
        window_ms=window_ms,
        max_batch=max_batch,
        queue_capacity=queue_capacity,
        late=late,
        arrivals=arrivals,
        lengths=lengths,
        trips=trips,
        trace=trace,
        explain=explain,
    )
    return emit(simulation.run(chosen), json)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the plot and the trace.")] = Path("out/demo"),
    seconds: Annotated[float, typer.Option(help="Seconds of arrivals per run; there are fifteen runs.")] = 6.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Serve two trained models at three loads under each policy, and compare.

    Exit status 1 when an answer was not the whole model's.

    Example: lazybatch demo --seconds 4 --out demo
    """
    from lazybatch.cli import showing  # plots and pictures are an extra of their own: other commands do without

    return emit(showing.run(out, seconds, seed, show=not json, progress=progress_line), json)


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit status. Every error is one line on stderr, unless ``--debug`` is given."""
    try:
        status: Any = app(args=argv, prog_name="lazybatch", standalone_mode=False)
    except LazyBatchError as error:
        return _refuse(error, str(error), argv, BAD_INPUT)
    except _ClickError as error:
        # format_message names the option at fault, str() does not.
        return _refuse(error, getattr(error, "format_message", error.__str__)(), argv, BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as exit_asked:  # typer's way of saying that nobody reads what is written
        if isinstance(exit_asked.__context__, BrokenPipeError):
            return _NO_READER
        raise
    except typer.Exit as exit_asked:
        return int(exit_asked.exit_code)
    except ModuleNotFoundError as error:
        hint = "run `pip install 'lazybatch[all]'`"
        return _refuse(error, f"this command needs the package {error.name!r}; {hint}", argv, BAD_INPUT)
    except Exception as error:
        if "--debug" not in argv:
            hint = " (a fault in lazybatch; --debug shows the traceback)"
            return _refuse(error, f"{type(error).__name__}: {error}{hint}", argv, _INTERNAL_ERROR)
        return _refuse(error, str(error), argv, _INTERNAL_ERROR)
    if status == INTERRUPTED:  # no command's own: typer makes it of a KeyboardInterrupt, and says nothing
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _refuse(error: Exception, text: str, argv: list[str], status: int) -> int:
    if "--debug" in argv:
        traceback.print_exception(error, file=sys.stderr)
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return status
