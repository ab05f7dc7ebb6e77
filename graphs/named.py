"""A module whose inputs and outputs have names: tensors in by keyword, a dict out.

Owns: `Named`. Must not know: what the module computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Named(nn.Module):
    """Calls a module that takes and returns several tensors in order. inputs, outputs: what they are called."""

    def __init__(self, inner: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.inner = inner
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.training = inner.training

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Tensors by name, in any order."""
        return dict(zip(self.outputs, self.inner(*(tensors[name] for name in self.inputs)), strict=True))
