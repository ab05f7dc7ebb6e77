"""Policies as scripts name them: "lazy", or "graph:5" for graph batching with a window of 5 ms.

Owns: `Variant`: reading a name, and making the policy for a simulation or the options for a live batcher.
Must not know: loads, models' files, what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lazybatch import policies
from lazybatch.config import to_ns
from lazybatch.controls import control_of, loop_controls_of
from lazybatch.core.control import Control
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies.base import Policy
from lazybatch.core.policies.joining import LoopControls
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.errors import InvalidInput

BLIND = ("serial", "graph", "cellular", "continuous")
"""Policies that do the same whatever the SLA target."""
USUAL = ("serial", "graph:0", "graph:5", "graph:25", "lazy", "oracle", "lookahead")
"""What is compared where nobody says what."""
USUAL_LOOPS = ("serial", "graph:0", "graph:25", "continuous", "lazy", "oracle", "lookahead")
"""The same for models with loops."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy with its window. title: what it is called in tables. window_s: of policy "graph", else 0."""

    title: str
    policy: str
    window_s: float = 0.0

    @property
    def sees_target(self) -> bool:
        """Whether the SLA target changes what the policy does; one run then stands for all targets."""
        return self.policy not in BLIND

    @property
    def is_graph(self) -> bool:
        """Whether this is what other servers offer: batches of whole graphs, by size or window."""
        return self.policy == "graph"

    @property
    def consults(self) -> bool:
        """Whether it needs the solved control of every model."""
        return self.policy == policies.LOOKAHEAD

    def simulated(self, controls: Mapping[str, Control], loops: LoopControls | None = None) -> Policy:
        """A fresh policy object for the simulator. controls: by model name, where the policy `consults` them.

        loops: likewise, of models with loops.
        """
        if self.consults:
            return Lookahead(controls, loops)
        if self.is_graph:
            return policies.make_policy("graph", (), window_ns=to_ns(self.window_s))
        return policies.make_policy(self.policy, ())

    def policy_for(self, lane: LaneSpec) -> Policy:
        """The same for one lane alone, with what it consults."""
        return self.simulated(controls_for([self], [lane]), loop_controls_for([self], [lane]))

    def live(self) -> dict[str, Any]:
        """Options of `lazybatch.LazyBatcher`."""
        return {"policy": self.policy, "max_delay": self.window_s}


def variant(text: str) -> Variant:
    """Read "policy" or "graph:WINDOW_MS". Raises `InvalidInput` naming what is wrong."""
    name, colon, window = text.partition(":")
    if name not in policies.names():
        raise InvalidInput(f"unknown policy {name!r}; known are {', '.join(policies.names())}, and graph:WINDOW_MS")
    if not colon:
        return Variant("graph:0" if name == "graph" else name, name)
    try:
        window_ms = float(window)
    except ValueError:
        window_ms = math.nan
    if name != "graph" or not 0 <= window_ms < 1e6:
        raise InvalidInput(f"policy {text!r}: expected graph:WINDOW_MS with a window of 0 ms or more")
    return Variant(f"graph:{window_ms:g}", name, window_ms / 1e3)


def variants(texts: Iterable[str] | None) -> list[Variant]:
    """The variants of these names, each once; None: the `USUAL` ones. Raises as `variant` does."""
    return list(dict.fromkeys(variant(text) for text in (USUAL if texts is None else texts)))


def controls_for(chosen: Iterable[Variant], lanes: Iterable[LaneSpec]) -> dict[str, Control]:
    """The controls that these variants consult, by model; none where nobody asks. Part of a second's work each."""
    if not any(one.consults for one in chosen):
        return {}
    return {spec.graph.model: control_of(spec) for spec in lanes}


def loop_controls_for(chosen: Iterable[Variant], lanes: Iterable[LaneSpec]) -> LoopControls:
    """The controls of loops that these variants consult, by model; none where nobody asks, or nothing loops."""
    if not any(one.consults for one in chosen):
        return {}
    return {spec.graph.model: loop_controls_of(spec) for spec in lanes if spec.graph.loops}


def joinable(table: LatencyTable) -> bool:
    """Whether rows of the table's model may share a batch, as far as the table says."""
    return table.provenance.get("joinable") is not False
