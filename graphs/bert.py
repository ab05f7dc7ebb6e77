"""BERT-base: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018): L=12, H=768, A=12.

One segment only, so token types are a constant and no input. Padding is masked in every attention, which makes a
row's answer independent of how far it was padded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphs.weights import seed_transformer

LAYERS, HIDDEN, HEADS, INNER = 12, 768, 12, 3072
VOCABULARY, POSITIONS = 30522, 512
EPSILON = 1e-12
MASKED = -1e4
"""Added to the score of a padded position: far below any real score, and still a float16 number."""


class Embeddings(nn.Module):
    """Word + position + token type, normalised: (N, L) int64 -> (N, L, 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Embedding(POSITIONS, HIDDEN)
        self.token_type = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=EPSILON)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed a batch of token ids."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        embedded: Tensor = self.word(input_ids) + self.position(positions) + self.token_type.weight[0]
        normed: Tensor = self.norm(embedded)
        return normed


class Layer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised: (N, L, 768) -> (N, L, 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.attended = nn.Linear(HIDDEN, HIDDEN)
        self.attention_norm = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.inner = nn.Linear(HIDDEN, INNER)
        self.outer = nn.Linear(INNER, HIDDEN)
        self.output_norm = nn.LayerNorm(HIDDEN, eps=EPSILON)

    def _attention(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(rows, length, HEADS, HIDDEN // HEADS).transpose(1, 2)

        scores = heads(self.query(x)) @ heads(self.key(x)).transpose(2, 3) * (HIDDEN // HEADS) ** -0.5
        mixed = torch.softmax(scores + bias, dim=-1) @ heads(self.value(x))
        attended: Tensor = self.attended(mixed.transpose(1, 2).reshape(rows, length, HIDDEN))
        return attended

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """bias: (N, 1, 1, L), 0 where a position may be attended to."""
        x = self.attention_norm(x + self._attention(x, bias))
        y: Tensor = self.output_norm(x + self.outer(functional.gelu(self.inner(x))))
        return y


class Bert(nn.Module):
    """input_ids, attention_mask: (N, L) int64 -> last_hidden_state (N, L, 768), pooler_output (N, 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pooler = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch of token sequences."""
        bias = ((1 - attention_mask) * MASKED).to(torch.float32)[:, None, None, :]
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(seed: int) -> nn.Module:
    """BERT-base in eval mode with seeded weights."""
    model = Bert()
    seed_transformer(model, seed)
    return model
