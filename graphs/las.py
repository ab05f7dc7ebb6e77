"""LAS: Chan et al., "Listen, Attend and Spell" (ICASSP 2016): a pyramid of BLSTMs, then an LSTM speller.

Owns: the stages' modules. Must not know: how stages are put together (`graphs.plans`), exported or served.

Listener: a BLSTM of 256 units a side over frames of 40 features, and three more, each of which halves the time by
joining two neighbours; of a row with an odd number of steps the last one's neighbour is zeros. Speller: two LSTMs of
512 that read the character before and the context before; attention compares their state with the listener's answer;
both together give the next character. Greedy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.greedy import Greedy
from graphs.recurrent import BothWays, LstmStep, read
from graphs.sizes import Las
from graphs.weights import seed_recurrent


class Listener(nn.Module):
    """frames (N, T, features), length (N,) int64 -> keys (N, T / 8, speller) and memory (N, T / 8, 2 * side)."""

    def __init__(self, size: Las) -> None:
        super().__init__()
        self.first = BothWays(size.features, size.side)
        self.pyramid = nn.ModuleList(BothWays(4 * size.side, size.side) for _ in range(size.pyramid))
        self.keys = nn.Linear(2 * size.side, size.speller)

    def forward(self, frames: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch of padded utterances."""
        x = self.first(frames, length)
        for layer in self.pyramid:
            length = (length + 1) // 2
            x = layer(x.reshape(-1, x.shape[1] // 2, 2 * x.shape[2]), length)
        return self.keys(x), x


class Speller(nn.Module):
    """One step. token, position, target_length, length (N,) int64; h, c (N, layers, speller); context (N, 2 * side);
    keys, memory of the listener -> token_next (N,) int64, finished (N,) bool, h_next, c_next, context_next.

    length: of the frames, as the listener was told.
    """

    def __init__(self, size: Las) -> None:
        super().__init__()
        width, heard = size.speller, 2 * size.side
        self.shrink = 1 << size.pyramid
        self.embedding = nn.Embedding(size.vocabulary, width)
        self.layers = nn.ModuleList(
            LstmStep(width if number else width + heard, width) for number in range(size.spellers)
        )
        self.query = nn.Linear(width, width)
        self.scale = width**-0.5
        self.choose = Greedy(width + heard, size.vocabulary)

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        target_length: Tensor,
        h: Tensor,
        c: Tensor,
        context: Tensor,
        keys: Tensor,
        memory: Tensor,
        length: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Spell one character per row, each at its own position."""
        x = torch.cat([self.embedding(token), context], dim=1)
        outputs, cells = [], []
        for number, layer in enumerate(self.layers):
            x, cell = layer(x, h[:, number], c[:, number])
            outputs.append(x)
            cells.append(cell)
        scores = (keys @ self.query(x)[:, :, None])[:, :, 0] * self.scale
        context = read(scores, memory, (length + self.shrink - 1) // self.shrink)
        chosen, finished = self.choose(torch.cat([x, context], dim=1), position, target_length)
        return chosen, finished, torch.stack(outputs, dim=1), torch.stack(cells, dim=1), context


def build(size: Las, seed: int) -> dict[str, nn.Module]:
    """Both stages in evaluation mode, with seeded weights."""
    listener, speller = Listener(size), Speller(size)
    seed_recurrent(listener, seed)
    seed_recurrent(speller, seed + 1)
    return {"listener": listener, "speller": speller}
