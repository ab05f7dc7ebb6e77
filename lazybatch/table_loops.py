"""The loops of a latency table: what its provenance keeps of the graph, so that a table alone can be simulated.

Owns: `TableLoop`, `loops_of`, `graph_of`, `described`, the provenance key ``loops``.
Must not know: how tables are measured, models, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from lazybatch.core.graph import Loop, NodeGraph
from lazybatch.core.latency import LatencyTable
from lazybatch.errors import InvalidInput

KEY = "loops"


class TableLoop(NamedTuple):
    """A loop of the graph a table was measured on.

    counted: whether it is known beforehand how many iterations a row makes. iterations: how many a measured run made.
    """

    loop: Loop
    counted: bool = False
    iterations: int = 1


def described(loops: Sequence[TableLoop]) -> list[dict[str, object]]:
    """The provenance that `loops_of` reads."""
    return [{**asdict(one.loop), "counted": one.counted, "iterations": one.iterations} for one in loops]


def loops_of(table: LatencyTable) -> tuple[TableLoop, ...]:
    """The loops a table tells of; none for a static graph. Raises `InvalidInput` where what it tells is damaged."""
    given = table.provenance.get(KEY, [])
    try:
        if not isinstance(given, list):
            raise TypeError("not a list")
        return tuple(_loop(one) for one in given)
    except (KeyError, TypeError) as error:
        raise InvalidInput(
            f"latency table of {table.model!r}: its loops are damaged ({error}): {given!r:.120}"
        ) from None


def graph_of(table: LatencyTable) -> NodeGraph:
    """The graph a table was measured on: its nodes and loops. Raises `InvalidInput` where the loops do not fit."""
    return NodeGraph.chain(table.model, table.nodes, [one.loop for one in loops_of(table)])


def _loop(one: Mapping[str, Any]) -> TableLoop:
    name, first, stop, most = one["name"], one["first"], one["stop"], one.get("trips_max")
    iterations = one.get("iterations", 1)
    if not isinstance(name, str) or any(type(number) is not int for number in (first, stop, iterations)):
        raise TypeError("a loop has a name, and is from one node to another")
    if most is not None and type(most) is not int:
        raise TypeError("trips_max is a number or null")
    loop = Loop(name, first, stop, same_iteration=one.get("same_iteration") is True, trips_max=most)
    return TableLoop(loop, one.get("counted") is True, max(1, iterations))
