"""How often simulated requests go round the loops of a table.

Owns: `Trips`, made of fixed numbers (`fixed`) or drawn from lengths that were seen (`drawn`).
Must not know: arrivals, policies, how anything is simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lazybatch.core.latency import LatencyTable
from lazybatch.core.lengths import LENGTH_MAX, LengthGuess
from lazybatch.core.request import Request
from lazybatch.errors import InvalidInput
from lazybatch.lengths import ANY, UNKNOWN_SIZE, Lengths, Pair, guesses_for
from lazybatch.table_loops import TableLoop, graph_of, loops_of

TRIPS_MAX = LENGTH_MAX


@dataclass(frozen=True, slots=True)
class Trips:
    """What rows do in the loops of one graph, and what the scheduler is told of it.

    guesses: per loop, the characterisation. counted: per loop, whether requests say their trips themselves.
    rows: per request, in order, its input size and its trips per loop; requests beyond the last begin anew.
    """

    guesses: tuple[LengthGuess | None, ...]
    counted: tuple[bool, ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]

    def told(self, requests: Iterable[Request]) -> list[Request]:
        """The requests with their sizes, and with those trips that are known beforehand."""
        made = []
        for number, request in enumerate(requests):
            size, counts = self.rows[number % len(self.rows)]
            known = tuple(count if told else None for count, told in zip(counts, self.counted, strict=True))
            made.append(replace(request, size=size, trips=known))
        return made

    def truth(self, requests: Sequence[Request]) -> dict[int, tuple[int, ...]]:
        """By request id, the trips it makes in every loop, as `lazybatch.simulator.simulate` wants them."""
        return {request.id: self.rows[number % len(self.rows)][1] for number, request in enumerate(requests)}


def fixed(table: LatencyTable, text: str) -> Trips:
    """The same for every request: "20", or "encoder=12,decoder=20". Raises `InvalidInput` naming the loop."""
    loops = loops_of(table)
    given: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        name = name.strip() if equals else ""
        if name in given:
            raise InvalidInput(f"trips {text!r} are given twice for {f'loop {name!r}' if name else 'every loop'}")
        given[name] = _count(text, number)
    known = [one.loop.name for one in loops]
    unknown = [name for name in given if name and name not in known]
    if unknown:
        raise InvalidInput(f"trips {text!r}: {table.model!r} has no loop {unknown[0]!r}; it has {', '.join(known)}")
    missing = [name for name in known if name not in given and "" not in given]
    if missing:
        raise InvalidInput(f"trips {text!r} say nothing of loop {missing[0]!r} of {table.model!r}")
    counts = tuple(_within(one, given.get(one.loop.name, given.get("", 1))) for one in loops)
    guesses = tuple(LengthGuess.of([count]) for count in counts)
    return Trips(guesses, tuple(one.counted for one in loops), ((1, counts),))


def _count(text: str, number: str) -> int:
    stripped = number.strip()
    digits = stripped.isascii() and stripped.isdecimal() and len(stripped) <= len(str(TRIPS_MAX))
    if not (digits and 0 < int(stripped) <= TRIPS_MAX):
        raise InvalidInput(f"trips must be whole numbers from 1 to {TRIPS_MAX} (20, or decoder=20), got {text!r:.80}")
    return int(stripped)


def _within(loop: TableLoop, count: int) -> int:
    """No row makes more trips than its loop allows."""
    most = loop.loop.trips_max
    return count if most is None else min(count, most)


def drawn(table: LatencyTable, lengths: Lengths, requests: int, seed: int) -> Trips:
    """One row that was seen for each request, drawn with replacement; what one row did in several loops stays together.

    A loop whose trips are known beforehand and of which no lengths were seen makes as many as the input is long; so it
    does where there are several loops, and "*" speaks of it: those are outputs of loops that are not.
    Raises `InvalidInput` for loops of which nothing is known, and for loops with different numbers of rows.
    """
    loops = loops_of(table)
    lengths = _with_inputs(loops, lengths)
    guesses = guesses_for(graph_of(table), lengths)
    seen = [lengths.of(one.loop.name) for one in loops]
    counts = {len(rows) for rows in seen if rows is not None}
    if len(counts) > 1:
        raise InvalidInput(
            f"lengths: the loops of {table.model!r} have different numbers of rows {sorted(counts)}; each needs one "
            "entry per row"
        )
    for one, rows in zip(loops, seen, strict=True):
        if rows is None and not (one.counted and counts):
            raise InvalidInput(f"lengths say nothing of loop {one.loop.name!r} of {table.model!r}")
    # A stream of its own: were it that of arrivals with the same seed, long rows would come after long gaps.
    picks = random.Random(f"trips {seed}").choices(range(counts.pop()), k=requests)
    return Trips(guesses, tuple(one.counted for one in loops), tuple(_row(loops, seen, pick) for pick in picks))


def _with_inputs(loops: Sequence[TableLoop], lengths: Lengths) -> Lengths:
    """The same, and of loops that go round the input, and have no rows of their own, the input sizes of "*"."""
    rows = lengths.pairs.get(ANY, ())
    if len(loops) < 2 or all(size == UNKNOWN_SIZE for size, _ in rows):
        return lengths
    around = [one.loop.name for one in loops if one.counted and one.loop.name not in lengths.pairs]
    inputs = [(size, min(size, TRIPS_MAX)) for size, _ in rows]
    return Lengths({**lengths.pairs, **dict.fromkeys(around, inputs)}, lengths.coverage)


def _row(loops: Sequence[TableLoop], seen: Sequence[Sequence[Pair] | None], pick: int) -> tuple[int, tuple[int, ...]]:
    """Input size and trips of a row that was seen."""
    size = max(rows[pick][0] for rows in seen if rows is not None)
    counts = (_within(one, size if rows is None else rows[pick][1]) for one, rows in zip(loops, seen, strict=True))
    return size, tuple(counts)
