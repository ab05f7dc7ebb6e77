"""ResNet-50 at 224 x 224 (He et al., CVPR 2016), one node per convolution.

Owns: the network's layers. Must not know: the machine, latency tables.
"""

from __future__ import annotations

from graphs.npu.layers import Convolution, Matrix, Vector
from graphs.npu.network import Network, Node

STAGES = ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3))
"""Pixels a side, width of the bottleneck, blocks."""


def build() -> Network:
    """A stem, sixteen bottlenecks, a classifier. The stride is in the 3 x 3 convolution."""
    pooled = Vector(9 * 56 * 56 * 64, 112 * 112 * 64 + 56 * 56 * 64)
    nodes = [Node("conv1", (Convolution(112, 3, 64, 7, 2), pooled))]
    channels = 64
    for stage, (size, width, blocks) in enumerate(STAGES, start=2):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            prefix = f"conv{stage}_{block + 1}"
            nodes.append(Node(f"{prefix}a", (Convolution(size * stride, channels, width, 1),)))
            nodes.append(Node(f"{prefix}b", (Convolution(size, width, width, 3, stride),)))
            last = [Convolution(size, width, 4 * width, 1)]
            if block == 0:
                last.append(Convolution(size, channels, 4 * width, 1, stride))
            nodes.append(Node(f"{prefix}c", tuple(last)))
            channels = 4 * width
    nodes.append(Node("fc", (Vector(49 * 2048, 50 * 2048), Matrix(2048, 1000))))
    return Network("resnet50", "He et al. 2016, table 1", tuple(nodes))
