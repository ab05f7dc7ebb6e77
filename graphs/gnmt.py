"""GNMT: Wu et al., "Google's Neural Machine Translation System" (2016): 8 + 8 LSTM layers of 1024 with attention.

Owns: the stages' modules. Must not know: how stages are put together (`graphs.plans`), exported or served.

Encoder: the first layer in both directions, then one direction; from the third layer on inputs are added to outputs.
Decoder: what the first layer said last asks the attention (one hidden layer of tanh), and the context goes into every
layer, each of which reads it beside the layer below; residuals as in the encoder. Decoding is greedy, where the paper
searches with a beam.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.greedy import Greedy
from graphs.recurrent import BothWays, LstmStep, SequenceLstm, read
from graphs.sizes import Gnmt
from graphs.weights import seed_recurrent

PLAIN = 2
"""Layers from the bottom without a residual connection."""


class Encoder(nn.Module):
    """tokens (N, T), length (N,) int64 -> keys and memory (N, T, width): what attention compares with, and reads."""

    def __init__(self, size: Gnmt) -> None:
        super().__init__()
        width = size.width
        self.embedding = nn.Embedding(size.vocabulary, width)
        self.first = BothWays(width, width)
        self.layers = nn.ModuleList(
            SequenceLstm(2 * width if layer == 1 else width, width) for layer in range(1, size.layers)
        )
        self.keys = nn.Linear(width, width)

    def forward(self, tokens: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch of padded sentences."""
        x = self.first(self.embedding(tokens), length)
        for number, layer in enumerate(self.layers, start=1):
            y = layer(x, length)
            x = y if number < PLAIN else x + y
        return self.keys(x), x


class Decoder(nn.Module):
    """One step. token, position, target_length, length (N,) int64; h, c (N, layers, width); keys, memory (N, T, width)
    -> token_next (N,) int64, finished (N,) bool, h_next, c_next."""

    def __init__(self, size: Gnmt) -> None:
        super().__init__()
        width = size.width
        self.embedding = nn.Embedding(size.vocabulary, width)
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.layers = nn.ModuleList(LstmStep(2 * width, width) for _ in range(size.layers))
        self.choose = Greedy(width, size.vocabulary)

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        target_length: Tensor,
        h: Tensor,
        c: Tensor,
        keys: Tensor,
        memory: Tensor,
        length: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode one token per row, each at its own position."""
        scores = self.score(torch.tanh(keys + self.query(h[:, 0])[:, None, :]))[:, :, 0]
        context = read(scores, memory, length)
        x = self.embedding(token)
        outputs, cells = [], []
        for number, layer in enumerate(self.layers):
            y, cell = layer(torch.cat([x, context], dim=1), h[:, number], c[:, number])
            x = y if number < PLAIN else x + y
            outputs.append(y)
            cells.append(cell)
        chosen, finished = self.choose(x, position, target_length)
        return chosen, finished, torch.stack(outputs, dim=1), torch.stack(cells, dim=1)


def build(size: Gnmt, seed: int) -> dict[str, nn.Module]:
    """Both stages in evaluation mode, with seeded weights."""
    encoder, decoder = Encoder(size), Decoder(size)
    seed_recurrent(encoder, seed)
    seed_recurrent(decoder, seed + 1)
    return {"encoder": encoder, "decoder": decoder}
