"""Recipes after the examples that a user gives: which of them differ, and which are probed where they are many.

Owns: `example_recipes`, and the sentence about what it leaves out.
Must not know: which axes may be the batch, what a model accepts, what outputs prove.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from lazybatch.errors import InvalidInput
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Array, Candidate, Recipe, named_dims

GROUPS_MAX = 8
"""Each set of unbatched inputs among the examples is probed by itself, in dozens of runs."""


def example_recipes(
    ports: Sequence[Port],
    candidate: Candidate,
    examples: Mapping[str, Sequence[Array]],
    rows: Collection[str],
    accepted: Callable[[Recipe], bool],
) -> list[Recipe]:
    """Sizes and ranges read off the user's examples, which may come with or without the batch axis.

    Requests whose unbatched inputs differ never share a batch, and may take different ways through the model: each set
    of them is a recipe, up to `GROUPS_MAX` that are accepted. rows: symbols that stand for the number of rows.
    Raises `InvalidInput` for examples that do not fit the inputs.
    """
    for port in ports:
        if port.name not in examples:
            raise InvalidInput(f"example_inputs lacks input {port.name!r}")
    groups = _groups_of(ports, candidate, examples)
    ranges = {
        port.name: (
            min(int(a.min()) for group in groups for a in group[port.name]),
            max(int(a.max()) for group in groups for a in group[port.name]),
        )
        for port in ports
        if port.dtype.startswith(("int", "uint"))
    }
    recipes = ((k, _recipe_of(ports, candidate, groups[k], ranges, rows)) for k in _telling_first(candidate, groups))
    chosen = itertools.islice(((k, recipe) for k, recipe in recipes if accepted(recipe)), GROUPS_MAX)
    return [recipe for _, recipe in sorted(chosen, key=lambda entry: entry[0])]


def left_out(ports: Sequence[Port], candidate: Candidate, examples: Mapping[str, Sequence[Array]] | None) -> str | None:
    """A sentence where examples have more different unbatched inputs than are probed."""
    count = len(_groups_of(ports, candidate, examples)) if examples else 0
    if count <= GROUPS_MAX:
        return None
    return f"of {count} different sets of unbatched inputs among example_inputs, {GROUPS_MAX} were probed"


def _groups_of(
    ports: Sequence[Port], candidate: Candidate, examples: Mapping[str, Sequence[Array]]
) -> list[dict[str, list[Array]]]:
    """The examples of each input, by equal unbatched inputs."""
    given = {port.name: [np.asarray(value, dtype=port.dtype) for value in examples[port.name]] for port in ports}
    alike: dict[object, dict[str, list[Array]]] = {}
    for number in range(len(given[ports[0].name])):
        request = {name: values[number] for name, values in given.items()}
        own = tuple((value.shape, _bits(value)) for name, value in request.items() if name not in candidate)
        group = alike.setdefault(own, {name: [] for name in request})
        for name, value in request.items():
            group[name].append(value)
    return list(alike.values())


def _telling_first(candidate: Candidate, groups: Sequence[Mapping[str, Sequence[Array]]]) -> list[int]:
    """Numbers of the groups: those of new shapes first, then those with a new truth or whole number, then others."""
    seen: set[object] = set()
    rank: dict[int, int] = {}
    for k, group in enumerate(groups):
        own = {name: values[0] for name, values in group.items() if name not in candidate}
        shapes = tuple(value.shape for value in own.values())
        flags = {(name, value.item()) for name, value in own.items() if value.size == 1 and value.dtype.kind in "biu"}
        rank[k] = 0 if shapes not in seen else 1 if not flags <= seen else 2
        seen |= {shapes, *flags}
    return sorted(rank, key=rank.__getitem__)


def _bits(value: Array) -> object:
    return tuple(value.flat) if value.dtype.kind == "O" else value.tobytes()


def _recipe_of(
    ports: Sequence[Port],
    candidate: Candidate,
    examples: Mapping[str, Sequence[Array]],
    ranges: Mapping[str, tuple[int, int]],
    symbols: Collection[str],
) -> Recipe:
    """The recipe of requests whose unbatched inputs are equal."""
    sizes: dict[str, int] = dict.fromkeys(symbols, 1)
    rows: dict[str, Sequence[Array]] = {}
    for port in ports:
        dims, axis = named_dims(port), candidate.get(port.name)
        given: list[Array] = []
        for array in examples[port.name]:
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
    return Recipe(sizes, ranges, rows)
