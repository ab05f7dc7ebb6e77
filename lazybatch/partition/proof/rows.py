"""Rows to probe a model with: unequal ones, of very different magnitude, and poisoned ones.

Owns: `Recipe`, what a model accepts, and the making, joining and poisoning of rows after it.
Must not know: how a recipe was found; what outputs prove.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.partition.proof.ports import Port

Array = NDArray[Any]
Feeds = dict[str, Array]
Candidate = dict[str, int]
"""Input name -> batch axis. Inputs that are not named are the same for all rows."""

RANGES = ((0, 1), (0, 9), (0, 99))
"""Bounds for integers, the most harmless first."""
WORDS = ("a", "B c", "longer text", "42", "-1.5")
MAGNITUDES = (1.0, 30.0, 0.05)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make inputs the model accepts.

    sizes: every free axis symbol -> size. ranges: integer inputs -> inclusive bounds.
    examples: values given by the user, by input name, without a batch axis where the input has one.
    """

    sizes: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    examples: Mapping[str, Sequence[Array]] = field(default_factory=dict)


def named_dims(port: Port) -> tuple[int | str, ...]:
    """The dimensions of a port that went through `symbolic`."""
    return tuple(dim for dim in port.dims or () if dim is not None)


def make_rows(
    ports: Sequence[Port], candidate: Candidate, recipe: Recipe, count: int, seed: int, *, even: bool = False
) -> tuple[Feeds, list[Feeds]]:
    """Unbatched inputs, and ``count`` unequal rows of very different magnitude (unless ``even``).

    Each row's arrays have length 1 on the batch axis. Odd seeds draw from [0, 1), even ones from a normal distribution;
    of examples, even seeds take as they are what odd ones shuffle. What is unbatched hangs on the seed alone, not on
    the number of rows.
    """
    rng, once = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    shared: Feeds = {}
    rows: list[Feeds] = [{} for _ in range(count)]
    for port in ports:
        axis = candidate.get(port.name)
        shape = [recipe.sizes[d] if isinstance(d, str) else d for d in named_dims(port)]
        if axis is None:
            shared[port.name] = _draw(once, port, shape, recipe, 0, seed, 1.0, lone=seed == 0 and math.prod(shape) == 1)
            continue
        shape[axis] = 1
        for k, row in enumerate(rows):
            magnitude = 1.0 if even else MAGNITUDES[k % len(MAGNITUDES)]
            row[port.name] = _draw(rng, port, shape, recipe, k, seed, magnitude)
    return shared, rows


def _draw(
    rng: np.random.Generator,
    port: Port,
    shape: Sequence[int],
    recipe: Recipe,
    k: int,
    seed: int,
    magnitude: float,
    *,
    lone: bool = False,
) -> Array:
    """lone: a single number for all rows, of the first inputs that are tried; a step or a length more often than not:
    kernels divide by it without a look, so nought, at which some end the process, is not drawn."""
    examples = recipe.examples.get(port.name)
    if examples:
        example = examples[k % len(examples)].reshape(shape)
        if k < len(examples) and seed % 2 == 0:
            return example
        return rng.permuted(example.reshape(-1)).reshape(shape)
    if port.dtype.startswith("float"):
        values = rng.standard_normal(shape) if seed % 2 == 0 else rng.random(shape)
        return np.asarray(values * magnitude, dtype=port.dtype)
    if port.dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    if port.dtype == "object":
        return np.asarray(rng.choice(np.array(WORDS, dtype=object), shape), dtype=object)
    low, high = recipe.ranges.get(port.name, RANGES[0])
    if lone and not low and high:
        low = 1
    return np.asarray(rng.integers(low, high, shape, endpoint=True), dtype=port.dtype)


def join(shared: Feeds, rows: Sequence[Feeds], candidate: Candidate) -> Feeds:
    """One run's inputs: the rows appended along their batch axes, in order."""
    feeds = dict(shared)
    for name, axis in candidate.items():
        feeds[name] = np.concatenate([row[name] for row in rows], axis=axis)
    return feeds


def poisons(ports: Sequence[Port], row: Feeds, recipe: Recipe, seed: int) -> list[Feeds]:
    """Replacements for a row that no other row may notice: NaN, infinities, huge numbers, other integers, words."""
    rng = np.random.default_rng(seed)
    kinds: list[Feeds] = []
    for value in (np.nan, np.inf, -np.inf, 1e30, None):
        poison: Feeds = {}
        for port in ports:
            if port.name not in row:
                continue
            old = row[port.name]
            if port.dtype.startswith("float") and value is not None:
                with np.errstate(over="ignore"):
                    poison[port.name] = np.full_like(old, np.array(value).astype(port.dtype))
            elif port.dtype == "bool":
                poison[port.name] = ~old
            else:
                poison[port.name] = _draw(rng, port, old.shape, recipe, 1, 1, 7.0)
        kinds.append(poison)
    floats = any(port.dtype.startswith("float") and port.name in row for port in ports)
    return kinds if floats else kinds[-1:]
