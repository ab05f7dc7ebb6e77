"""Lengths that were seen, as files: how many iterations rows made in each loop, and how long their inputs were.

Owns: reading recorded lengths (JSON, CSV, plain lines), the characterisation file, and `Lengths`, what it holds.
Must not know: what is guessed from lengths (`core.lengths`), models, who recorded them.

A characterisation is JSON: ``{"lengths": 1, "coverage": 0.9, "loops": {"decoder": [[in, out], ...]}}``, one pair per
row; a plain number is an output length of a row whose input length is not known. The loop ``"*"`` stands for every
loop that is not named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybatch.core.graph import NodeGraph
from lazybatch.core.lengths import COVERAGE, LengthGuess
from lazybatch.errors import InvalidInput
from lazybatch.files import cells, read_text, unrepeated
from lazybatch.profiles import write_json

ANY = "*"
"""Every loop that is not named."""
FORMAT_VERSION = 1
UNKNOWN_SIZE = 1
"""The input length of rows of which none was recorded, as it is of requests that have none."""

Pair = tuple[int, int]
"""Input length and output length (iterations) of one row."""
_DIGITS_MAX = 20
"""Of a length; Python refuses to read numbers of thousands."""
_INPUTS = ("input", "in", "source")
_OUTPUTS = ("output", "out", "length", "target")


class Lengths(Mapping[str, LengthGuess]):
    """Lengths seen, by loop; as a mapping: what is guessed from them.

    pairs: by loop, (input length, iterations) of every row seen. coverage: share of rows a guess is to cover.
    Raises `InvalidInput` for loops without rows, lengths below 1, a coverage not within (0, 1].
    """

    def __init__(self, pairs: Mapping[str, Sequence[Pair]], coverage: float = COVERAGE) -> None:
        if not pairs:
            raise InvalidInput("lengths: no loop has any")
        self.pairs = {loop: tuple(rows) for loop, rows in pairs.items()}
        self.coverage = coverage
        self._made: dict[str, LengthGuess] = {}
        for loop in self.pairs:
            self[loop]

    def __getitem__(self, loop: str) -> LengthGuess:
        made = self._made.get(loop)
        if made is None:
            rows = self.pairs[loop]
            lengths, sizes = [length for _, length in rows], [size for size, _ in rows]
            try:
                made = self._made[loop] = LengthGuess.of(lengths, sizes, coverage=self.coverage)
            except InvalidInput as error:
                raise InvalidInput(f"loop {loop!r}: {error}") from None
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def of(self, loop: str) -> tuple[Pair, ...] | None:
        """The rows of this loop, or those of any; None where there are neither."""
        return self.pairs.get(loop, self.pairs.get(ANY))

    @property
    def sized(self) -> bool:
        """Whether input lengths are known."""
        return any(size != UNKNOWN_SIZE for rows in self.pairs.values() for size, _ in rows)

    def save(self, path: str | Path) -> None:
        """Write the characterisation, whole or not at all. Raises `InvalidInput` if the file cannot be written."""
        loops = {loop: [list(pair) for pair in rows] for loop, rows in self.pairs.items()}
        write_json(Path(path), {"lengths": FORMAT_VERSION, "coverage": self.coverage, "loops": loops})


def load_lengths(path: str | Path, loop: str = ANY, coverage: float | None = None) -> Lengths:
    """Lengths from a file: a characterisation, as `Lengths.save` and ``lazybatch characterize`` write it, or lengths as
    somebody recorded them, an output length per row, or input and output length.

    JSON (name ends in .json, or text that begins with a bracket): a characterisation; a list of numbers, of [in, out]
    pairs, or of objects with "input" and "output"; or an object with such a list per loop. Anything else: a line per
    row, ``out`` or ``in,out``; a first line that names the columns says which is which; empty lines and lines that
    begin with ``#`` are skipped.
    loop: whose lengths they are, where the file does not say. coverage: share of rows a guess is to cover; None: what a
    characterisation says, else 0.9.

    Raises `InvalidInput` naming the line or entry.
    """
    path = Path(path)
    text = read_text(path, "lengths")
    if path.suffix != ".json" and not text.lstrip().startswith(("{", "[")):
        return _made(path, {loop: _lines(path, text)}, coverage)
    document = _json(path, text)
    # A recorded loop may be called "lengths": then a list stands there, and no version of the format.
    if isinstance(document, dict) and not isinstance(document.get("lengths", []), list):
        return _characterisation(path, document, coverage)
    lists = document if isinstance(document, dict) else {loop: document}
    return _made(path, {name: _pairs(f"lengths {str(path)!r}", rows) for name, rows in lists.items()}, coverage)


def _characterisation(path: Path, document: dict[str, Any], coverage: float | None) -> Lengths:
    if document["lengths"] != FORMAT_VERSION:
        raise InvalidInput(
            f"lengths {str(path)!r} have format version {document['lengths']!r}, this lazybatch reads {FORMAT_VERSION}"
        )
    own, loops = document.get("coverage", COVERAGE), document.get("loops")
    if isinstance(own, bool) or not isinstance(own, int | float):
        raise InvalidInput(f"lengths {str(path)!r}: 'coverage' must be a number, got {own!r}")
    if not isinstance(loops, dict) or not loops:
        raise InvalidInput(f"lengths {str(path)!r}: 'loops' must be an object with a list per loop, got {loops!r:.80}")
    pairs = {loop: _pairs(f"lengths {str(path)!r}, loop {loop!r}", rows) for loop, rows in loops.items()}
    return _made(path, pairs, own if coverage is None else coverage)


def guesses_for(graph: NodeGraph, lengths: Mapping[str, LengthGuess]) -> tuple[LengthGuess | None, ...]:
    """What is guessed of each loop of a graph, in order; None for those of which nothing is known.

    Raises `InvalidInput` for lengths of a loop that the graph does not have.
    """
    known = [loop.name for loop in graph.loops]
    for name in lengths:
        if name != ANY and name not in known:
            raise InvalidInput(
                f"lengths of loop {name!r}: model {graph.model!r} has "
                f"{', '.join(map(repr, known)) if known else 'no loops'}"
            )
    return tuple(lengths.get(name, lengths.get(ANY)) for name in known)


def _made(path: Path, pairs: Mapping[str, Sequence[Pair]], coverage: float | None) -> Lengths:
    try:
        return Lengths(pairs, COVERAGE if coverage is None else coverage)
    except InvalidInput as error:
        raise InvalidInput(f"lengths {str(path)!r}: {error}") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unrepeated)
    except InvalidInput as error:
        raise InvalidInput(f"lengths {str(path)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"lengths {str(path)!r}: damaged or not JSON ({error})") from error


def _pairs(where: str, rows: object) -> list[Pair]:
    if not isinstance(rows, list):
        raise InvalidInput(f"{where}: expected a list with an entry per row, got {rows!r:.80}")
    return [_pair(f"{where}, entry {number}", row) for number, row in enumerate(rows, start=1)]


def _pair(where: str, row: object) -> Pair:
    if isinstance(row, dict):
        given = {key: next((row[name] for name in names if name in row), None) for key, names in _COLUMNS.items()}
        if given["output"] is None:
            raise InvalidInput(f"{where}: no output length in {row!r:.80}")
        size = UNKNOWN_SIZE if given["input"] is None else _length(where, given["input"])
        return size, _length(where, given["output"])
    if isinstance(row, list):
        if len(row) != 2:
            raise InvalidInput(f"{where}: expected an output length, or input and output length, got {row!r:.80}")
        return _length(where, row[0]), _length(where, row[1])
    return UNKNOWN_SIZE, _length(where, row)


_COLUMNS = {"input": _INPUTS, "output": _OUTPUTS}


def _lines(path: Path, text: str) -> list[Pair]:
    lines = [
        (number, cells(f"lengths {str(path)!r}, line {number}", line))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    header = _header([cell.lower() for cell in lines[0][1]]) if lines else None
    rows: list[Pair] = []
    for number, row in lines[1:] if header is not None else lines:
        where = f"lengths {str(path)!r}, line {number}"
        if header is not None:
            if max(place for place in header.values() if place is not None) >= len(row):
                raise InvalidInput(f"{where}: {len(row)} cells, the first line names more columns")
            row = [row[place] for place in (header["input"], header["output"]) if place is not None]
        elif len(row) > 2:
            raise InvalidInput(f"{where}: expected an output length, or input and output length, got {len(row)} cells")
        lengths = [_length(where, cell) for cell in row]
        rows.append((lengths[0] if len(lengths) > 1 else UNKNOWN_SIZE, lengths[-1]))
    return rows


def _header(cells: Sequence[str]) -> dict[str, int | None] | None:
    """Where a first line says that input and output lengths stand; None where it names no output length."""
    places = {
        key: next((cells.index(name) for name in names if name in cells), None) for key, names in _COLUMNS.items()
    }
    return None if places["output"] is None else places


def _length(where: str, value: object) -> int:
    text = str(value)
    known = not isinstance(value, bool | float) and len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()
    if not (known and 0 < int(text) < 1 << 31):
        raise InvalidInput(f"{where}: a length must be a positive whole number, got {value!r:.80}")
    return int(text)
