"""Lengths: how often loops run, as users say it and as lanes take it.

Owns: `lengths_of`. Must not know: where lengths were measured, how guesses are made from them (`core.lengths`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lengths import LengthGuess
from lazybatch.errors import InvalidInput
from lazybatch.lengths import guesses_for

Lengths = tuple[LengthGuess | None, ...]


def lengths_of(given: Any, graphs: Mapping[str, NodeGraph]) -> dict[str, Lengths]:
    """By model, one guess per loop of its graph; models of which nothing is said are left out.

    given: None, a guess (for the only loop of the only model), guesses in the order of the loops, or a mapping from
    loops' names (``"*"``: any other) to guesses, which `lazybatch.load_lengths` reads; with several models a mapping
    from their names to such. Raises `InvalidInput` naming the model and the loop.
    """
    if given is None:
        return {}
    if len(graphs) == 1 and not (isinstance(given, Mapping) and set(given) <= set(graphs)):
        given = {next(iter(graphs)): given}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"with several models, give a mapping from model name to lengths, got {given!r:.200}")
    unknown = [name for name in given if name not in graphs]
    if unknown:
        raise InvalidInput(f"lengths names the unknown model {unknown[0]!r}; known are {', '.join(graphs)}")
    return {name: _of_model(name, graphs[name], value) for name, value in given.items() if value is not None}


def _of_model(model: str, graph: NodeGraph, given: Any) -> Lengths:
    names = [loop.name for loop in graph.loops]
    if not names:
        raise InvalidInput(f"lengths were given for model {model!r}, which has no loops")
    if isinstance(given, LengthGuess):
        given = [given]
    if isinstance(given, Mapping):
        given = guesses_for(graph, given)
    file = isinstance(given, str | PathLike)
    if file or not isinstance(given, Sequence) or len(given) != len(names):
        raise InvalidInput(
            f"lengths of model {model!r} must hold one LengthGuess for each of its loops {', '.join(names)}, "
            f"got {given!r:.200}{' (lazybatch.load_lengths reads files)' if file else ''}"
        )
    for name, guess in zip(names, given, strict=True):
        if guess is not None and not isinstance(guess, LengthGuess):
            raise InvalidInput(f"lengths of model {model!r}, loop {name!r}: expected a LengthGuess, got {guess!r:.200}")
    return tuple(given)
