"""Inputs to probe a model with: which axes may be the batch, which sizes it accepts, which numbers it swallows.

Owns: `Candidate` batch axes, `Recipe` (free sizes and value ranges found by trying), and the making of rows.
Must not know: what outputs prove; how the model is cut.

Names of axes are used only to group equal symbols, never to guess what they mean.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazybatch.errors import InvalidInput
from lazybatch.partition.onnx.source import Port

Array = NDArray[Any]
Feeds = dict[str, Array]
Candidate = dict[str, int]
"""Input name -> batch axis. Inputs that are not named are the same for all rows."""

Run = Callable[[Feeds], Sequence[Array]]

SIZES = (16, 32, 24, 48, 64, 8, 12, 7, 5, 4, 3, 2, 1, 96, 128, 80, 160, 224, 299, 256, 320, 512, 640)
RANGES = ((0, 1), (0, 9), (0, 99))
SCALARS = (1, 0, 2, 8, 16000, 8000)
WORDS = ("a", "B c", "longer text", "42", "-1.5")
IMAGE_SIZE = 128
SEQUENCE_SIZE = 64
SEARCH_SECONDS = 60.0
SEARCH_RUNS = 150
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


def symbolic(ports: Sequence[Port], rank_if_unknown: int = 2) -> tuple[Port, ...]:
    """Ports whose every dimension is an int or a symbol; anonymous ones get a symbol of their own."""
    named = []
    for port in ports:
        dims = port.dims if port.dims is not None else (None,) * rank_if_unknown
        named.append(
            Port(port.name, port.dtype, tuple(f"{port.name}[{k}]" if d is None else d for k, d in enumerate(dims)))
        )
    return tuple(named)


def candidates(ports: Sequence[Port], declared: Mapping[str, int | None] | None) -> list[Candidate]:
    """Possible batch axes, most promising first. Declared axes are taken at their word, alone.

    Raises `InvalidInput` for a declaration that names no input or no axis.
    """
    if declared is not None:
        return [_declared(ports, declared)]
    groups = _groups(ports)
    ranked: list[tuple[tuple[bool, int, int], Candidate]] = []
    for count in range(1, min(len(groups), 4) + 1):
        for chosen in itertools.islice(itertools.combinations(groups, count), 40):
            names = [name for group in chosen for name in group]
            if len(names) != len(set(names)):
                continue
            axes = {name: axis for group in chosen for name, axis in group.items()}
            touches_first = all(0 in group.values() for group in chosen)
            ranked.append(((not touches_first, -len(axes), sum(axes.values())), axes))
    whole = {name: axis for group in groups if 0 in group.values() for name, axis in group.items()}
    if len(groups) > 4:
        ranked.append(((False, -len(whole), 0), whole))
    ranked.sort(key=lambda entry: entry[0])
    unique: list[Candidate] = []
    for _, axes in ranked:
        if axes and axes not in unique:
            unique.append(axes)
    return unique[:24]


def _declared(ports: Sequence[Port], declared: Mapping[str, int | None]) -> Candidate:
    known = {port.name: port for port in ports}
    axes: Candidate = {}
    for name, axis in declared.items():
        if name not in known:
            raise InvalidInput(f"batch_axes names {name!r}, which is no input; inputs are {sorted(known)}")
        if axis is None:
            continue
        dims = known[name].dims or ()
        if not 0 <= axis < len(dims):
            raise InvalidInput(f"batch_axes says axis {axis} of input {name!r}, which has {len(dims)} dimensions")
        axes[name] = axis
    return axes


def _groups(ports: Sequence[Port]) -> list[Candidate]:
    """Axes that share a symbol, as one group per symbol; all anonymous first axes are one more group."""
    by_symbol: dict[str, Candidate] = {}
    repeated: set[str] = set()
    anonymous: Candidate = {}
    for port in ports:
        for axis, dim in enumerate(named_dims(port)):
            if isinstance(dim, int):
                continue
            if dim == f"{port.name}[{axis}]" and axis == 0:
                anonymous[port.name] = 0
            members = by_symbol.setdefault(dim, {})
            if port.name in members:
                repeated.add(dim)
            members[port.name] = axis
    groups = [group for symbol, group in by_symbol.items() if symbol not in repeated]
    if len(anonymous) > 1:
        groups.insert(0, anonymous)
    return groups


def batch_symbols(ports: Sequence[Port], candidate: Candidate) -> set[str]:
    """The symbols that stand for the number of rows under this candidate."""
    found = set()
    for port in ports:
        axis = candidate.get(port.name)
        if axis is not None:
            dim = named_dims(port)[axis]
            if isinstance(dim, str):
                found.add(dim)
    return found


def find_recipes(
    ports: Sequence[Port],
    candidate: Candidate,
    run: Run,
    examples: Mapping[str, Sequence[Array]] | None = None,
    want: int = 2,
) -> list[Recipe]:
    """Up to ``want`` recipes with different free sizes that the model accepts for one row; empty: none found."""
    if examples:
        recipe = _from_examples(ports, candidate, examples)
        return [recipe] if _accepts(ports, candidate, recipe, run) else []
    rows = batch_symbols(ports, candidate)
    free = list(dict.fromkeys(d for port in ports for d in named_dims(port) if isinstance(d, str) and d not in rows))
    integers = [port for port in ports if port.dtype.startswith(("int", "uint"))]
    found: list[Recipe] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    for tries, sizes in enumerate(_sizes(free)):
        if found and (len(found) >= want or not free):
            break
        if tries >= SEARCH_RUNS or time.monotonic() > deadline:
            break
        if found and any(found[0].sizes[symbol] == size for symbol, size in sizes.items() if _loose(found[0], symbol)):
            continue
        for start in _starts(integers):
            recipe = Recipe({**sizes, **dict.fromkeys(rows, 1)}, start)
            if _accepts(ports, candidate, recipe, run):
                found.append(_widened(ports, candidate, recipe, run, integers))
                break
    return found


def _loose(recipe: Recipe, symbol: str) -> bool:
    """Whether a second recipe should differ in this symbol: always, unless there are several to vary."""
    return len(recipe.sizes) <= 2 and recipe.sizes[symbol] != 1


def _sizes(free: Sequence[str]) -> Any:
    for size in SIZES:
        yield dict.fromkeys(free, size)
    if 1 < len(free) <= 4:
        for mixed in itertools.product((16, 32, 48, 1, 2, 64, 8), repeat=len(free)):
            if len(set(mixed)) > 1:
                yield dict(zip(free, mixed, strict=True))


def _starts(integers: Sequence[Port]) -> Any:
    yield {port.name: RANGES[0] for port in integers}
    small = [port for port in integers if not port.dims]
    if small:
        for value in SCALARS:
            yield {port.name: (value, value) if port in small else RANGES[0] for port in integers}
    if integers:
        yield {port.name: (1, 1) for port in integers}


def _widened(ports: Sequence[Port], candidate: Candidate, recipe: Recipe, run: Run, integers: Sequence[Port]) -> Recipe:
    """The recipe with each batched integer input's range as wide as the model accepts it."""
    for port in integers:
        if port.name not in candidate:
            continue
        for bounds in RANGES[1:]:
            wider = Recipe(recipe.sizes, {**recipe.ranges, port.name: bounds})
            if not all(_accepts(ports, candidate, wider, run, seed) for seed in range(3)):
                break
            recipe = wider
    return recipe


