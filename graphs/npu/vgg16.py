"""VGG-16 at 224 x 224 (Simonyan and Zisserman, ICLR 2015, configuration D), one node per layer with weights.

Owns: the network's layers. Must not know: the machine, latency tables.
"""

from __future__ import annotations

from graphs.npu.layers import Convolution, Layer, Matrix, Vector
from graphs.npu.network import Network, Node

STAGES = ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3))
"""Pixels a side, channels, convolutions; each stage ends in a 2 x 2 pooling."""


def build() -> Network:
    """Thirteen convolutions and three fully connected layers."""
    nodes, channels = [], 3
    for stage, (size, width, count) in enumerate(STAGES, start=1):
        for number in range(1, count + 1):
            layers: list[Layer] = [Convolution(size, channels, width, 3)]
            if number == count:
                layers.append(Vector(size * size * width, size * size * width * 5 // 4))
            nodes.append(Node(f"conv{stage}_{number}", tuple(layers)))
            channels = width
    for number, (inner, columns) in enumerate(((25088, 4096), (4096, 4096), (4096, 1000)), start=6):
        nodes.append(Node(f"fc{number}", (Matrix(inner, columns),)))
    return Network("vgg16", "Simonyan and Zisserman 2015, configuration D", tuple(nodes))
