"""The runs: two trained models behind one batcher, the same arrivals under each policy.

Owns: the set-up (models, tables, targets, capacity), one run, and the check of its answers.
Must not know: how results are shown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch import profiler
from lazybatch.api import LazyBatcher
from lazybatch.core.request import Request
from lazybatch.core.task import Merge, Task
from lazybatch.demo import lines, models
from lazybatch.demo.load import Call, Offer, offer
from lazybatch.executors.ort.session import open_session
from lazybatch.loading import load
from lazybatch.metrics import Observer, Outcome, latency_summary
from lazybatch.profiles import LatencyTable
from lazybatch.workload import poisson

MODELS = ("direction", "reader")
POLICIES: tuple[tuple[str, str, float], ...] = (
    ("serial", "serial", 0.0),
    ("graph 0 ms", "graph", 0.0),
    ("graph 5 ms", "graph", 0.005),
    ("lazy", "lazy", 0.0),
    ("lookahead", "lookahead", 0.0),
)
"""(title, policy, window in seconds)."""
TRACED = "lookahead"
ROUNDS = 3
ROWS_MAX = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that stays the same from run to run.

    rows, wanted: per model, one row per line and what the whole model answers to it alone. inputs: name of each
    model's input tensor. sla_s: per model. capacity_rps, alone_ms: see `expected`.
    """

    served: Mapping[str, Any]
    tables: Mapping[str, LatencyTable]
    rows: Mapping[str, list[dict[str, Any]]]
    wanted: Mapping[str, list[Any]]
    outputs: Mapping[str, str]
    texts: tuple[str, ...]
    alphabet: tuple[str, ...]
    sla_s: Mapping[str, float]
    capacity_rps: float
    alone_ms: Mapping[str, float]


def prepare(profile_s: float = 5.0) -> Setting:
    """Draw the lines, load and profile both models, and let the whole models read every line once.

    Raises `ModelError` where the models are not installed.
    """
    drawn = lines.draw()
    made = {"direction": lines.direction_input, "reader": lines.reader_input}
    served, tables, rows, wanted, outputs = {}, {}, {}, {}, {}
    for name in MODELS:
        path = models.find(name)
        session = open_session(path, optimise=True)
        entry, leave = session.get_inputs()[0].name, session.get_outputs()[0].name
        rows[name] = [{entry: made[name](line)} for line in drawn]
        served[name] = load(path, example_inputs=rows[name][:2])
        wanted[name] = [session.run([leave], {entry: row[entry][None]})[0][0] for row in rows[name]]
        outputs[name] = leave
        tables[name] = profiler.profile(
            served[name], (1, 2, 4, ROWS_MAX), budget_s=profile_s, inputs=rows[name][:ROWS_MAX]
        )
    alone_ms, capacity_rps = expected(tables)
    return Setting(
        served,
        tables,
        rows,
        wanted,
        outputs,
        tuple(line.text for line in drawn),
        tuple(models.alphabet(models.find("reader"))),
        # Reading one line must not make a direction late; a line may wait for a dozen others.
        {"direction": 2 * alone_ms["reader"] / 1e3, "reader": 15 * alone_ms["reader"] / 1e3},
        capacity_rps,
        alone_ms,
    )


def expected(tables: Mapping[str, LatencyTable]) -> tuple[dict[str, float], float]:
    """What a row of each model takes alone (ms), and the requests per second, of all in equal parts, that the best
    batches allow. With the engine's own time, as policies reckon: a load of 1.00 is what this process can serve."""
    taken = {name: table.dispatched() for name, table in tables.items()}
    alone_ms = {name: table.whole_ns(1) / 1e6 for name, table in taken.items()}
    best_ns = [min(table.whole_ns(rows) / rows for rows in range(1, ROWS_MAX + 1)) for table in taken.values()]
    return alone_ms, len(taken) * 1e9 / sum(best_ns)


