"""Small torch modules with everything that makes cutting them hard, and seeded requests for them.

Owns: the modules, `SOUND` (those whose rows may join), `Case`, `Wrapped`, `load_fine`.
Must not know: how modules are exported, cut or run.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lazybatch as lb
from lazybatch.executors.torch.model import TorchModel

FINEST_S = 1e-9
Pair = namedtuple("Pair", "first second")


class Wrapped(nn.Module):
    """A function as a module, in evaluation."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, x: Tensor) -> Any:
        """Whatever the function answers."""
        return self.function(x)


class Residual(nn.Module):
    """Convolutions, batch norm in evaluation, in-place activations, a residual that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)
        for norm in (self.first[1], self.second[1]):
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, 8, 8) -> (N, 5)."""
        x = self.first(image)
        y = self.second(x)
        y += x
        y.relu_()
        return self.head(y.mean((2, 3)))


class Tied(nn.Module):
    """One weight used three times: twice under its own name, once transposed, and a buffer all layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 8))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 8) -> (N, 8)."""
        x = torch.tanh(self.one(x)) * self.scale
        x = torch.tanh(self.two(x)) * self.scale
        return x @ self.one.weight


class Views(nn.Module):
    """Values that are views of others: permuted, split, expanded, sliced, and written through."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, 4, 6) -> (N, 2, 12)."""
        left, right = x.permute(0, 2, 1).split(3, 1)
        held = x.clone()
        held[:, 0] = 0.0
        held.view(x.shape[0], -1)[:, ::5].mul_(2.0)
        both = (left.transpose(1, 2) * right.transpose(1, 2)).expand(2, -1, -1, -1)
        picked = both[:, :, 1:3].permute(1, 0, 2, 3)
        return torch.sin(picked.reshape(x.shape[0], 2, 6)).repeat(1, 1, 2) + held.reshape(x.shape[0], 2, 12)


class ChannelsLast(nn.Module):
    """A value whose layout is not the order of its dimensions, and a view that asks for that layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1).to(memory_format=torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 4, 3, 5) -> (N, 15, 4)."""
        x = self.conv(image.to(memory_format=torch.channels_last))
        x = torch.relu(x)
        return torch.tanh(x.permute(0, 2, 3, 1).view(x.shape[0], 15, 4))


class Several(nn.Module):
    """Several inputs and outputs, one input that no row owns, a nested answer, and constants in it."""

    def forward(self, x: Tensor, table: Tensor, *, mask: Tensor, flag: bool = True) -> dict[str, Any]:
        """x (N, 4), table (3, 4) for all rows, mask (N, 3) bool -> scores (N, 3), pair of (N, 4), x itself."""
        scores = (x @ table.T).masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, -1)
        return {"scores": scores, "pair": Pair(weights @ table, x.exp()), "x": x, "none": None, "flag": flag}


