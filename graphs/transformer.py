"""Transformer base: Vaswani et al., "Attention Is All You Need" (2017): 6 + 6 layers, width 512, 8 heads, inner 2048.

Owns: the stages' modules. Must not know: how stages are put together (`graphs.plans`), exported or served.

Post-normalised, with sinusoidal positions and one matrix for both embeddings and the projection, as in the paper;
greedy decoding, where the paper searches with a beam. The encoder ends by making the keys and values that the
decoder's layers attend to in every step. A decoder step reads each layer's cache of keys and values as it lies, and
returns one slice of each to be appended: the newest token attends to itself without being in the cache yet, so nothing
is copied.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphs.greedy import Greedy
from graphs.recurrent import MASKED
from graphs.sizes import Transformer
from graphs.weights import seed_attention


def positions(length: int, width: int) -> Tensor:
    """Sinusoids of wavelengths from 2 pi to 10000 * 2 pi: (length, width)."""
    at = torch.arange(length)[:, None]
    angles = at * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(length, width)


class Feedforward(nn.Module):
    """Two matrices with a ReLU between them, added to the input and normalised."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.inner = nn.Linear(size.width, size.inner)
        self.outer = nn.Linear(size.inner, size.width)
        self.norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        y: Tensor = self.norm(x + self.outer(torch.relu(self.inner(x))))
        return y


class EncoderLayer(nn.Module):
    """Self-attention over the positions that count, and the feed-forward part: (N, T, width) -> (N, T, width)."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.attended = nn.Linear(size.width, size.width)
        self.norm = nn.LayerNorm(size.width)
        self.feedforward = Feedforward(size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """bias: (N, 1, 1, T), 0 where a position may be attended to."""
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=2)
        )
        scores = q @ k.transpose(2, 3) * (width // self.heads) ** -0.5
        mixed = torch.softmax(scores + bias, dim=3) @ v
        x = self.norm(x + self.attended(mixed.transpose(1, 2).reshape(rows, length, width)))
        y: Tensor = self.feedforward(x)
        return y


class Encoder(nn.Module):
    """tokens (N, T), length (N,) int64 -> per decoder layer keys (N, heads, width / heads, T), values (.., T, ..)."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.heads, self.scale = size.heads, size.width**0.5
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.positions: Tensor
        self.register_buffer("positions", positions(size.source_max, size.width))
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.seen = nn.ModuleList(nn.Linear(size.width, 2 * size.width) for _ in range(size.layers))

    def forward(self, tokens: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """Encode a batch of padded sentences."""
        there = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        bias = torch.where(there, 0.0, MASKED)[:, None, None, :]
        x = self.embedding(tokens) * self.scale + self.positions
        for layer in self.layers:
            x = layer(x, bias)
        rows, steps, width = x.shape
        made: list[Tensor] = []
        for seen in self.seen:
            keys, values = (part.view(rows, steps, self.heads, width // self.heads) for part in seen(x).chunk(2, dim=2))
            made += [keys.permute(0, 2, 3, 1).contiguous(), values.permute(0, 2, 1, 3).contiguous()]
        return tuple(made)


class DecoderLayer(nn.Module):
    """One step of self-attention with a cache, attention to the source, and the feed-forward part."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.heads = size.heads
        self.deep = size.width // size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.attended = nn.Linear(size.width, size.width)
        self.norm = nn.LayerNorm(size.width)
        self.query = nn.Linear(size.width, size.width)
        self.looked = nn.Linear(size.width, size.width)
        self.cross_norm = nn.LayerNorm(size.width)
        self.feedforward = Feedforward(size)

    def forward(
        self, x: Tensor, past: Tensor, keys: Tensor, values: Tensor, source: Tensor, cross: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x: (N, width) -> (N, width), and the key and value of this position (N, heads, deep).

        past, source: (N, 1, 1, room), (N, 1, 1, T): 0 where the cache is filled and the source counts. keys, values:
        the cache. cross: the source's keys and values.
        """
        rows, width = x.shape[0], self.heads * self.deep
        q, key, value = (part.view(rows, self.heads, self.deep) for part in self.qkv(x).chunk(3, dim=1))
        q = q[:, :, None, :] * self.deep**-0.5
        now = (q * key[:, :, None, :]).sum(dim=3, keepdim=True)
        shares = torch.softmax(torch.cat([q @ keys + past, now], dim=3), dim=3)
        mixed = shares[..., :-1] @ values + shares[..., -1:] * value[:, :, None, :]
        x = self.norm(x + self.attended(mixed.reshape(rows, width)))
        q = self.query(x).view(rows, self.heads, 1, self.deep) * self.deep**-0.5
        mixed = torch.softmax(q @ cross[0] + source, dim=3) @ cross[1]
        x = self.cross_norm(x + self.looked(mixed.reshape(rows, width)))
        return self.feedforward(x), key, value


class Decoder(nn.Module):
    """One step. token, position, target_length, length (N,) int64, then per layer the cache, then per layer the source
    -> token_next (N,) int64, finished (N,) bool, then per layer a key and a value (N, heads, width / heads)."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.scale = size.width**0.5
        self.choose = Greedy(size.width, size.vocabulary)
        self.positions: Tensor
        self.register_buffer("positions", positions(size.target_max, size.width))
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))

    def forward(
        self, token: Tensor, position: Tensor, target_length: Tensor, length: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Decode one token per row, each at its own position."""
        cache, seen = tensors[: 2 * len(self.layers)], tensors[2 * len(self.layers) :]
        past = _bias(cache[1].shape[2], position)
        source = _bias(seen[1].shape[2], length)
        x = self.choose.project.weight[token] * self.scale + self.positions[position]
        made: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            k = 2 * number
            x, key, value = layer(x, past, cache[k], cache[k + 1], source, (seen[k], seen[k + 1]))
            made += [key, value]
        return *self.choose(x, position, target_length), *made


def _bias(positions: int, count: Tensor) -> Tensor:
    """(N, 1, 1, positions): 0 for each row's first ``count`` (N,)."""
    there = torch.arange(positions, device=count.device) < count[:, None]
    return torch.where(there, 0.0, MASKED)[:, None, None, :]


def build(size: Transformer, seed: int) -> dict[str, nn.Module]:
    """Both stages in evaluation mode, with seeded weights; the vocabulary's matrix is the same in both."""
    encoder, decoder = Encoder(size), Decoder(size)
    seed_attention(encoder, seed)
    seed_attention(decoder, seed + 1)
    encoder.embedding.weight = decoder.choose.project.weight
    return {"encoder": encoder, "decoder": decoder}