class Moved(Observer):
    """Counts the completed rows whose sub-batch was parked or merged on the way."""

    def __init__(self) -> None:
        self.rows = 0
        self._of: dict[int, set[int]] = {}
        self._at: dict[int, int] = {}
        self._moved: set[int] = set()

    def opened(self, now_ns: int, task: Task) -> None:
        """Note who is in the new sub-batch."""
        self._of[task.sub_batch] = set(task.opened)
        self._at.update(dict.fromkeys(task.opened, task.sub_batch))

    def preempted(self, now_ns: int, task: Task) -> None:
        """The rows of the parked sub-batch have been moved."""
        if task.preempted is not None:
            self._moved |= self._of.get(task.preempted, set())

    def merged(self, now_ns: int, merge: Merge) -> None:
        """The rows of both have been moved."""
        source = self._of.pop(merge.source, set())
        self._of.setdefault(merge.target, set()).update(source)
        self._at.update(dict.fromkeys(source, merge.target))
        self._moved |= self._of[merge.target]

    def exited(self, now_ns: int, request: Request, outcome: Outcome, first_dispatch_ns: int | None) -> None:
        """Count it if it was moved."""
        if outcome is Outcome.COMPLETED:
            self.rows += request.id in self._moved
        sub_batch = self._at.pop(request.id, None)
        self._moved.discard(request.id)
        if sub_batch is not None:
            left = self._of.get(sub_batch, set())
            left.discard(request.id)
            if not left:
                self._of.pop(sub_batch, None)


@dataclass(frozen=True, slots=True)
class Run:
    """One run's figures. per_model: requests, late (share), p50_ms, p99_ms. goodput_rps: answers within target."""

    title: str
    load: float
    rate_rps: float
    requests: int
    failed: int
    goodput_rps: float
    late: float
    per_model: Mapping[str, Mapping[str, Any]]
    mean_rows: float | None
    preemptions: int
    merges: int
    moved_rows: int
    wrong: int
    max_abs_diff: float
    examples: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        names = [name for name in self.__slots__ if name != "examples"]
        return {name: getattr(self, name) for name in names}


def arrivals(setting: Setting, load: float, seconds: float, seed: int) -> list[tuple[Offer, int]]:
    """Poisson arrivals of both models in equal parts, each with the number of its line; the same for all policies."""
    rate_rps = load * setting.capacity_rps
    rng = random.Random(seed)
    times_ns = poisson(rate_rps, max(1, round(rate_rps * seconds)), seed)
    chosen = [(rng.choice(MODELS), rng.randrange(len(setting.texts))) for _ in times_ns]
    return [
        (Offer(at_ns, model, setting.rows[model][line]), line)
        for at_ns, (model, line) in zip(times_ns, chosen, strict=True)
    ]


def serve(
    setting: Setting,
    load: float,
    *,
    seconds: float,
    seed: int,
    trace: Path | None = None,
    progress: Callable[[str], None],
) -> list[Run]:
    """Serve one schedule under every policy and check every answer against the whole model's.

    The schedule is cut into `ROUNDS` parts, and the policies take turns part by part, so that whatever else the machine
    does meanwhile hits all of them alike. trace: file for the schedule of the policy `TRACED`.
    """
    sessions = []
    with ExitStack() as stack:
        for title, policy, window_s in POLICIES:
            session = _Session(setting, title, policy, window_s, trace if title == TRACED else None)
            sessions.append(session)
            stack.enter_context(session.batcher)
            session.warm_up()
        for part in range(ROUNDS):
            planned = arrivals(setting, load, seconds / ROUNDS, seed + part)
            for turn in range(len(sessions)):
                session = sessions[(turn + part) % len(sessions)]
                progress(f"load {load:.2f}, part {part + 1} of {ROUNDS}, {session.title}")
                session.serve(planned)
        return [session.figures(load) for session in sessions]


