"""Which runs each figure and sensitivity study of the paper needs.

Owns: the studies, as lists of cells.
Must not know: how a cell runs, what is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from bench.dominance_runs import target_blind
from bench.paper_cells import GPU, Cell, table
from lazybatch.bounds import graph_capacity_rps, row_cost_ns

MAIN = ("resnet50", "gnmt", "transformer")
OTHERS = ("vgg16", "mobilenet", "las", "bert-base")
TOGETHER = ("mobilenet", "resnet50", "transformer", "gnmt")
OVERLOAD = 1.5
WINDOWS_MS = (5, 25, 50, 75, 95)
PAIRS = {"18,18": "as English-German", "18,24": "longer output", "18,12": "shorter output", "24,18": "longer input"}
"""Mean words in and out; the paper names Russian-English and English-French without lengths."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run. policies: besides the windows of graph batching. seconds: runs at high rates last so long."""

    policies: tuple[str, ...]
    rates: tuple[float, ...] = (16, 64, 128, 250, 500, 1000, 2000, 4000)
    loads: tuple[float, ...] = (0.05, 0.2, 0.5, 0.8)
    windows_ms: tuple[float, ...] = WINDOWS_MS
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    requests: int = 1000
    seconds: float = 1.0
    targets_ms: tuple[float, ...] = (10, 20, 30, 40, 60, 80, 100)
    models: tuple[str, ...] = MAIN
    others: tuple[str, ...] = OTHERS
    batches: tuple[int, ...] = (16, 32, 64)
    pairs: tuple[str, ...] = tuple(PAIRS)

    @property
    def windowed(self) -> tuple[str, ...]:
        """Graph batching with each of the windows."""
        return tuple(f"graph:{window:g}" for window in self.windows_ms)

    @property
    def all_policies(self) -> tuple[str, ...]:
        """Every policy, GraphB(0) (called "graph") among them."""
        return (*self.policies, *self.windowed)


@dataclass(slots=True)
class _Maker:
    """Cells of one study."""

    plan: Plan
    study: str
    cells: list[Cell] = field(default_factory=list)

    def add(self, profiles: Sequence[str], policy: str, rate_rps: float, **options: Any) -> None:
        """One cell per seed. seeds: at most so many."""
        requests = options.pop("requests", max(self.plan.requests, round(rate_rps * self.plan.seconds)))
        for seed in self.plan.seeds[: options.pop("seeds", None)]:
            self.cells.append(Cell(self.study, tuple(profiles), policy, rate_rps, seed, requests, **options))


def by_load(plan: Plan) -> Iterator[Cell]:
    """Figures 12 and 13: mean latency and throughput by rate; bounds of the same traces beside them."""
    make = _Maker(plan, "fig12_13")
    for model, rate, policy in product(plan.models, plan.rates, (*plan.all_policies, "bounds")):
        make.add([model], policy, rate)
    yield from make.cells


def distribution(plan: Plan) -> Iterator[Cell]:
    """Figure 14: the distribution of latencies at a high rate."""
    make = _Maker(plan, "fig14")
    for policy in plan.all_policies:
        make.add(["transformer"], policy, 500, cdf=True)
    yield from make.cells


def by_target(plan: Plan) -> Iterator[Cell]:
    """Figure 15: violations by SLA target, at two high rates."""
    make = _Maker(plan, "fig15")
    for model, rate, policy in product(plan.models, (500, 1000), plan.all_policies):
        if target_blind(policy):
            make.add([model], policy, rate, judged_ms=plan.targets_ms)
            continue
        for target in plan.targets_ms:
            make.add([model], policy, rate, sla_ms=target, judged_ms=(target,))
    yield from make.cells


def other_models(plan: Plan) -> Iterator[Cell]:
    """Figure 16: the other networks, by load (rate over capacity); BERT and VGG are too slow for the rates of 12."""
    make = _Maker(plan, "fig16")
    for model in plan.others:
        _by_share(make, model, plan)
    yield from make.cells


