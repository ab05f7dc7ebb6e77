"""The end of a decoding step: the likeliest token, and whether the row is done.

Owns: `Greedy`. Must not know: any particular network.

Random weights do not know when a sentence ends. So a row brings the length its answer is to have (`target_length`), and
where the step at which that many tokens are out is reached the token is END; nowhere else, for START, END and padding
are never the likeliest by themselves. Nobody outside the body sees this: the loop ends by the body's flag, which is
computed from the token. Besides that a step does what a trained network's does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.sizes import END, RESERVED

NEVER = -1e9


class Greedy(nn.Module):
    """Projects onto the vocabulary and chooses: (N, width), position and target_length (N,) -> token, finished (N,)."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, vocabulary)

    def forbid(self) -> None:
        """Make the reserved tokens the unlikeliest; to be called when the weights are seeded."""
        with torch.no_grad():
            self.project.bias[:RESERVED] = NEVER

    def forward(self, x: Tensor, position: Tensor, target_length: Tensor) -> tuple[Tensor, Tensor]:
        """token: int64. finished: bool."""
        likeliest = torch.argmax(self.project(x), dim=1)
        token = torch.where(position + 1 >= target_length, END, likeliest)
        return token, token == END
