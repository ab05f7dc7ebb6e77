"""Names of policies, as scripts read them."""

from __future__ import annotations

import pytest

from bench.variants import USUAL, Variant, controls_for, joinable, variant, variants
from lazybatch.core.graph import NodeGraph
from lazybatch.core.lane import LaneSpec
from lazybatch.core.latency import LatencyTable
from lazybatch.core.policies import GraphBatching
from lazybatch.core.policies.lookahead import Lookahead
from lazybatch.errors import InvalidInput

TOY = LatencyTable.uniform("toy", 3, 4_000_000, 1_000_000, (1, 2, 4))


def test_windows_belong_to_graph_batching() -> None:
    """graph means no window; graph:W has W milliseconds, for the simulator and for a batcher alike."""
    assert variant("graph") == variant("graph:0") == Variant("graph:0", "graph")
    found = variant("graph:2.5")
    made = found.simulated({})
    assert isinstance(made, GraphBatching)
    assert made.window_ns == 2_500_000
    assert found.live() == {"policy": "graph", "max_delay": 0.0025}
    assert found.is_graph
    assert not found.sees_target


@pytest.mark.parametrize("text", ["magic", "lazy:5", "graph:", "graph:-1", "graph:nan", "graph:x", ""])
def test_nonsense_is_refused(text: str) -> None:
    """Unknown names, windows that cannot be, and windows of policies that have none."""
    with pytest.raises(InvalidInput, match="policy"):
        variant(text)


def test_the_usual_ones() -> None:
    """Without names, every usual policy is compared, in order; with names, each once."""
    assert [one.title for one in variants(None)] == list(USUAL)
    assert [one.title for one in variants(["lazy", "graph", "graph:0"])] == ["lazy", "graph:0"]


def test_only_lookahead_consults_controls() -> None:
    """Controls are solved where somebody asks for them, with the model's largest batch; the policy gets them."""
    lane = LaneSpec(NodeGraph.chain("toy", TOY.nodes), TOY, 4)
    assert controls_for(variants(["serial", "lazy"]), [lane]) == {}
    controls = controls_for(variants(["lookahead"]), [lane])
    assert controls["toy"].rows_max == 4
    assert isinstance(variant("lookahead").simulated(controls), Lookahead)
    assert variant("lookahead").sees_target
    assert joinable(TOY)
