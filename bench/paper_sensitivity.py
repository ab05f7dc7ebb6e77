"""What the paper said of its sensitivity studies, what the runs give, and why they differ.

Owns: the statements about the assumed decoder length, the largest batch and other lengths.
Must not know: how rows were made.
"""

from __future__ import annotations

import statistics

from bench.paper_claim import Claim, average, both
from bench.paper_results import Results
from bench.paper_studies import MAIN


def dec_timesteps(results: Results) -> Claim:
    """Sensitivity to the assumed decoder length."""

    def line(policy: str) -> str:
        steps = sorted({row["dec_timesteps"] for row in results.of("dec_timesteps", policy=policy)})
        shares = [100 * results.mean("violations", "dec_timesteps", policy=policy, dec_timesteps=k) for k in steps]
        return ", ".join(f"{share:.1f} % at {k}" for k, share in zip(steps, shares, strict=True))

    return Claim(
        "dec_timesteps: violations of Transformer at 60 ms",
        "0 % at 32, 36 % at 10",
        f"lazy: {line('lazy')}",
        "every request decodes 18 steps here, so a guess of 10 errs by 8 steps; in the paper lengths vary and the long "
        "ones err by more. At 1000/s, a third of capacity",
    )


def max_batch(results: Results) -> Claim:
    """Sensitivity to the largest batch."""

    def line(policy: str) -> str:
        parts = []
        for rows in sorted({row["max_batch"] for row in results.of("max_batch")}):
            ratios = [
                average(results.ratio("max_batch", policy, choose=statistics.fmean, max_batch=rows, model=model))
                for model in MAIN
                if results.of("max_batch", model=model)
            ]
            parts.append(f"{statistics.fmean(ratios):.1f} at {rows}")
        return ", ".join(parts)

    return Claim(
        "Largest batch 16 / 32: latency of graph batching (all windows) over LazyBatching's",
        "12 / 14",
        both(results, line),
        "a smaller largest batch closes windows sooner, so it helps graph batching; otherwise as the abstract's figure",
    )


def language_pairs(results: Results) -> Claim:
    """Sensitivity to lengths."""

    def line(policy: str) -> str:
        pairs = list(dict.fromkeys(row["pair"] for row in results.of("language_pairs")))
        ratios = [average(results.ratio("language_pairs", policy, pair=pair)) for pair in pairs]
        return ", ".join(f"{pair} {ratio:.2f}" for pair, ratio in zip(pairs, ratios, strict=True))

    return Claim(
        "Other language pairs: latency of the best window over LazyBatching's",
        "remains intact",
        both(results, line),
        "lengths move S(1), and the ratio with it; the paper gives no lengths",
    )
