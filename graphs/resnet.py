"""ResNet-50: He et al., "Deep Residual Learning for Image Recognition" (2015), table 1, 50-layer column.

Owns: the network. Must not know: how it is exported or served.

The stride of a down-sampling block sits on its 3x3 convolution, as in all common trained versions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.weights import seed_convolutional

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""(blocks, width of the 3x3 convolution, stride of the first block) for conv2_x to conv5_x."""
EXPANSION = 4


def _convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand, added to the input (projected where the shape changes)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * EXPANSION
        self.reduce = _convolution(channels_in, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, channels_out, 1)
        changes = stride != 1 or channels_in != channels_out
        self.shortcut = _convolution(channels_in, channels_out, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, 4 * width, H / stride, W / stride)."""
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.middle(y))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """(N, 3, 224, 224) float32 -> logits (N, 1000)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = _convolution(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks: list[nn.Module] = []
        channels = 64
        for count, width, stride in STAGES:
            for index in range(count):
                blocks.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.blocks(self.pool(torch.relu(self.stem(image))))
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


def build(seed: int) -> nn.Module:
    """ResNet-50 in eval mode with seeded weights."""
    model = ResNet50()
    seed_convolutional(model, torch.empty(2, 3, 224, 224), seed)
    return model
