"""Networks for the simulated machine, and their latency tables.

Owns: `Node`, `Network`, `latency_table`.
Must not know: any particular network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from graphs.npu.layers import Layer
from graphs.npu.machine import Machine
from lazybatch.profiles import LatencyTable

BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Node:
    """A scheduled unit: layers that run one after the other."""

    name: str
    layers: tuple[Layer, ...]

    def nanoseconds(self, batch: int, machine: Machine) -> int:
        """Time of the node for a batch of requests."""
        return machine.nanoseconds(sum(machine.layer_cycles(layer.demand(batch, machine)) for layer in self.layers))


@dataclass(frozen=True, slots=True)
class Network:
    """A chain of nodes; loops are unrolled by ``lengths``. source: the paper its shapes are from."""

    name: str
    source: str
    nodes: tuple[Node, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)

    def weights(self) -> int:
        """Bytes of weights read in one pass, at one byte each (recurrent ones once per unrolled node)."""
        machine = Machine()
        return round(sum(layer.demand(1, machine).weight_bytes for node in self.nodes for layer in node.layers))


def latency_table(
    network: Network, machine: Machine | None = None, batch_sizes: Sequence[int] = BATCH_SIZES
) -> LatencyTable:
    """The network's table: every node at every batch size, by formula. Median and high quantile are equal."""
    machine = machine or Machine()
    times = tuple(tuple(node.nanoseconds(b, machine) for b in batch_sizes) for node in network.nodes)
    provenance = {
        "simulated": True,
        "analytic": "graphs.npu.machine",
        "source": network.source,
        "simulated_machine": {"name": "npu-128x128", **asdict(machine)},
        "lengths": dict(network.lengths),
    }
    return LatencyTable(
        network.name, tuple(node.name for node in network.nodes), tuple(batch_sizes), times, times, provenance
    )
