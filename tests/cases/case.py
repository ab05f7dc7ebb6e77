"""What a case is: a model, the feeds of a few single runs, and what must be said of joining them.

Owns: `Case`, `Verdict`, and the register the catalogue modules fill.
Must not know: lazybatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx


class Verdict(Enum):
    """What must be found out about a model."""

    JOINS = "joins"
    """Rows are independent: refusing to join them would be a missed chance, so it counts as a fault here."""
    ALONE = "alone"
    """Joining gives wrong answers or none: each request must be served alone, with a reason."""
    EITHER = "either"
    """Joining is right if it can be proved; not joining is right as well."""


@dataclass(frozen=True)
class Case:
    """A model, and requests whose right answers are those of single runs.

    singles: the whole-model feeds of each request (batch 1). axes: where an input's batch lies; an input not in it has
    no batch axis and is given whole. culprits: words of which one must be in the reason, when the verdict is ALONE.
    atol: how far a joined answer may lie from a single run's (kernels for one row may add in another order).
    """

    name: str
    model: onnx.ModelProto
    singles: tuple[Mapping[str, np.ndarray], ...]
    axes: Mapping[str, int]
    verdict: Verdict
    culprits: tuple[str, ...] = ()
    atol: float = 1e-5
    text: str = field(default="", compare=False)

    def request(self, index: int) -> dict[str, Any]:
        """One request as a caller gives it: without the batch axis."""
        return {
            name: np.squeeze(array, self.axes[name]) if name in self.axes else array
            for name, array in self.singles[index].items()
        }

    def joined(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Whole-model feeds of several requests together; their unbatched inputs must be equal."""
        first = self.singles[rows[0]]
        return {
            name: np.concatenate([self.singles[row][name] for row in rows], self.axes[name])
            if name in self.axes
            else array
            for name, array in first.items()
        }

    def may_join(self, rows: Sequence[int]) -> bool:
        """Whether these requests have equal shapes and equal unbatched inputs."""
        first = self.singles[rows[0]]
        return all(
            self.singles[row][name].shape == array.shape
            and (name in self.axes or np.array_equal(self.singles[row][name], array))
            for row in rows
            for name, array in first.items()
        )


Made = tuple[onnx.ModelProto, Sequence[Mapping[str, np.ndarray]], Mapping[str, int]]
CASES: list[Case] = []


def case(verdict: Verdict, *culprits: str, atol: float = 1e-5, **variants: Any) -> Callable[[Any], Any]:
    """Register a function that makes (model, singles, axes); once per keyword ``variants`` name=(arguments...)."""

    def register(make: Callable[..., Made]) -> Callable[..., Made]:
        for label, arguments in (variants or {"": ()}).items():
            made, singles, axes = make(*arguments)
            name = make.__name__ + (f"-{label}" if label else "")
            text = (make.__doc__ or "").strip()
            CASES.append(Case(name, made, tuple(singles), axes, verdict, culprits, atol, text))
        return make

    return register


def rows(count: int, *shape: int, axis: int = 0, name: str = "x", seed: int = 0, dtype: Any = np.float32) -> Any:
    """``count`` single feeds of one input: seeded normal numbers with a batch axis of 1 put in at ``axis``."""
    made = [np.random.default_rng(seed + k).standard_normal(shape) for k in range(count)]
    return [{name: np.expand_dims(array, axis).astype(dtype)} for array in made]
