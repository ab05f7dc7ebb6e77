"""What goes in and what is written down, the same for every framework.

Owns: the checks of the options of partitioning, and how a partition came about (its provenance).
Must not know: any framework.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazybatch.errors import InvalidInput
from lazybatch.partition.costs import Costs
from lazybatch.partition.pieces import Piece
from lazybatch.partition.proof.rows import named_dims
from lazybatch.partition.proof.search import Verdict


def check_options(preempt_within_s: float | None, tolerance: float | None) -> None:
    """Raises `InvalidInput` for numbers that make no sense."""
    if preempt_within_s is not None and not preempt_within_s > 0:
        raise InvalidInput(f"preempt_within is {preempt_within_s}, expected seconds above 0")
    if tolerance is not None and not tolerance >= 0:
        raise InvalidInput(f"tolerance is {tolerance}, expected a number of at least 0")


def provenance(
    verdict: Verdict,
    costs: Costs | None,
    pieces: Sequence[Piece],
    preempt_within_s: float | None,
    tolerance: float | None,
    notes: Sequence[str | None],
) -> dict[str, object]:
    """How the partition came about, for whoever reads the manifest."""
    said = [note for note in (verdict.note, *notes) if note]
    longest = max((piece.cost_share for piece in pieces), default=0.0) * (costs.whole_s if costs else 0.0)
    if preempt_within_s is not None and longest > preempt_within_s:
        said.append(
            f"preempt_within is {preempt_within_s:g} s, but the longest node takes {longest:.3g} s: "
            "one operator, or no provable cut in it"
        )
    return {
        "batch_axes": dict(verdict.candidate),
        "probed_sizes": [dict(recipe.sizes) for recipe in verdict.recipes],
        "probed_ranges": [{k: list(v) for k, v in recipe.ranges.items()} for recipe in verdict.recipes],
        "example": _example(verdict),
        "whole_s": costs.whole_s if costs else None,
        "dispatch_s": costs.dispatch_s if costs else None,
        "longest_node_s": longest if costs else None,
        "preempt_within_s": preempt_within_s,
        "tolerance": tolerance,
        "notes": said,
    }


def _example(verdict: Verdict) -> dict[str, object]:
    """Input name -> a shape at one row and the bounds of its integers that the model was seen to accept."""
    recipe = verdict.typical
    if recipe is None:
        return {}
    return {
        port.name: {
            "shape": [recipe.sizes[dim] if isinstance(dim, str) else dim for dim in named_dims(port)],
            "range": list(recipe.ranges[port.name]) if port.name in recipe.ranges else None,
        }
        for port in verdict.ports
    }
