"""From what the user gave to what the engine serves: models, tables and options, checked against each other.

Owns: `Served` (one model with its limits and table), `assemble`, and what follows: policy, lanes, executors.
Must not know: threads, futures, requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, cast

from lazybatch import policies, profiler
from lazybatch.api.lengths import Lengths
from lazybatch.config import BatcherOptions, ModelOptions, to_ns
from lazybatch.core.infq import PriorityLevel
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import Policy
from lazybatch.engine import ServedModel
from lazybatch.errors import InvalidInput
from lazybatch.executors.base import Executor, MemoryPlan, Model
from lazybatch.executors.callable import CallableModel
from lazybatch.executors.padding.padded import PaddedModel
from lazybatch.profiles import check_table

_log = logging.getLogger("lazybatch.api")

QUICK_PROFILE_S = 5.0
"""How long to measure a model for which no latency table was given, in seconds."""
_QUICK_REPEATS = 20


@dataclass(frozen=True, slots=True)
class Served:
    """A model under the name callers use, its limits, and its table where it has one."""

    name: str
    model: Model
    options: ModelOptions
    table: LatencyTable | None

    @property
    def pooled(self) -> bool:
        """Whether it runs on worker threads."""
        return isinstance(self.model, CallableModel)


def as_models(given: Any, *, length_bucket_width: int = 0, name: str | None = None) -> dict[str, Model]:
    """The models by the names callers use. Raises `InvalidInput` for what is neither a model nor a callable."""
    if not isinstance(given, Mapping):
        model = _as_model(given, name, length_bucket_width)
        return {name or model.name: model}
    if not given:
        raise InvalidInput("at least one model is needed, got an empty mapping")
    for key in given:
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"models are named by non-empty strings, got {key!r}")
    return {key: _as_model(value, key, length_bucket_width) for key, value in given.items()}


def _as_model(given: Any, name: str | None, length_bucket_width: int) -> Model:
    if all(hasattr(given, attribute) for attribute in ("graph", "admit", "executor", "joinable")):
        if length_bucket_width:
            raise InvalidInput(
                f"length_bucket_width={length_bucket_width} is for plain callables; rows of a loaded model join when "
                "their shapes are equal (a CallableModel takes length_bucket_width itself)"
            )
        return cast(Model, given)
    if callable(getattr(given, "forward", None)) and hasattr(given, "state_dict"):
        raise InvalidInput(
            f"a {type(given).__name__} looks like a torch module: load it first, with "
            "lazybatch.load(module, example_inputs=...)"
        )
    if isinstance(given, str | bytes) or not callable(given):
        raise InvalidInput(
            f"expected a model from lazybatch.load, a callable list[inputs] -> list[outputs], or a mapping of names to "
            f"such, got {given!r}"
        )
    return CallableModel(given, name=name, length_bucket_width=length_bucket_width)


def default_policy(models: Mapping[str, Model], table: Any, *, workers: int = 1, knobs: bool = False) -> str:
    """The policy where none was chosen.

    "graph" when a callable has no latency table to plan with, when there are several workers (plans are for one
    processor), or when knobs of graph batching (max_delay, size_budget) were set; else the default of all.
    """
    for name, model in models.items():
        if isinstance(model, CallableModel) and _per_model(table, name, len(models), LatencyTable) is None:
            return "graph"
    return "graph" if knobs or workers != 1 else policies.DEFAULT


def assemble(
    models: Mapping[str, Model],
    options: BatcherOptions,
    *,
    table: Any,
    allow_foreign_table: bool,
    limits: Mapping[str, Any],
) -> list[Served]:
    """Check every model with its limits and table; measure those that need a table and have none.

    limits: the fields of `ModelOptions`, each one value for all models or a mapping by name.
    Raises `InvalidInput`, `TableMismatch`; `ExecutionError` when a model fails while it is being measured.
    """
    for option, value in (("table", table), *limits.items()):
        if isinstance(value, Mapping) and (unknown := [key for key in value if key not in models]):
            raise InvalidInput(f"{option} names the unknown model {unknown[0]!r}; known are {', '.join(models)}")
    predicts = policies.needs_table(options.policy)
    served = []
    for name, model in models.items():
        chosen = {option: _per_model(value, name, len(models)) for option, value in limits.items()}
        own = ModelOptions(**{option: value for option, value in chosen.items() if value is not None})
        if options.workers > 1 and not isinstance(model, CallableModel):
            raise InvalidInput(
                f"workers={options.workers} is for callables; model {name!r} runs on the engine's own thread"
            )
        if own.allowed_batch_sizes and model.graph.loops:
            raise InvalidInput(
                f"allowed_batch_sizes={list(own.allowed_batch_sizes)}: model {name!r} has loops, where rows join and "
                "leave at every iteration and batches are not padded; leave it out, or give a mapping by model name"
            )
        found = _per_model(table, name, len(models), LatencyTable)
        if found is not None and not isinstance(found, LatencyTable):
            raise InvalidInput(f"the table of model {name!r} must be a LatencyTable, got {found!r}")
        if found is not None:
            check_table(found, model, allow_foreign_table)
        elif predicts or own.late == "drop":
            found = _measure(name, model, own, predicts)
        served.append(Served(name, model, own, found))
    return served


def _per_model(value: Any, name: str, models: int, kind: type | None = None) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if kind is not None and value is not None and models > 1:
        raise InvalidInput(f"with several models, give a mapping from model name to {kind.__name__}, got {value!r}")
    return value


def _measure(name: str, model: Model, options: ModelOptions, predicts: bool) -> LatencyTable:
    if isinstance(model, CallableModel):
        way_out = "policy='graph'" if predicts else "late='serve': late='drop' must know how long a row takes"
        raise InvalidInput(
            f"model {name!r} is a callable without a latency table: give table= (see lazybatch.profile with inputs=) "
            f"or use {way_out}"
        )
    most = options.max_batch_size
    sizes = sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | {most})
    _log.info("model %r has no latency table: measuring it for about %g s", name, QUICK_PROFILE_S)
    return profiler.profile(model, tuple(sizes), budget_s=QUICK_PROFILE_S, repeats=_QUICK_REPEATS)


def _check_sla(one: Served, lanes: Sequence[LaneSpec], sla: float, max_delay: float) -> None:
    """Refuse a target that no row can meet, not even the shortest that was seen or the shortest padded one; warn of one
    that most rows miss, or all of a padded length. lanes: those of this one model."""
    rows = lanes[0].allowed_sizes[0] if lanes[0].allowed_sizes else 1
    fastest = [table for lane in lanes if (table := lane.unrolled("shortest")) is not None]
    if not fastest:
        return
    alone_ns = min(table.whole_ns(rows) for table in fastest)
    if to_ns(sla) < alone_ns:
        raise InvalidInput(f"model {one.name!r}: sla={sla} s cannot be met: one row alone takes {alone_ns / 1e9:.6f} s")
    if one.options.late == "drop" and to_ns(sla) < to_ns(max_delay) + alone_ns:
        raise InvalidInput(
            f"model {one.name!r}: with late='drop', a row that waits for max_delay={max_delay} s is dropped: it takes "
            f"{alone_ns / 1e9:.6f} s alone and sla={sla} s"
        )
    for lane in lanes:
        typical = lane.unrolled("mean")
        if typical is None or to_ns(sla) >= typical.whole_ns(rows):
            continue
        words = [
            f"{lane.trips(k).mean} times {loop.name}" for k, loop in enumerate(lane.graph.loops) if any(lane.lengths)
        ]
        if lane.length is not None:
            words.append(f"padded to {lane.length}")
        if words:
            _log.warning(
                "model %r: sla=%g s is below what a row of %s takes alone, %.6f s (%s)",
                one.name,
                sla,
                "mean length" if lane.length is None else "this length",
                typical.whole_ns(rows) / 1e9,
                ", ".join(words),
            )


def make_policy(options: BatcherOptions, lanes: Sequence[LaneSpec]) -> Policy:
    """The policy object for these lanes; see `lazybatch.policies`. Raises `InvalidInput` for an unknown name."""
    if policies.needs_table(options.policy):
        for lane in lanes:
            _say_unknown_lengths(lane)
    if options.policy != "graph":
        return policies.make_policy(options.policy, lanes)
    return policies.make_policy("graph", lanes, window_ns=to_ns(options.max_delay), size_budget=options.size_budget)


def _say_unknown_lengths(lane: LaneSpec) -> None:
    """Where a policy that predicts knows nothing, it reckons with the maximum, or one iteration where there is none
    (`LaneSpec.trips`): that must not stay unseen."""
    guesses = lane.lengths or (None,) * len(lane.graph.loops)
    unknown = [loop.name for loop, guess in zip(lane.graph.loops, guesses, strict=True) if guess is None]
    if unknown:
        _log.warning(
            "model %r: how often rows go round %s is not known, so they are taken to go round once, or as often as "
            "they may: give lengths= (lazybatch.load_lengths reads what `lazybatch characterize` writes)",
            lane.graph.model,
            ", ".join(f"loop {name!r}" for name in unknown),
        )


def to_lanes(
    served: Sequence[Served], options: BatcherOptions, lengths: Mapping[str, Lengths] = MappingProxyType({})
) -> list[LaneSpec]:
    """The models as the scheduler sees them: a lane each, or one per length where rows are padded to several.

    Raises `InvalidInput` for a target that no row can meet, the engine's own time included.
    """
    levels = {
        priority: PriorityLevel(
            None if level.queue_timeout is None else to_ns(level.queue_timeout), on_timeout=level.on_timeout
        )
        for priority, level in options.levels.items()
    }
    lanes = [
        LaneSpec(
            replace(one.model.graph, model=one.name),
            latency=one.table,
            max_batch_size=one.options.max_batch_size,
            queue_capacity=one.options.queue_capacity,
            sla_ns=None if one.options.sla is None else to_ns(one.options.sla),
            joinable=one.model.joinable,
            allowed_sizes=tuple(one.options.allowed_batch_sizes),
            levels=levels,
            ageing_ns=None if options.ageing is None else to_ns(options.ageing),
            late=one.options.late,
            lengths=lengths.get(one.name, ()),
        )
        for one in served
    ]
    by_model = [_by_length(one, lane) for one, lane in zip(served, lanes, strict=True)]
    for one, own in zip(served, by_model, strict=True):
        if one.options.sla is not None:
            _check_sla(one, own, one.options.sla, options.max_delay)
    return [lane for own in by_model for lane in own]


def _by_length(one: Served, lane: LaneSpec) -> list[LaneSpec]:
    """The lanes of a model, of each length that its rows are padded to, with the latencies measured there."""
    if not isinstance(one.model, PaddedModel):
        return [lane]
    lengths = one.model.padded_lengths
    names = [f"{one.name}/{length}" for length in lengths]
    return [
        replace(
            lane,
            graph=replace(lane.graph, model=name),
            latency=None if one.table is None else one.table.at(length),
            length=length,
            wider=tuple(names[number + 1 :]) if one.model.pad.ride else (),
        )
        for number, (name, length) in enumerate(zip(names, lengths, strict=True))
    ]


def to_engine(
    served: Sequence[Served], lanes: Sequence[LaneSpec], opened: Callable[[Executor], object]
) -> list[ServedModel]:
    """Lanes with their executors, memory planned; those of one model share one. Raises `ModelError`, `InvalidInput`.

    opened: told of every executor as soon as there is one, so that its owner can shut it down whatever fails later.
    """
    models = []
    rest = iter(lanes)
    for one in served:
        executor = one.model.executor(max_batch_size=one.options.max_batch_size if one.model.joinable else 1)
        opened(executor)
        count = len(one.model.padded_lengths) if isinstance(one.model, PaddedModel) else 1
        models += [ServedModel(lane, executor, one.pooled, one.name) for lane in islice(rest, count)]
    return models


def memory_of(executor: object) -> MemoryPlan | None:
    """What an executor plans to use; None where it does not say."""
    memory: Callable[[], MemoryPlan] | None = getattr(executor, "memory", None)
    return None if memory is None else memory()