class Picks(nn.Module):
    """Rows pick from themselves by position in the batch, as classifiers do with lengths; two types of integers."""

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, 5, 3), at (N,) int64 -> (N, 3), (N,) int32."""
        rows = torch.arange(x.shape[0])
        picked = x.tanh()[rows, at.clamp(0, 4)]
        return picked, picked.argmax(-1).to(torch.int32)


class Recurrent(nn.Module):
    """A recurrent layer, its state with rows on axis 1, given and handed back."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6)

    def forward(self, steps: Tensor, state: Tensor, cell: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """steps (5, N, 4), state and cell (1, N, 6), lengths (N,) float -> (5, N, 6), (1, N, 6)."""
        made, (state, _) = self.lstm(steps, (state, cell))
        return made * lengths[:, None], state.tanh()


class Half(nn.Module):
    """Half precision inside: bfloat16, which NumPy does not have, in and out."""

    def forward(self, x: Tensor) -> Tensor:
        """x (N, 8) bfloat16 -> (N, 8) bfloat16."""
        return torch.relu(x * 1.5) + x


class Tokens(nn.Module):
    """An embedding of tokens with a padding mask: attention over one row only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Ids and mask (N, 6) int64 -> hidden (N, 6, 8), pooled (N, 8)."""
        x = self.embed(ids)
        y, _ = self.attention(x, x, x, key_padding_mask=mask == 0, need_weights=False)
        x = self.norm(x + y)
        return {"hidden": x, "pooled": (x * mask[..., None]).sum(1)}


@dataclass(frozen=True)
class Case:
    """A module, inputs with so many rows and a seed, and the axes the rows lie on (all 0 where nothing is said).

    exact: whether a graph of its operators gives its answers bit for bit; torch has other kernels for whole attention.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], dict[str, Any]]
    axes: Mapping[str, int] | None = None
    exact: bool = True

    def module(self) -> nn.Module:
        """The module in evaluation, its weights seeded."""
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return self.make().eval()

    def batch(self, rows: int, seed: int = 0) -> dict[str, Any]:
        """Arguments of one call."""
        return self.inputs(rows, torch.Generator().manual_seed(seed))

    def axis(self, name: str) -> int | None:
        """Where the rows of an input lie; None where it belongs to all rows."""
        return (self.axes or {}).get(name, 0) if self.axes is None or name in self.axes else None

    def rows(self, batch: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """The rows as callers submit them."""
        for k in range(count):
            row = {}
            for name, value in batch.items():
                if isinstance(value, Tensor):
                    axis = self.axis(name)
                    value = value if axis is None else value.select(axis, k)
                    row[name] = value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()
            yield row

    def load(self, **options: Any) -> TorchModel:
        """The model, cut wherever a cut is proved."""
        return load_fine(self.module(), self.batch(3, seed=99), **options)


def load_fine(module: nn.Module, inputs: Any, **options: Any) -> TorchModel:
    """`lazybatch.load` without a cache, with as many nodes as can be proved right."""
    model = lb.load(module, example_inputs=inputs, preempt_within=FINEST_S, cache=False, **options)
    assert isinstance(model, TorchModel)
    return model


def alone(module: nn.Module, case: Case, row: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
    """What the module answers to one row, as a batch of one."""
    made = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor):
            made[name] = value
            continue
        axis = case.axis(name)
        tensor = torch.from_numpy(np.asarray(row[name])).to(value.dtype)
        made[name] = tensor if axis is None else tensor.unsqueeze(axis)
    with torch.inference_mode():
        return module(**made)


def _noise(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def _several(rows: int, g: torch.Generator) -> dict[str, Any]:
    table = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
    mask = torch.rand(rows, 3, generator=g) < 0.7
    return {"x": torch.randn(rows, 4, generator=g), "table": table, "mask": mask, "flag": True}


def _picks(rows: int, g: torch.Generator) -> dict[str, Any]:
    return {"x": torch.randn(rows, 5, 3, generator=g), "at": torch.randint(0, 5, (rows,), generator=g)}


def _recurrent(rows: int, g: torch.Generator) -> dict[str, Any]:
    noise = {"steps": (5, rows, 4), "state": (1, rows, 6), "cell": (1, rows, 6), "lengths": (rows,)}
    return {name: torch.randn(shape, generator=g) for name, shape in noise.items()}


def _tokens(rows: int, g: torch.Generator) -> dict[str, Any]:
    lengths = torch.randint(2, 7, (rows, 1), generator=g)
    mask = (torch.arange(6)[None, :] < lengths).to(torch.int64)
    return {"ids": torch.randint(0, 20, (rows, 6), generator=g) * mask, "mask": mask}


def _one(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Callable[..., dict[str, Any]]:
    return lambda rows, g: {name: torch.randn((rows, *shape), generator=g).to(dtype)}


SOUND = (
    Case("residual", Residual, _one("image", 3, 8, 8)),
    Case("tied", Tied, _one("x", 8)),
    Case("views", Views, _one("x", 4, 6)),
    Case("channels_last", ChannelsLast, _one("image", 4, 3, 5)),
    Case("several", Several, _several, {"x": 0, "mask": 0}),
    Case("picks", Picks, _picks),
    Case("recurrent", Recurrent, _recurrent, {"steps": 1, "state": 1, "cell": 1, "lengths": 0}),
    Case("half", Half, _one("x", 8, dtype=torch.bfloat16)),
    Case("tokens", Tokens, _tokens, exact=False),
)


def sound(name: str) -> Case:
    """A case by name."""
    return next(case for case in SOUND if case.name == name)


CASES = pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)


@functools.cache
def fine(name: str) -> TorchModel:
    """A case's model, loaded once for all tests: nobody changes it."""
    return sound(name).load()