class _Session:
    """One policy's batcher, and what became of everything it was offered."""

    def __init__(self, setting: Setting, title: str, policy: str, window_s: float, trace: Path | None) -> None:
        self.title = title
        self._setting = setting
        self._moved = Moved()
        self._calls: list[Call] = []
        self._lines: list[int] = []
        self._wall_s = 0.0
        self.batcher = LazyBatcher(
            dict(setting.served),
            table=dict(setting.tables),
            sla=dict(setting.sla_s),
            policy=policy,
            max_batch_size=ROWS_MAX,
            max_delay=window_s,
            queue_capacity=4096,
            observers=[self._moved],
            trace=trace,
        )
        self._before = self.batcher.stats()

    def warm_up(self) -> None:
        """Every batch size once: memory is touched, bindings are made."""
        for name in MODELS:
            for rows in (1, 2, 4, ROWS_MAX):
                self.batcher.predict_batch(self._setting.rows[name][:rows], model=name)
        self._before = self.batcher.stats()

    def serve(self, planned: Sequence[tuple[Offer, int]]) -> None:
        """Offer one part of the schedule and wait for its end."""
        calls = offer(self.batcher, [one for one, _ in planned])
        self._calls += calls
        self._lines += [line for _, line in planned]
        self._wall_s += (max(call.done_ns or 0 for call in calls) - calls[0].submit_ns) / 1e9

    def figures(self, load: float) -> Run:
        """All parts together."""
        setting, calls, before, after = self._setting, self._calls, self._before, self.batcher.stats()
        wrong, difference = _check(setting, calls, self._lines)
        per_model = {name: _figures(setting, name, calls) for name in MODELS}
        good = sum(figures["in_time"] for figures in per_model.values())
        dispatches = after.dispatches - before.dispatches
        rows_run = (after.mean_rows or 0.0) * after.dispatches - (before.mean_rows or 0.0) * before.dispatches
        return Run(
            self.title,
            load,
            load * setting.capacity_rps,
            len(calls),
            sum(call.latency_ns is None for call in calls),
            good / self._wall_s,
            1.0 - good / len(calls),
            per_model,
            rows_run / dispatches if dispatches else None,
            after.preemptions - before.preemptions,
            after.merges - before.merges,
            self._moved.rows,
            wrong,
            difference,
            _examples(setting, calls),
        )


def _figures(setting: Setting, name: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Requests of one model, how many came in time, and their latencies."""
    mine = [call for call in calls if call.offer.model == name]
    latencies_ns = [call.latency_ns for call in mine if call.latency_ns is not None]
    in_time = sum(latency_ns <= setting.sla_s[name] * 1e9 for latency_ns in latencies_ns)
    summary = latency_summary(latencies_ns).as_ms()
    late = 1.0 - in_time / len(mine) if mine else None
    return {
        "requests": len(mine),
        "in_time": in_time,
        "late": late,
        "p50_ms": summary["p50_ms"],
        "p99_ms": summary["p99_ms"],
    }


def _check(setting: Setting, calls: Sequence[Call], chosen: Sequence[int]) -> tuple[int, float]:
    """How many answers differ from the whole model's (direction, or text), and the largest difference of a number."""
    wrong, difference = 0, 0.0
    for call, line in zip(calls, chosen, strict=True):
        if call.latency_ns is None:
            continue
        name = call.offer.model
        ours, theirs = call.result[setting.outputs[name]], setting.wanted[name][line]
        difference = max(difference, float(np.abs(ours - theirs).max()))
        if name == "direction":
            wrong += lines.is_turned(ours) != lines.is_turned(theirs)
        else:
            wrong += lines.read(ours, setting.alphabet) != lines.read(theirs, setting.alphabet)
    return wrong, difference


def _examples(setting: Setting, calls: Sequence[Call]) -> tuple[tuple[str, str], ...]:
    """Nothing but a few lines and what was read of them."""
    found: dict[str, str] = {}
    where = {id(row): text for row, text in zip(setting.rows["reader"], setting.texts, strict=True)}
    for call in calls:
        if call.offer.model == "reader" and call.latency_ns is not None:
            text = where[id(call.offer.row)]
            found.setdefault(text, lines.read(call.result[setting.outputs["reader"]], setting.alphabet))
    return tuple(found.items())