def gpu(plan: Plan) -> Iterator[Cell]:
    """Figure 17: the GPU-like profile, by load."""
    make = _Maker(plan, "fig17")
    _by_share(make, GPU, plan)
    yield from make.cells


def _by_share(make: _Maker, model: str, plan: Plan) -> None:
    capacity = graph_capacity_rps(table(model), 64)
    for load in plan.loads:
        for policy in plan.all_policies:
            make.add([model], policy, load * capacity, extra={"load": load})


def dec_timesteps(plan: Plan) -> Iterator[Cell]:
    """Sensitivity to what the paper's slack predictor assumes of the decoder, at a target of 60 ms."""
    make = _Maker(plan, "dec_timesteps")
    for steps in (10, 18, 32, 48):
        make.add(["transformer"], "lazy", 1000, sla_ms=60, dec_timesteps=steps)
    yield from make.cells


def max_batch(plan: Plan) -> Iterator[Cell]:
    """Sensitivity to the largest batch."""
    make = _Maker(plan, "max_batch")
    for model, rows, policy in product(plan.models, plan.batches, plan.all_policies):
        make.add([model], policy, 500, max_batch=rows)
    yield from make.cells


def language_pairs(plan: Plan) -> Iterator[Cell]:
    """Sensitivity to the lengths of the translation."""
    make = _Maker(plan, "language_pairs")
    for lengths, policy in product(plan.pairs, plan.all_policies):
        make.add([f"transformer@{lengths}"], policy, 250, extra={"pair": PAIRS[lengths]})
    yield from make.cells


def together(plan: Plan) -> Iterator[Cell]:
    """Four models on one processor, each with the same rate and a target of ten of its own runs, by load."""
    make = _Maker(plan, "colocation")
    cost_ns = sum(row_cost_ns(table(model), 64) for model in TOGETHER)
    for load in plan.loads:
        for policy in plan.all_policies:
            rate = load * 1e9 / cost_ns
            make.add(TOGETHER, policy, rate, sla_runs=10, requests=plan.requests // 2, extra={"load": load})
    yield from make.cells


def overload(plan: Plan) -> Iterator[Cell]:
    """One and a half times the capacity, late rows dropped: how many are on time, and how many could be."""
    make = _Maker(plan, "overload")
    for model in (*plan.models, GPU):
        made = table(model)
        loose = max(10.0, 2 * made.whole_ns(64) / made.whole_ns(1))
        for target, runs in (("tight", 2.5), ("loose", loose)):
            for policy in (*plan.all_policies, "bounds"):
                extra = {"load": OVERLOAD, "target": target}
                rate = OVERLOAD * graph_capacity_rps(made, 64)
                make.add([model], policy, rate, sla_runs=runs, late="drop", requests=2 * plan.requests, extra=extra)
    yield from make.cells


def past_saturation(plan: Plan) -> Iterator[Cell]:
    """The same rate with all rows served, for long: does throughput hold where the queue only grows?"""
    make = _Maker(plan, "past_saturation")
    for model in (*plan.models, GPU):
        made = table(model)
        loose = max(10.0, 2 * made.whole_ns(64) / made.whole_ns(1))
        for policy in plan.policies:
            capacity = graph_capacity_rps(made, 64)
            extra = {"load": OVERLOAD, "capacity_rps": capacity}
            make.add(
                [model], policy, OVERLOAD * capacity, sla_runs=loose, requests=20 * plan.requests, extra=extra, seeds=1
            )
    yield from make.cells


STUDIES: Mapping[str, Callable[[Plan], Iterator[Cell]]] = {
    "fig12_13": by_load,
    "fig14": distribution,
    "fig15": by_target,
    "fig16": other_models,
    "fig17": gpu,
    "dec_timesteps": dec_timesteps,
    "max_batch": max_batch,
    "language_pairs": language_pairs,
    "colocation": together,
    "overload": overload,
    "past_saturation": past_saturation,
}
