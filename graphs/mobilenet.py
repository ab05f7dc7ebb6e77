"""MobileNetV2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), table 2, width 1.0.

Owns: the network. Must not know: how it is exported or served.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.weights import seed_convolutional

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""(expansion t, channels c, repeats n, stride s of the first) as in the paper's table."""


def _convolution(
    channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1, *, linear: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
    ]
    return nn.Sequential(*layers if linear else [*layers, nn.ReLU6()])


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1 without activation; added to the input where the shape is kept."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        expand = [_convolution(channels_in, hidden, 1)] if expansion != 1 else []
        self.layers = nn.Sequential(
            *expand,
            _convolution(hidden, hidden, 3, stride, groups=hidden),
            _convolution(hidden, channels_out, 1, linear=True),
        )
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """(N, 3, 224, 224) float32 -> logits (N, 1000)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        channels = 32
        for expansion, channels_out, repeats, stride in BLOCKS:
            for index in range(repeats):
                layers.append(InvertedResidual(channels, channels_out, stride if index == 0 else 1, expansion))
                channels = channels_out
        self.features = nn.Sequential(*layers, _convolution(channels, 1280, 1))
        self.classifier = nn.Linear(1280, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(self.features(image).mean(dim=(2, 3)))
        return logits


def build(seed: int) -> nn.Module:
    """MobileNetV2 in eval mode with seeded weights."""
    model = MobileNetV2()
    seed_convolutional(model, torch.empty(2, 3, 224, 224), seed)
    return model
