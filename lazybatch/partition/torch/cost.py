"""What each operator of a flat graph costs at one row.

Owns: the timing of a graph operator by operator, and the cost of one dispatch.
Must not know: how cuts are chosen from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx

from lazybatch.partition.costs import SURROUNDINGS_S, Costs, least_seconds, runs_of
from lazybatch.partition.proof.rows import Feeds
from lazybatch.partition.torch.flat import Flat


def measure(flat: Flat, feeds: Feeds) -> Costs:
    """Time the whole graph, and share its time among its operators as they take it one by one."""
    tensors = flat.tensors(feeds)
    wait = waiter(tensors[0].device)
    module = flat.whole()

    def whole() -> None:
        with torch.inference_mode():
            module(*tensors)
        wait()

    whole_s = least_seconds(whole)
    least: dict[str, float] = {}
    for _ in range(runs_of(whole_s)):
        with torch.inference_mode():
            _Timer(module, least, wait).run(*tensors)
    seen = tuple(least[node.name] for node in flat.operators())
    return Costs.shared_out(seen, whole_s, dispatch_seconds(tensors[0].device))


def dispatch_seconds(device: torch.device) -> float:
    """What one more node costs when there is nothing to compute."""
    graph = fx.Graph()
    graph.output((graph.call_function(torch.relu, (graph.placeholder("x"),)),))
    module = fx.GraphModule({}, graph)
    value = torch.zeros(1, device=device)
    wait = waiter(device)

    def call() -> None:
        with torch.inference_mode():
            module(value)
        wait()

    return SURROUNDINGS_S + least_seconds(call, runs=101)


def waiter(device: torch.device) -> Callable[[], None]:
    """A call that returns when the device has done all it was asked to; on a CPU it has already."""
    if device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    return lambda: None


class _Timer(fx.Interpreter):
    """Runs a graph and notes the least time each operator took."""

    def __init__(self, module: fx.GraphModule, least: dict[str, float], wait: Callable[[], None]) -> None:
        super().__init__(module)
        self._least, self._wait = least, wait

    def run_node(self, n: fx.Node) -> Any:
        """Run one node against the clock."""
        begun = time.perf_counter()
        value = super().run_node(n)
        self._wait()
        spent = time.perf_counter() - begun
        self._least[n.name] = min(spent, self._least.get(n.name, spent))
        return value
