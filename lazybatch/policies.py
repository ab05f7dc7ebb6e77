"""Policies by their public names, ready to decide: what the API, the command line and benchmarks make them with.

Owns: `make_policy`, the names it takes, the default's name, and what a policy given as an object must have.
Must not know: how policies decide (`core.policies`), how controls are solved or kept.

The registry of the pure core cannot make `lookahead`: that one consults a control solved for each model's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lazybatch.controls import control_of, loop_controls_of
from lazybatch.core import policies
from lazybatch.core.lane import LaneSpec
from lazybatch.core.policies.base import Policy
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.core.policies.riding import Riding
from lazybatch.errors import InvalidInput

LOOKAHEAD = "lookahead"
DEFAULT = LOOKAHEAD
"""The policy where latency tables are there; without one it is "graph"."""
RIDDEN = frozenset({LOOKAHEAD, "graph", "lazy", "oracle"})
"""Policies that take narrower rows along where lanes allow it. The others are defined by what a batch may hold."""


def names() -> tuple[str, ...]:
    """The names of all policies, the default first."""
    return (LOOKAHEAD, *policies.names())


def check_policy(policy: Any) -> None:
    """Raise `InvalidInput` for what is neither the name of a policy nor an object that can be one."""
    if isinstance(policy, str):
        if policy not in names():
            raise InvalidInput(f"unknown policy {policy!r}; known are {', '.join(names())}")
    elif isinstance(policy, type) or not callable(getattr(policy, "decide", None)):
        raise InvalidInput(
            f"policy must be one of {', '.join(names())}, or an object with a method decide(view, now), got {policy!r}"
        )
    elif not isinstance(getattr(policy, "needs_table", None), bool):
        raise InvalidInput(
            f"policy {policy!r} does not say whether it needs latency tables: write `needs_table = False` "
            f"(or True) into class {type(policy).__name__}"
        )


def needs_table(policy: str | Policy) -> bool:
    """Whether a policy predicts with latency tables. Raises `InvalidInput` for an unknown one."""
    check_policy(policy)
    if isinstance(policy, str):
        return policy == LOOKAHEAD or policies.by_name(policy).needs_table
    return policy.needs_table


def make_policy(policy: str | Policy, lanes: Sequence[LaneSpec], **options: Any) -> Policy:
    """A policy for these lanes. A policy given as an object is returned as it is.

    options: of the policy's constructor, for example ``window_ns`` of "graph". For "lookahead", each lane's control is
    taken from the cache, or solved (0.2 s for a maximum batch of 16, 0.4 s for 64; that of a loop 0.2 s for 8 rows,
    2 to 5 s for 64) and kept there.
    Where rows of some lanes may ride in batches of wider ones, a policy of `RIDDEN` is made a `Riding` one.
    Raises `InvalidInput` for an unknown policy, options it does not take, or a lane without the table it needs.
    """
    check_policy(policy)
    if not isinstance(policy, str):
        if options:
            raise InvalidInput(f"policy {policy!r} is ready made and takes no options, got {sorted(options)}")
        return policy
    made = _by_name(policy, lanes, options)
    return Riding(made) if policy in RIDDEN and any(spec.wider for spec in lanes) else made


def _by_name(policy: str, lanes: Sequence[LaneSpec], options: Mapping[str, Any]) -> Policy:
    if policy != LOOKAHEAD:
        return policies.by_name(policy, **options)
    controls = {spec.graph.model: control_of(spec) for spec in lanes}
    loops = {spec.graph.model: loop_controls_of(spec) for spec in lanes if spec.graph.loops}
    try:
        return cast(Policy, Lookahead(controls, loops, **options))
    except TypeError:
        raise InvalidInput(f"policy {policy!r} does not take the options {sorted(options)}") from None
