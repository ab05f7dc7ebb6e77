"""The command ``simulate``: a seeded load through the scheduler in virtual time.

Owns: the command's options, its checks and its figures.
Must not know: how options are read from the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lazybatch import policies
from lazybatch.cli.measuring import measured
from lazybatch.cli.output import Report, milliseconds
from lazybatch.config import BATCH_SIZE_MAX, QUEUE_CAPACITY_MAX, whole
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.scheduler import Decision
from lazybatch.core.task import Task
from lazybatch.errors import InvalidInput
from lazybatch.explanation import latest, telling
from lazybatch.lengths import load_lengths
from lazybatch.loading import load as load_model
from lazybatch.metrics import Meter, Observer, latency_summary
from lazybatch.profiles import load
from lazybatch.simulator import SimulationResult, requests_from, simulate
from lazybatch.table_loops import graph_of, loops_of
from lazybatch.trace import TraceWriter
from lazybatch.trips import Trips, drawn, fixed
from lazybatch.words import aligned, counted
from lazybatch.workload import poisson, recorded

_EXPLAINED_MAX = 1_000_000
_REQUESTS = 1_000
"""Of a load that no file bounds."""
_SAY_TRIPS = "{!r} has the loop {!r}: say how often rows go round it, with --lengths FILE or --trips N"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``simulate`` may be told; times in milliseconds as users write them.

    Either a table, or a model, whose table is measured first.
    requests: None: all recorded arrivals, or 1,000 at a rate.
    """

    table: Path | None = None
    model: Path | None = None
    policy: str
    rate_rps: float | None
    requests: int | None = None
    sla_ms: float | None
    seed: int
    window_ms: float | None = None
    max_batch: int | None = None
    queue_capacity: int = 256
    late: str = "serve"
    arrivals: Path | None = None
    lengths: Path | None = None
    trips: str | None = None
    trace: Path | None = None
    explain: int = 0


