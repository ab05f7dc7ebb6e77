"""Small loop bodies as torch modules.

Owns: the modules that the tests of programs run. Must not know: programs' executors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN = 6


class GruStep(nn.Module):
    """x, h -> the next h and what is collected: one step of two layers, so that there is something to cut between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.GRUCell(4, HIDDEN)
        self.second = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        """h: [2, N, HIDDEN]: the rows lie on axis 1."""
        low = self.first(x, h[0])
        high = self.second(low, h[1])
        return {"h_next": torch.stack((low, high)), "y": high * 2}


class CacheStep(nn.Module):
    """A decoder step whose cache [N, heads, room, width] grows on its second axis."""

    def __init__(self, room: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("places", torch.arange(room))

    def forward(self, h: Tensor, keys: Tensor, position: Tensor) -> dict[str, Tensor]:
        """Attends to what is before it, and to itself."""
        key = self.key(h).reshape(-1, 2, HIDDEN // 2)
        query = h.reshape(-1, 2, HIDDEN // 2, 1)
        past = (keys @ query).squeeze(-1)
        past = past.masked_fill(self.places >= position[:, None, None], -1e9)
        own = (key.unsqueeze(-2) @ query).squeeze(-1)
        shares = torch.softmax(torch.cat((past, own), -1), -1)
        mixed = (shares.unsqueeze(-2) @ torch.cat((keys, key.unsqueeze(-2)), -2)).reshape(-1, HIDDEN)
        h_next = torch.tanh(self.out(mixed) + h)
        return {"h_next": h_next, "key": key, "finished": h_next.sum(-1) > 1.0, "peak": h_next.max(-1).values}


def step_example() -> tuple[Tensor, Tensor]:
    """What `GruStep` takes."""
    return torch.randn(2, 4), torch.randn(2, 2, HIDDEN)


def cache_example(room: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `CacheStep` takes."""
    return torch.randn(2, HIDDEN), torch.randn(2, 2, room, HIDDEN // 2), torch.tensor([1, 3])


class LateStep(nn.Module):
    """A body whose state is what it was shown of its cache, in whole numbers: as it was before this step's slice."""

    def forward(self, n: Tensor, keys: Tensor, seen: Tensor) -> dict[str, Tensor]:
        """n [N], keys [N, room, 1], seen [N, room] -> what is seen next is a view of the cache."""
        return {"n_next": n + 1 + seen.sum(-1), "key": n[:, None], "seen_next": keys.flatten(1)}


def late_example(room: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `LateStep` takes."""
    return torch.tensor([1, 5]), torch.ones(2, room, 1, dtype=torch.int64), torch.ones(2, room, dtype=torch.int64)
