"""LSTM layers: over whole sequences of unequal length, and one step at a time.

Owns: `SequenceLstm`, its operator and the operator's ONNX form, `LstmStep`, and reading a padded sequence by attention.
Must not know: any particular network.

A sequence layer is one operator, ``graphs::lstm``, so that it becomes ONNX's LSTM with ``sequence_lens``: each row runs
for its own length, in either direction, and no step is made beyond the longest row. Weights are kept in ONNX's order of
the gates (input, output, forget, cell).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

MASKED = -1e4
"""Score of a position that is padding."""


@torch.library.custom_op("graphs::lstm", mutates_args=())
def lstm(x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, hidden: int, reverse: bool) -> Tensor:
    """A layer over sequences: x (N, T, I) -> (N, T, H), zeros beyond a row's length.

    lengths: (N,), at least 1 (more than T count as T). w (1, 4H, I), r (1, 4H, H): of inputs, of the state; b (1, 8H):
    biases of both.
    reverse: run from a row's last step to its first.
    """
    lengths = lengths.clamp(max=x.shape[1])
    steps = torch.arange(x.shape[1], device=x.device)
    if reverse:
        order = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
        turned = _ordered(x, order)
        return _ordered(_forward(turned, lengths, w[0], r[0], b[0], hidden), order)
    return _forward(x, lengths, w[0], r[0], b[0], hidden)


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))


def _forward(x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, hidden: int) -> Tensor:
    h = c = x.new_zeros(x.shape[0], hidden)
    y = x.new_zeros(x.shape[0], x.shape[1], hidden)
    longest = int(lengths.max())
    given = x[:, :longest] @ w.T + (b[: 4 * hidden] + b[4 * hidden :])
    for step in range(longest):
        into, out, forget, cell = (given[:, step] + h @ r.T).chunk(4, dim=1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(into) * torch.tanh(cell)
        h = torch.sigmoid(out) * torch.tanh(c)
        y[:, step] = h.where((step < lengths)[:, None], 0.0)
    return y


@lstm.register_fake
def _(x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, hidden: int, reverse: bool) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], hidden)


def translations() -> Mapping[Any, Callable[..., Any]]:
    """For torch's exporter: the operator's ONNX form."""
    import onnxscript

    op: Any = onnxscript.opset18

    def translated(x: Any, lengths: Any, w: Any, r: Any, b: Any, hidden: int, reverse: bool) -> Any:
        direction = "reverse" if reverse else "forward"
        counts = op.Cast(lengths, to=6)  # int32
        y, _, _ = op.LSTM(op.Transpose(x, perm=[1, 0, 2]), w, r, b, counts, hidden_size=hidden, direction=direction)
        return op.Transpose(op.Squeeze(y, op.Constant(value_ints=[1])), perm=[1, 0, 2])

    return {torch.ops.graphs.lstm.default: translated}


class SequenceLstm(nn.Module):
    """One LSTM layer over padded sequences, in one direction: (N, T, inputs), (N,) -> (N, T, hidden)."""

    def __init__(self, inputs: int, hidden: int, *, reverse: bool = False) -> None:
        super().__init__()
        self.hidden, self.reverse = hidden, reverse
        self.w = nn.Parameter(torch.empty(1, 4 * hidden, inputs))
        self.r = nn.Parameter(torch.empty(1, 4 * hidden, hidden))
        self.b = nn.Parameter(torch.empty(1, 8 * hidden))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Zeros beyond each row's length."""
        y: Tensor = lstm(x, lengths, self.w, self.r, self.b, self.hidden, self.reverse)
        return y


class BothWays(nn.Module):
    """Two LSTM layers over the same sequences, one from either end: (N, T, inputs), (N,) -> (N, T, 2 * hidden)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.ahead = SequenceLstm(inputs, hidden)
        self.back = SequenceLstm(inputs, hidden, reverse=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Zeros beyond each row's length."""
        return torch.cat([self.ahead(x, lengths), self.back(x, lengths)], dim=2)


class LstmStep(nn.Module):
    """One step of an LSTM layer: x (N, inputs), h and c (N, hidden) -> the next h and c."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One product for all gates, of the input and the state side by side."""
        into, out, forget, cell = self.gates(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(into) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c


def read(scores: Tensor, memory: Tensor, length: Tensor) -> Tensor:
    """What attention with these scores (N, T) reads from the memory (N, T, D), of which ``length`` (N,) counts."""
    there = torch.arange(memory.shape[1], device=memory.device) < length[:, None]
    shares = torch.softmax(scores.where(there, MASKED), dim=1)
    return (shares[:, None, :] @ memory)[:, 0]