class _First(Observer):
    """The first decisions worth reading; the scheduler's own log forgets them in a long run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.decisions: list[Decision] = []

    def dispatched(self, start_ns: int, end_ns: int, task: Task, failed: bool = False) -> None:
        """Keep what was decided, not what merely went on."""
        if len(self.decisions) < self._most and telling(task):
            self.decisions.append(Decision(start_ns, task))


def run(options: Options) -> Report:
    """Simulate and report. Raises `InvalidInput` for whatever is wrong with the options or the files."""
    if options.requests is not None:
        whole("--requests", options.requests, 1, QUEUE_CAPACITY_MAX)
    whole("--queue-capacity", options.queue_capacity, 1, QUEUE_CAPACITY_MAX)
    if options.max_batch is not None:
        whole("--max-batch", options.max_batch, 1, BATCH_SIZE_MAX)
    sla_ns = None if options.sla_ms is None else _nanoseconds("--sla-ms", options.sla_ms, zero=False)
    late = _late(options.late)
    whole("--explain", options.explain, -_EXPLAINED_MAX, _EXPLAINED_MAX)
    chosen = _policy_options(options)
    arrivals_ns = _arrivals(options)
    table = _table(options)
    trips = _trips(options, table, len(arrivals_ns))
    lane = _lane(options, table, sla_ns, late, trips)
    _check_sla(options, lane)
    policy = policies.make_policy(options.policy, [lane], **chosen)
    requests = requests_from(arrivals_ns, table.model, sla_ns=sla_ns)
    truth = {} if trips is None else trips.truth(requests)
    requests = requests if trips is None else trips.told(requests)
    meter, first = Meter(), _First(options.explain)
    observers: list[Observer] = [meter, first] if options.explain > 0 else [meter]
    left_out = None
    if options.trace is None:
        result = simulate([lane], policy, requests, observers=observers, trips=truth)
    else:
        with TraceWriter(options.trace, [lane.graph]) as writer:
            result = simulate([lane], policy, requests, observers=[*observers, writer], trips=truth)
        left_out = writer.events_left_out
    report = _report(options, table, result, meter, len(requests))
    if left_out is not None:  # for people, the writer has said it in the log
        report = Report({**report.values, "trace_events_left_out": left_out}, report.lines)
    if not options.explain:
        return report
    decisions = first.decisions if options.explain > 0 else list(result.scheduler.decisions)
    explained = latest(decisions, {table.model: lane.graph}, abs(options.explain))
    values = {**report.values, "decisions": [one.as_dict() for one in explained]}
    return Report(values, [*report.lines, *map(str, explained)])


def _table(options: Options) -> LatencyTable:
    """The table that was given, or that of the model that was."""
    if (options.table is None) == (options.model is None):
        raise InvalidInput("give either --table (as `lazybatch profile` writes it) or a MODEL (to be profiled first)")
    if options.table is not None:
        try:
            return load(options.table)
        except InvalidInput as error:
            hint = "; a model is given without --table" if options.table.exists() else ""
            raise InvalidInput(f"{error}{hint}") from error
    assert options.model is not None, "one of the two is given"
    model = load_model(options.model)
    if model.graph.loops and options.trips is None and options.lengths is None:  # before time is spent on measuring
        raise InvalidInput(_SAY_TRIPS.format(model.name, model.graph.loops[0].name))
    return measured(model)


def _nanoseconds(option: str, value_ms: float, *, zero: bool) -> int:
    if not math.isfinite(value_ms) or value_ms < 0 or (value_ms == 0 and not zero) or value_ms > 1e11:
        allowed = "0 or more" if zero else "more than 0"
        raise InvalidInput(f"{option} must be a number of milliseconds, {allowed}, got {value_ms}")
    return max(round(value_ms * 1e6), 0 if zero else 1)


def _policy_options(options: Options) -> dict[str, int]:
    """Options of the policy's constructor; an unknown policy is refused before anything is read."""
    policies.check_policy(options.policy)
    if options.window_ms is None:
        return {}
    if options.policy != "graph":
        raise InvalidInput(f"--window-ms belongs to policy 'graph', the policy is {options.policy!r}")
    return {"window_ns": _nanoseconds("--window-ms", options.window_ms, zero=True)}


def _arrivals(options: Options) -> list[int]:
    if (options.arrivals is None) == (options.rate_rps is None):
        raise InvalidInput("give either --rate (a Poisson load) or --arrivals (a recorded one)")
    if options.arrivals is not None:
        arrivals_ns = recorded(options.arrivals)
        if not arrivals_ns:
            raise InvalidInput(f"the trace {str(options.arrivals)!r} holds no arrivals")
        return arrivals_ns[: options.requests]
    assert options.rate_rps is not None
    return poisson(options.rate_rps, options.requests or _REQUESTS, options.seed)


def _late(given: str) -> Literal["serve", "drop"]:
    if given not in ("serve", "drop"):
        raise InvalidInput(f"--late must be 'serve' or 'drop', got {given!r}")
    return "drop" if given == "drop" else "serve"


def _trips(options: Options, table: LatencyTable, requests: int) -> Trips | None:
    """What rows do in the loops of the table; None where it has none."""
    loops = loops_of(table)
    if options.trips is not None and options.lengths is not None:
        raise InvalidInput("give either --trips (the same for every request) or --lengths (drawn from a file)")
    given = "--trips" if options.trips is not None else "--lengths" if options.lengths is not None else None
    if not loops:
        if given is not None:
            raise InvalidInput(f"{given} is for models with loops; the table of {table.model!r} has none")
        return None
    if options.trips is not None:
        return fixed(table, options.trips)
    if options.lengths is not None:
        return drawn(table, load_lengths(options.lengths), requests, options.seed)
    raise InvalidInput(_SAY_TRIPS.format(table.model, loops[0].loop.name))


