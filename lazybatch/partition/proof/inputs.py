"""Inputs to probe a model with: which axes may be the batch, which sizes it accepts, which numbers it swallows.

Owns: the candidate batch axes in the order they are tried, and the search for recipes the model accepts.
Must not know: what outputs prove; how the model is cut.

Names of axes are used only to group equal symbols, never to guess what they mean.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lazybatch.errors import InvalidInput
from lazybatch.partition.proof.examples import example_recipes
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import RANGES, Array, Candidate, Feeds, Recipe, join, make_rows, named_dims

Run = Callable[[Feeds], object]

SIZES = (16, 32, 24, 48, 64, 8, 12, 7, 5, 4, 3, 2, 1, 96, 128, 80, 160, 224, 299, 256, 320, 512, 640)
SCALARS = (1, 0, 2, 8, 16000, 8000)
IMAGE_SIZE = 128
SEQUENCE_SIZE = 64
SEARCH_SECONDS = 60.0
SEARCH_RUNS = 150


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
    """Up to ``want`` recipes with different free sizes that the model accepts for one row; empty: none found.

    With examples: a recipe for each different set of unbatched inputs among them, up to a limit.
    """
    if examples:
        rows = batch_symbols(ports, candidate)
        return example_recipes(ports, candidate, examples, rows, lambda r: accepts(ports, candidate, r, run))
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
            if accepts(ports, candidate, recipe, run):
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
            if not all(accepts(ports, candidate, wider, run, seed) for seed in range(3)):
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
                if dim not in batch_symbols(ports, candidate) and accepts(ports, candidate, larger, run):
                    sizes[dim] = target
    return Recipe(sizes, recipe.ranges)


def resized(
    ports: Sequence[Port], candidate: Candidate, recipe: Recipe, more: Sequence[int] = ()
) -> Iterator[tuple[str, Recipe]]:
    """Each free size of the recipe at 1, doubled, and as ``more`` says, the others as they are: the size's symbol, and
    a recipe of freely drawn values where the symbol occurs."""
    rows = batch_symbols(ports, candidate)
    for symbol, size in recipe.sizes.items():
        if symbol in rows:
            continue
        kept = {port.name for port in ports if symbol not in named_dims(port)}
        examples = {name: values for name, values in recipe.examples.items() if name in kept}
        for other in sorted({1, 2 * size, *more} - {size}):
            yield symbol, Recipe({**recipe.sizes, symbol: other}, recipe.ranges, examples)


def accepts(ports: Sequence[Port], candidate: Candidate, recipe: Recipe, run: Run, seed: int = 0) -> bool:
    """Whether the model runs on one such row."""
    shared, rows = make_rows(ports, candidate, recipe, 1, seed)
    try:
        run(join(shared, rows, candidate))
    except Exception:
        return False
    return True
