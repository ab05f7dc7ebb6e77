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

from lazybatch.cli import simulation
from lazybatch.cli.output import BAD_INPUT, emit
from lazybatch.core.policies import names as policy_names
from lazybatch.errors import LazyBatchError
from lazybatch.profiles import versions

# typer brings click along, under a name that changed between its releases: reach its base of usage errors by class.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]
_INTERRUPTED = 130
_INTERNAL_ERROR = 70

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
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]


def _version(asked: bool) -> None:
    if asked:
        print(versions().get("lazybatch", "not installed, run from its source"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Node-level preemptive batching for DNN inference. Exit status: 0 good, 1 does not hold, 2 bad input."""


@app.command("simulate")
def simulate_command(
    table: Annotated[Path, typer.Option(help="Latency table, as `profile` writes it.")],
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(policy_names())}.")] = "lazy",
    rate: Annotated[float | None, typer.Option(help="Offered load, requests per second (Poisson).")] = None,
    requests: Annotated[int, typer.Option(help="How many requests.")] = 1_000,
    sla_ms: Annotated[float | None, typer.Option(help="SLA target per request; none: nothing is ever late.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    window_ms: Annotated[float | None, typer.Option(help="Batching window of policy `graph`; default 0.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Rows per sub-batch; default: the largest profiled.")] = None,
    queue_capacity: Annotated[int, typer.Option(help="Rows that may wait; more are dropped.")] = 256,
    arrivals: Annotated[
        Path | None, typer.Option(help="Instead of --rate: a file of arrival times in seconds, one per line.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev there.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Run a seeded load through the scheduler in virtual time, with the latencies of a table.

    ``violations`` is the share of all requests that were late or dropped.

    Example: lazybatch simulate --table bert.json --policy lazy --rate 40 --requests 2000 --sla-ms 100 --seed 1
    """
    chosen = simulation.Options(
        table=table,
        policy=policy,
        rate_rps=rate,
        requests=requests,
        sla_ms=sla_ms,
        seed=seed,
        window_ms=window_ms,
        max_batch=max_batch,
        queue_capacity=queue_capacity,
        arrivals=arrivals,
        trace=trace,
    )
    return emit(simulation.run(chosen), json)


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
        return _INTERRUPTED
    except typer.Exit as exit_asked:
        return int(exit_asked.exit_code)
    except Exception as error:
        if "--debug" not in argv:
            hint = " (a fault in lazybatch; --debug shows the traceback)"
            return _refuse(error, f"{type(error).__name__}: {error}{hint}", argv, _INTERNAL_ERROR)
        return _refuse(error, str(error), argv, _INTERNAL_ERROR)
    return status if isinstance(status, int) else 0


def _refuse(error: Exception, text: str, argv: list[str], status: int) -> int:
    if "--debug" in argv:
        traceback.print_exception(error, file=sys.stderr)
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return status