def _check_sla(options: Options, lane: LaneSpec) -> None:
    """Refuse a target that no row can meet, not even the shortest."""
    table = lane.unrolled("shortest")
    assert table is not None, "the lane has a table"
    if lane.sla_ns is not None and lane.sla_ns < table.whole_ns(1):
        alone_ms = table.whole_ns(1) / 1e6
        raise InvalidInput(f"--sla-ms {options.sla_ms:g} cannot be met: one row alone takes {alone_ms:.6g} ms")


def _lane(
    options: Options, table: LatencyTable, sla_ns: int | None, late: Literal["serve", "drop"], trips: Trips | None
) -> LaneSpec:
    return LaneSpec(
        graph=graph_of(table),
        latency=table,
        max_batch_size=table.batch_sizes[-1] if options.max_batch is None else options.max_batch,
        queue_capacity=options.queue_capacity,
        sla_ns=sla_ns,
        joinable=table.provenance.get("joinable") is not False,
        late=late,
        lengths=() if trips is None else trips.guesses,
    )


def _padded_length(table: LatencyTable) -> int | None:
    """The length that the table's own times are of, the longest; None where the file does not say."""
    lengths = table.provenance.get("padded_lengths")
    longest = lengths[-1] if isinstance(lengths, list) and lengths else None
    return longest if isinstance(longest, int) else None


def _report(options: Options, table: LatencyTable, result: SimulationResult, meter: Meter, offered: int) -> Report:
    stats = meter.of(table.model)
    span_ns = max(1, result.end_ns - result.start_ns)
    values: dict[str, object] = {
        "simulated": True,
        "model": table.model,
        "policy": options.policy,
        "rate_rps": options.rate_rps,
        "requests": offered,
        "seed": options.seed,
        "sla_ms": options.sla_ms,
        "late_rows": options.late,
        **latency_summary(result.latencies_ns.values()).as_ms(),
        "queue_wait_mean_ms": stats.queue_wait.as_ms()["mean_ms"],
        "violations": result.violations,
        "late": len(result.late),
        "dropped": len(result.dropped),
        "completed": len(result.latencies_ns),
        "throughput_rps": result.throughput_rps,
        "mean_batch": result.mean_batch,
        "utilisation": stats.busy_ns / span_ns,
        "dispatches": result.dispatches,
        "sub_batches": result.batches,
        "preemptions": result.preemptions,
        "merges": result.merges,
        "reasons": dict(stats.reasons),
    }
    target = "no target" if options.sla_ms is None else f"target {options.sla_ms:g} ms"
    offered_words = counted(offered, "request") + ("" if options.rate_rps is None else f" at {options.rate_rps:g}/s")
    pairs = [
        ("mean latency", milliseconds(values["mean_ms"])),
        ("p50", milliseconds(values["p50_ms"])),
        ("p99", milliseconds(values["p99_ms"])),
        ("violations", f"{100 * result.violations:.2f} % ({len(result.late)} late, {len(result.dropped)} dropped)"),
        ("throughput", f"{result.throughput_rps:.1f}/s, processor busy {100 * stats.busy_ns / span_ns:.0f} %"),
        ("rows per dispatch", f"{result.mean_batch:.2f} over {counted(result.dispatches, 'dispatch')}"),
        ("preemptions", f"{result.preemptions}, merges {result.merges}"),
        *((f"  {reason}", str(count)) for reason, count in sorted(stats.reasons.items(), key=lambda item: -item[1])),
    ]
    title = f"simulated: {table.model}, policy {options.policy}, {offered_words}, {target}, seed {options.seed}"
    lines = [title, *aligned(pairs)]
    if table.shorter:
        values["padded_length"] = longest = _padded_length(table)
        others = ", ".join(map(str, sorted(table.shorter)))
        at = "the longest padded length" + ("" if longest is None else f", {longest}")
        lines.append(f"every row simulated at {at}; the table has {others} as well")
    if options.model is not None:
        lines.append(
            f"measured just now, with made-up rows; `lazybatch profile {options.model} -o TABLE.json` keeps a table"
        )
    return Report(values, lines)
