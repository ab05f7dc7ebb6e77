"""BERT: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018); base: L=12, H=768, A=12.

Owns: the network, of any size. Must not know: how it is exported or served.

One segment only, so token types are a constant and no input. Padding is masked in every attention, which makes a
row's answer independent of how far it was padded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphs.weights import seed_transformer

VOCABULARY, POSITIONS = 30522, 512
EPSILON = 1e-12
MASKED = -1e4
"""Added to the score of a padded position: far below any real score, and still a float16 number."""


class Size(NamedTuple):
    """Layers, width of a token's vector, attention heads, width inside the feed-forward network."""

    layers: int
    hidden: int
    heads: int
    inner: int


BASE = Size(12, 768, 12, 3072)


class Embeddings(nn.Module):
    """Word + position + token type, normalised: (N, L) int64 -> (N, L, hidden)."""

    def __init__(self, size: Size = BASE) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, size.hidden)
        self.position = nn.Embedding(POSITIONS, size.hidden)
        self.token_type = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=EPSILON)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed a batch of token ids."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        embedded: Tensor = self.word(input_ids) + self.position(positions) + self.token_type.weight[0]
        normed: Tensor = self.norm(embedded)
        return normed


class Layer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised: (N, L, hidden) -> (N, L, hidden)."""

    def __init__(self, size: Size = BASE) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.hidden, size.hidden)
        self.key = nn.Linear(size.hidden, size.hidden)
        self.value = nn.Linear(size.hidden, size.hidden)
        self.attended = nn.Linear(size.hidden, size.hidden)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=EPSILON)
        self.inner = nn.Linear(size.hidden, size.inner)
        self.outer = nn.Linear(size.inner, size.hidden)
        self.output_norm = nn.LayerNorm(size.hidden, eps=EPSILON)

    def _attention(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, length, hidden = x.shape
        width = hidden // self.heads

        def heads(projected: Tensor) -> Tensor:
            return projected.view(rows, length, self.heads, width).transpose(1, 2)

        scores = heads(self.query(x)) @ heads(self.key(x)).transpose(2, 3) * width**-0.5
        mixed = torch.softmax(scores + bias, dim=-1) @ heads(self.value(x))
        attended: Tensor = self.attended(mixed.transpose(1, 2).reshape(rows, length, hidden))
        return attended

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """bias: (N, 1, 1, L), 0 where a position may be attended to."""
        x = self.attention_norm(x + self._attention(x, bias))
        y: Tensor = self.output_norm(x + self.outer(functional.gelu(self.inner(x))))
        return y


class Encoder(nn.Module):
    """input_ids, attention_mask: (N, L) int64 -> (N, L, hidden)."""

    def __init__(self, size: Size = BASE) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode a batch of token sequences."""
        bias = ((1 - attention_mask) * MASKED).to(torch.float32)[:, None, None, :]
        x: Tensor = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x


class Bert(Encoder):
    """input_ids, attention_mask: (N, L) int64 -> last_hidden_state (N, L, hidden), pooler_output (N, hidden)."""

    def __init__(self, size: Size = BASE) -> None:
        super().__init__(size)
        self.pooler = nn.Linear(size.hidden, size.hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Encode a batch of token sequences."""
        x = super().forward(input_ids, attention_mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(seed: int) -> nn.Module:
    """BERT-base in eval mode with seeded weights."""
    model = Bert()
    seed_transformer(model, seed)
    return model
