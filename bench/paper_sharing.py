"""What happens where the processor is short: four models on it, or more load than it can take.

Owns: the statements and figures of co-location and overload.
Must not know: how rows were made.
"""

from __future__ import annotations

from bench.common import Report
from bench.paper_claim import Claim, average, both, triple
from bench.paper_results import Results
from bench.paper_studies import OVERLOAD, TOGETHER


def colocation(results: Results, report: Report) -> Claim:
    """Four models on one processor."""
    everyone = "+".join(TOGETHER)
    short, long = TOGETHER[0], TOGETHER[-1]

    def by_load(policy: str, metric: str, model: str) -> dict[float, float]:
        ratios = results.ratio("colocation", policy, metric, ("graph",), model=model)
        loads = {row["rate_rps"]: row["load"] for row in results.of("colocation", policy=policy)}
        return {loads[rate]: ratio for rate, ratio in ratios.items()}

    for load, ratio in by_load(results.ours, "p99_ms", short).items():
        report.at_least(f"colocation_short_p99/load {load:g}/{results.ours}", ratio, 5, "x lower")
    for load, ratio in by_load(results.ours, "mean_ms", long).items():
        report.at_most(f"colocation_long_mean/load {load:g}/{results.ours}", 1 / ratio, 1.1, "x")

    def line(policy: str) -> str:
        windows = average(results.ratio("colocation", policy, model=everyone))
        free = average(results.ratio("colocation", policy, pool=("graph",), model=everyone))
        tail, mean = by_load(policy, "p99_ms", short), by_load(policy, "mean_ms", long)
        return (
            f"{windows:.2f} times the best window, {free:.2f} GraphB(0); p99 of {short} {triple(tail.values())} times "
            f"lower than under GraphB(0), mean of {long} {triple(1 / value for value in mean.values())} of it"
        )

    loads = " / ".join(f"{load:g}" for load in by_load("lazy", "mean_ms", long))
    return Claim(
        "Co-location of four models: latency, throughput",
        "2.4 / 1.8 times",
        both(results, line),
        f"the four are {', '.join(TOGETHER)} at equal rates (the paper does not name its four), each with a target of "
        f"ten of its own runs; ratios by load ({loads}). Throughput equals the offered rate as in Fig. 13",
    )


def overload(results: Results, report: Report) -> Claim:
    """One and a half times the capacity, late rows dropped."""
    parts, gaps = [], []
    spots = dict.fromkeys((row["model"], row["target"]) for row in results.of("overload"))
    for model, target in spots:
        where = {"model": model, "target": target}
        best = results.paired("goodput", results.ours, "goodput_clairvoyant", "overload", **where)
        limit = results.paired("goodput", results.ours, "goodput_bound", "overload", **where)
        report.at_least(f"goodput_over_clairvoyant/{model}/{target}/{results.ours}", best, 0.9)
        parts.append(f"{model} {target} {best:.2f} ({limit:.2f})")
        gaps.append(
            f"{model} {target} "
            + ", ".join(
                f"{policy} {results.mean('goodput', 'overload', policy=policy, **where):.2f}"
                for policy in dict.fromkeys(("graph", "lazy", results.ours))
            )
        )
    return Claim(
        f"Overload at {OVERLOAD:g} times capacity, late rows dropped: requests on time over the clairvoyant best at "
        "graph level (over the upper bound at node level)",
        "not studied",
        f"{results.ours}: {'; '.join(parts)}. Share of all on time: {'; '.join(gaps)}",
        "the clairvoyant schedule knows every arrival and drops what does not fit; the bound charges a row its share "
        "of the best batch however small its own is, so it need not be within reach of any policy",
    )


def past_saturation(results: Results, report: Report) -> Claim:
    """The same rate, every row served."""
    worst: dict[str, float] = {}
    for row in results.of("past_saturation"):
        share = row["sustained_rps"] / row["capacity_rps"]
        worst[row["policy"]] = min(share, worst.get(row["policy"], share))
    for policy, share in worst.items():
        if policy != "serial":
            report.at_least(f"throughput_past_saturation/{policy}", share, 0.95, " of the best batch's")
    return Claim(
        f"Throughput at {OVERLOAD:g} times capacity, all rows served, over that of the best batch size",
        "not studied",
        ", ".join(f"{policy} {share:.2f}" for policy, share in worst.items()) + " (the worst model)",
        "after the first third of the run. Serial order has the throughput of single rows by definition",
    )
