"""VGG-16: Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015), table 1, configuration D.

Owns: the network. Must not know: how it is exported or served.

Dropout between the fully connected layers is part of training and left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.weights import seed_convolutional

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""(channels, number of 3x3 convolutions); a 2x2 max pooling ends each stage."""
HIDDEN = 4096
POOLED = 7


class VGG16(nn.Module):
    """(N, 3, 224, 224) float32 -> logits (N, 1000)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in STAGES:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * POOLED * POOLED, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(self.features(image).flatten(1))
        return logits


def build(seed: int) -> nn.Module:
    """VGG-16 in eval mode with seeded weights."""
    model = VGG16()
    seed_convolutional(model, torch.empty(2, 3, 224, 224), seed)
    return model
