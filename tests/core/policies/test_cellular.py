"""Cellular batching on chains: graph batching without a window, decision for decision."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lazybatch.core.policies import Cellular, GraphBatching
from lazybatch.core.request import Request
from lazybatch.simulator import simulate
from tests.core.kit import lane_spec, linear, row


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(
        st.tuples(st.integers(0, 300), st.sampled_from("ab"), st.sampled_from("xxy"), st.integers(0, 1)), max_size=30
    )
)
def test_on_chains_it_is_graph_batching_without_a_window(gaps: list[tuple[int, str, str, int]]) -> None:
    """On any trace of two models, mixed signatures and priorities, the decision logs are equal."""
    requests: list[Request] = []
    at_ns = 0
    for id, (gap, model, signature, priority) in enumerate(gaps):
        at_ns += gap
        requests.append(row(id, at_ns, model=model, signature=signature, priority=priority))
    lanes = [lane_spec(linear(model, nodes=3), max_batch_size=4) for model in "ab"]
    cellular, graph = (simulate(lanes, policy, requests) for policy in (Cellular(), GraphBatching(0)))
    assert cellular.scheduler.decisions == graph.scheduler.decisions
    assert cellular.latencies_ns == graph.latencies_ns
