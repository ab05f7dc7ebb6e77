"""Several models side by side: one lane each, and whether they can share a scheduler.

Owns: `lanes_by_model`.
Must not know: what is scheduled when; what goes on within a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazybatch.core.lane import Lane, LaneSpec
from lazybatch.core.policies.base import Policy
from lazybatch.errors import InvalidInput


def lanes_by_model(specs: Sequence[LaneSpec], policy: Policy, processors: int) -> dict[str, Lane]:
    """A lane per model, in the order given.

    Raises `InvalidInput` for no models, two of one name, a policy that needs a table a model lacks, models that cannot
    have several processors, and rows that may ride with what is not the same chain.
    """
    if not specs:
        raise InvalidInput("a scheduler needs at least one model")
    if processors < 1:
        raise InvalidInput(f"processors must be at least 1, got {processors}")
    lanes: dict[str, Lane] = {}
    for spec in specs:
        model = spec.graph.model
        if model in lanes:
            raise InvalidInput(f"two models are called {model!r}")
        if policy.needs_table and spec.latency is None:
            raise InvalidInput(f"policy {policy!r} needs a latency table for model {model!r}")
        if processors > 1 and (len(spec.graph) > 1 or spec.graph.loops):
            what = "loops" if spec.graph.loops else f"{len(spec.graph)} nodes"
            raise InvalidInput(f"model {model!r} has {what}: one processor only")
        lanes[model] = Lane(spec, whole=getattr(policy, "whole_batches", False))
    for spec in specs:
        _check_wider(spec, lanes)
    return lanes


def _check_wider(spec: LaneSpec, lanes: Mapping[str, Lane]) -> None:
    """Raise `InvalidInput` where rows of a lane may ride in batches of what is not the same chain."""
    for model in spec.wider:
        other = lanes.get(model)
        if other is None or model == spec.graph.model:
            raise InvalidInput(f"rows of model {spec.graph.model!r} may ride with {model!r}, which is no other model")
        if other.spec.graph.nodes != spec.graph.nodes or spec.graph.loops or other.loops:
            raise InvalidInput(
                f"rows of model {spec.graph.model!r} may ride with {model!r}, whose nodes are not the same chain"
            )