def typical(ports: Sequence[Port], candidate: Candidate, recipe: Recipe, run: Run) -> Recipe:
    """The recipe with free sizes nearer to real use where the model accepts them: small ones are all overhead."""
    if recipe.examples:
        return recipe
    sizes = dict(recipe.sizes)
    for port in ports:
        target = IMAGE_SIZE if len(port.dims or ()) == 4 else SEQUENCE_SIZE
        for axis, dim in enumerate(named_dims(port)):
            if isinstance(dim, str) and axis != candidate.get(port.name) and sizes[dim] < target:
                larger = Recipe({**sizes, dim: target}, recipe.ranges)
                if dim not in batch_symbols(ports, candidate) and _accepts(ports, candidate, larger, run):
                    sizes[dim] = target
    return Recipe(sizes, recipe.ranges)


def _accepts(ports: Sequence[Port], candidate: Candidate, recipe: Recipe, run: Run, seed: int = 0) -> bool:
    shared, rows = make_rows(ports, candidate, recipe, 1, seed)
    try:
        run(join(shared, rows, candidate))
    except Exception:
        return False
    return True


def _from_examples(ports: Sequence[Port], candidate: Candidate, examples: Mapping[str, Sequence[Array]]) -> Recipe:
    """Sizes and ranges read off the user's examples, which may come with or without the batch axis."""
    sizes: dict[str, int] = dict.fromkeys(batch_symbols(ports, candidate), 1)
    ranges: dict[str, tuple[int, int]] = {}
    rows: dict[str, Sequence[Array]] = {}
    for port in ports:
        if port.name not in examples:
            raise InvalidInput(f"example_inputs lacks input {port.name!r}")
        dims, axis = named_dims(port), candidate.get(port.name)
        given: list[Array] = []
        for value in examples[port.name]:
            array = np.asarray(value, dtype=port.dtype)
            if axis is not None and array.ndim == len(dims):
                given.extend(np.take(array, k, axis=axis) for k in range(array.shape[axis]))
            else:
                given.append(array)
        want = [dim for k, dim in enumerate(dims) if k != axis]
        for array in given:
            if array.ndim != len(want):
                raise InvalidInput(f"example_inputs[{port.name!r}] has {array.ndim} dimensions, expected {len(want)}")
        sizes.update((dim, size) for dim, size in zip(want, given[0].shape, strict=True) if isinstance(dim, str))
        rows[port.name] = [array for array in given if array.shape == given[0].shape]
        if port.dtype.startswith(("int", "uint")):
            ranges[port.name] = (min(int(a.min()) for a in given), max(int(a.max()) for a in given))
    return Recipe(sizes, ranges, rows)


def make_rows(
    ports: Sequence[Port], candidate: Candidate, recipe: Recipe, count: int, seed: int, *, even: bool = False
) -> tuple[Feeds, list[Feeds]]:
    """Unbatched inputs, and ``count`` unequal rows of very different magnitude (unless ``even``).

    Each row's arrays have length 1 on the batch axis. Odd seeds draw from [0, 1), even ones from a normal distribution.
    """
    rng = np.random.default_rng(seed)
    shared: Feeds = {}
    rows: list[Feeds] = [{} for _ in range(count)]
    for port in ports:
        axis = candidate.get(port.name)
        shape = [recipe.sizes[d] if isinstance(d, str) else d for d in named_dims(port)]
        if axis is None:
            shared[port.name] = _draw(rng, port, shape, recipe, 0, seed, 1.0)
            continue
        shape[axis] = 1
        for k, row in enumerate(rows):
            magnitude = 1.0 if even else MAGNITUDES[k % len(MAGNITUDES)]
            row[port.name] = _draw(rng, port, shape, recipe, k, seed, magnitude)
    return shared, rows


def _draw(
    rng: np.random.Generator, port: Port, shape: Sequence[int], recipe: Recipe, k: int, seed: int, magnitude: float
) -> Array:
    examples = recipe.examples.get(port.name)
    if examples:
        example = examples[k % len(examples)].reshape(shape)
        if k < len(examples) and seed == 0:
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
