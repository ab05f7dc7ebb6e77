"""What the paper said of its figures, what the runs give, and why they differ.

Owns: the statements about single models by load, and the list of all statements.
Must not know: how rows were made. "Average" is the mean over rates or loads of the ratios of `paper_results`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from bench.common import Report
from bench.paper_claim import Claim, average, both, triple, usual
from bench.paper_results import Results
from bench.paper_sensitivity import dec_timesteps, language_pairs, max_batch
from bench.paper_sharing import colocation, overload, past_saturation
from bench.paper_studies import MAIN
from graphs.npu import NETWORKS, PAPER_MS, latency_table

LATENCY = {"resnet50": 5.3, "gnmt": 2.7, "transformer": 2.5}
THROUGHPUT = {"resnet50": 1.1, "gnmt": 1.3, "transformer": 1.2}


def fig3(results: Results) -> Claim:
    """Throughput by batch size."""
    table = latency_table(NETWORKS["resnet50"]())
    rate = {rows: rows * 1e9 / table.whole_ns(rows) for rows in (1, 2, 4, 8, 16, 32, 64)}
    saturated = next(rows for rows in rate if rate[rows] >= 0.9 * rate[64])
    return Claim(
        "Fig. 3: throughput of ResNet by batch size",
        "saturates beyond 16",
        f"{rate[1]:.0f}/s at 1, {rate[16]:.0f} at 16, {rate[64]:.0f} at 64; 90 % of the last from {saturated} on",
        "the cost of filling the array is shared by the rows of a batch; the machine's formulas, not measured",
    )


def single(results: Results) -> Claim:
    """Table II."""
    ours = {model: latency_table(NETWORKS[model]()).whole_ns(1) / 1e6 for model in PAPER_MS}
    return Claim(
        "Table II: single-batch latency of ResNet / GNMT / Transformer",
        triple(PAPER_MS.values(), "g") + " ms (unverified)",
        triple(ours.values()) + " ms",
        "an analytic model; GNMT as published (8 + 8 layers, the context fed to every decoder layer) reads more "
        "weights per step than the paper's time allows for at 18 words",
    )


def _bounded(results: Results, model: str) -> bool:
    return bool(results.of("fig12_13", policy="bounds", model=model))


def fig12(results: Results, report: Report) -> Claim:
    """Latency against the best window."""
    for model, target in LATENCY.items():
        if results.of("fig12_13", model=model):
            ratio = usual(results.ratio("fig12_13", results.ours, model=model))
            report.at_least(f"latency_over_best_window/{model}/{results.ours}", ratio, target, "x")
    models = [model for model in MAIN if results.of("fig12_13", model=model)]

    def line(policy: str) -> str:
        windows = [usual(results.ratio("fig12_13", policy, model=model)) for model in models]
        free = [usual(results.ratio("fig12_13", policy, pool=("graph",), model=model)) for model in models]
        return f"{triple(windows)} times the best window, {triple(free)} times GraphB(0)"

    limits = triple(usual(results.limit("lower_bound_ms", model)) for model in models if _bounded(results, model))
    return Claim(
        "Fig. 12: latency of the best graph batching over LazyBatching's",
        triple(LATENCY.values(), "g"),
        both(results, line) + f"; no policy can have more than {limits}",
        "a window costs every lone request its length, so the ratio is at most about (S(1) + window) / S(1): with the "
        "shortest window, 5 ms, 6 for ResNet, 3 for Transformer, 1.5 for GNMT, and less where queues fill batches by "
        "themselves. The limit is the best window's mean over the lower bound of the same arrivals. Windows of 10 ms "
        "and more alone would let GNMT have 2. Against GraphB(0), which the paper leaves out, nothing of it remains",
    )


def headline(results: Results) -> Claim:
    """The abstract."""

    def line(policy: str) -> str:
        latency = [
            usual(results.ratio("fig12_13", policy, choose=statistics.fmean, model=model))
            for model in MAIN
            if results.of("fig12_13", model=model)
        ]
        return f"{statistics.fmean(latency):.1f} times the latency of all windows averaged"

    return Claim(
        "Abstract: response time, throughput, SLA satisfaction over graph batching",
        "15 / 1.5 / 5.5 times",
        both(results, line),
        "an average over all windows, the longest included; it measures the windows more than the policy",
    )


def fig13(results: Results, report: Report) -> Claim:
    """Throughput at the highest rate."""
    found: dict[str, list[float]] = {}
    for model, target in THROUGHPUT.items():
        if not results.of("fig12_13", model=model):
            continue
        for policy in dict.fromkeys(("lazy", results.ours)):
            ratios = results.ratio("fig12_13", policy, "throughput_rps", choose=max, model=model)
            found.setdefault(policy, []).append(1 / ratios[max(ratios)])
        report.at_least(f"throughput_over_best_window/{model}/{results.ours}", found[results.ours][-1], target, "x")
    capacities = [
        rows[0]["node_capacity_rps"] / rows[0]["capacity_rps"]
        for model in MAIN
        if (rows := results.of("fig12_13", policy="bounds", model=model))
    ]
    return Claim(
        "Fig. 13: throughput over the best graph batching's",
        triple(THROUGHPUT.values(), "g"),
        both(results, lambda policy: triple(found[policy]) + " at the highest rate, past saturation")
        + f"; capacity at node level over graph level: {triple(capacities)}",
        "with open-loop arrivals every policy that keeps up serves exactly the offered rate, and past saturation graph "
        "batching runs full batches, which no policy exceeds on these profiles (capacities at node and at graph level "
        "are equal); the paper's ratios can come from runs too short for a long window, whose last batches end late",
    )


def fig14(results: Results) -> Claim:
    """The tail."""
    p99 = {policy: results.mean("p99_ms", "fig14", policy=policy) for policy in results.windowed}
    least = min(p99, key=lambda policy: p99[policy])
    return Claim(
        "Fig. 14: 99th percentile of Transformer, LazyBatching against the best graph batching",
        "54 against 123 ms",
        both(results, lambda policy: f"{results.mean('p99_ms', 'fig14', policy=policy):.1f}")
        + f"; {least}: {p99[least]:.1f}; GraphB(0): {results.mean('p99_ms', 'fig14', policy='graph'):.1f} ms",
        "at 500/s; the paper does not say at which rate. 123 ms is the tail of a window near 95 ms; 54 ms of a machine "
        "near saturation. Requests here all have the mean length; mixed lengths would widen every tail",
    )


def _thresholds(results: Results, policy: str, rate: float) -> list[str]:
    found = []
    for model in MAIN:
        rows = results.of("fig15", model=model, policy=policy, rate_rps=rate)
        late: dict[float, list[float]] = {}
        for row in rows:
            for target, share in row["violations_at"].items():
                late.setdefault(float(target), []).append(share)
        good = [t for t in sorted(late) if all(max(late[u]) <= 0.001 for u in late if u >= t)]
        found.append(f"{good[0]:g}" if good else "none" if rows else "-")
    return found


def fig15(results: Results) -> Claim:
    """Where violations begin."""

    def line(policy: str) -> str:
        return ", ".join(f"{' / '.join(_thresholds(results, policy, rate))} ms at {rate}/s" for rate in (500, 1000))

    return Claim(
        "Fig. 15: smallest SLA target without violations, ResNet / GNMT / Transformer",
        "20 / 40 / 60 ms",
        both(results, line) + f"; GraphB(0): {line('graph')}",
        "the sum of single-batch times (Eq. 2) forbids the batches that high rates need: GNMT needs 9 ms a row, so a "
        "target of 100 ms allows 11 rows in flight where 30 would be served in little more time",
    )


def fig15_windows(results: Results) -> Claim:
    """Violations of the windows."""
    shares = [
        results.mean("violations", "fig15", policy=policy, model=model, rate_rps=500)
        for policy in results.windowed
        for model in MAIN
        if results.of("fig15", model=model)
    ]
    return Claim(
        "Fig. 15: graph batching configurations with more than 50 % violations at 100 ms",
        "two thirds",
        f"{sum(share > 0.5 for share in shares)} of {len(shares)}; the worst has {100 * max(shares):.0f} %",
        "a window of at most 95 ms and a batch of at most 30 ms keep the median below 100 ms at any rate the machine "
        "sustains; more than half can only be late when the machine is overloaded",
    )


def fig16(results: Results) -> Claim:
    """The other networks."""

    def line(policy: str) -> str:
        models = list(dict.fromkeys(row["model"] for row in results.of("fig16")))
        latency = {model: average(results.ratio("fig16", policy, model=model)) for model in models}
        free = {m: average(results.ratio("fig16", policy, pool=("graph",), model=m)) for m in models}
        return ", ".join(f"{model} {latency[model]:.1f} ({free[model]:.2f})" for model in models)

    return Claim(
        "Fig. 16: latency of the best graph batching over LazyBatching's, VGG / MobileNet / LAS / BERT",
        "1.5 on average",
        both(results, line) + " times the best window (GraphB(0))",
        "ratios to windows follow S(1) as in Fig. 12; BERT at 128 tokens fills the array alone and gains nothing from "
        "batches, so serial order is best there",
    )


def fig17(results: Results) -> Claim:
    """The GPU."""

    def line(policy: str) -> str:
        every = [
            ratio for window in results.windowed for ratio in results.ratio("fig17", policy, pool=(window,)).values()
        ]
        free = results.ratio("fig17", policy, pool=("graph",)).values()
        return f"{min(every):.2f} to {max(every):.1f} times the windows, {min(free):.2f} to {max(free):.2f} GraphB(0)"

    return Claim(
        "Fig. 17: latency of graph batching over LazyBatching's on a GPU",
        "1.4 to 56",
        both(results, line),
        "S(1) is 7.5 ms on this profile, so (7.5 + 95) / 7.5 = 14 is the most that any window can lose; 56 needs a run "
        "of about 1 ms, which is what the time to enqueue 52 layers without waiting for them would be",
    )


def oracle(results: Results) -> Claim:
    """Eq. 2 against exact tables."""
    if "oracle" not in results.policies:
        return Claim("Oracle (exact node times)", "LazyBatching is competitive", "not run", "the policy was not chosen")
    ratios = [
        usual(results.ratio("fig12_13", "oracle", pool=("lazy",), model=model))
        for model in MAIN
        if results.of("fig12_13", model=model)
    ]
    return Claim(
        "Oracle (exact node times): latency of LazyBatching over its",
        "competitive",
        triple(ratios),
        "both preempt whenever slack allows, without asking whether it pays; exact times admit more",
    )


def claims(results: Results, report: Report, ran: Iterable[str]) -> list[Claim]:
    """All statements whose studies ran; figures go into the report."""
    done = set(ran)
    found = [fig3(results), single(results)]
    if "fig12_13" in done:
        found += [fig12(results, report), headline(results), fig13(results, report), oracle(results)]
    plain: dict[str, list[Callable[[Results], Claim]]] = {
        "fig14": [fig14],
        "fig15": [fig15, fig15_windows],
        "fig16": [fig16],
        "fig17": [fig17],
        "dec_timesteps": [dec_timesteps],
        "max_batch": [max_batch],
        "language_pairs": [language_pairs],
    }
    found += [make(results) for study, makers in plain.items() if study in done for make in makers]
    shared = {"colocation": colocation, "overload": overload, "past_saturation": past_saturation}
    return found + [make(results, report) for study, make in shared.items() if study in done]
