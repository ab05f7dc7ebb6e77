"""MobileNet (V1, width 1.0) at 224 x 224 (Howard et al., 2017), one node per convolution.

Owns: the network's layers. Must not know: the machine, latency tables.
"""

from __future__ import annotations

from graphs.npu.layers import Convolution, Depthwise, Matrix, Vector
from graphs.npu.network import Network, Node

BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
"""Output channels and stride of the thirteen depthwise-separable blocks."""


def build() -> Network:
    """A stem, thirteen pairs of depthwise and pointwise convolutions, a classifier."""
    nodes = [Node("conv1", (Convolution(112, 3, 32, 3, 2),))]
    size, channels = 112, 32
    for number, (outputs, stride) in enumerate(BLOCKS, start=2):
        size //= stride
        nodes.append(Node(f"conv{number}_dw", (Depthwise(size, channels, 3, stride),)))
        nodes.append(Node(f"conv{number}_pw", (Convolution(size, channels, outputs, 1),)))
        channels = outputs
    nodes.append(Node("fc", (Vector(49 * 1024, 50 * 1024), Matrix(1024, 1000))))
    return Network("mobilenet", "Howard et al. 2017, table 1", tuple(nodes))
