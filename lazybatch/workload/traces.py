"""Recorded traces: arrivals, and what else was recorded of each request.

Owns: `Trace`, `load_trace` (CSV or JSON), `recorded` (times alone).
Must not know: what the requests are for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput
from lazybatch.files import cells, read_text
from lazybatch.workload.arrivals import NS_PER_S

Entry = tuple[str, Any]
"""Where it stands in its source, for messages, and what stands there."""
COLUMNS = ("arrival_s", "length", "model")


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests in order of arrival.

    arrivals_ns: one per request. lengths: the same many, or empty where none were recorded. models: likewise.
    """

    arrivals_ns: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    models: tuple[str, ...] = ()


def recorded(source: str | Path | Iterable[float | int | str | Decimal]) -> list[int]:
    """A recorded trace: a file with one arrival time in seconds per line, or the times themselves.

    Empty lines and lines that begin with ``#`` are skipped. Times must not decrease; equal ones are fine.
    Raises `InvalidInput` naming the line (or position) for anything else.
    """
    if isinstance(source, str | Path):
        entries = _lines(Path(source))
    else:
        entries = [(f"trace, entry {number}", entry) for number, entry in enumerate(source, start=1)]
    return _arrivals(entries)


def load_trace(path: str | Path) -> Trace:
    """A trace from a file: CSV with a header, JSON, or plain times one per line.

    CSV: the column ``arrival_s`` (seconds), optionally ``length`` (a positive whole number) and ``model``; others are
    ignored. JSON (name ends in .json): a list of numbers, or of objects with these keys. A column is there for all
    requests or for none. Raises `InvalidInput` naming the line or entry for anything else, also for times out of order.
    """
    path = Path(path)
    if path.suffix == ".json":
        records = _json_records(path)
    else:
        lines = _lines(path)
        first = [cell.strip() for cell in str(lines[0][1]).split(",")] if lines else []
        if "arrival_s" in first:
            records = _csv_records(first, lines[1:])
        else:
            records = [(where, {"arrival_s": line}) for where, line in lines]
    arrivals_ns = _arrivals([(where, record["arrival_s"]) for where, record in records])
    lengths = [positive_whole(where, value) for where, value in _column(records, "length")]
    models = [str(value) for _, value in _column(records, "model")]
    return Trace(tuple(arrivals_ns), tuple(lengths), tuple(models))


def _arrivals(entries: Iterable[Entry]) -> list[int]:
    arrivals: list[int] = []
    for where, entry in entries:
        at_ns = _seconds(where, entry)
        if arrivals and at_ns < arrivals[-1]:
            raise InvalidInput(
                f"{where}: out of order, {entry} s comes after {arrivals[-1] / NS_PER_S:.9g} s; "
                "arrival times must not decrease"
            )
        arrivals.append(at_ns)
    return arrivals


def _column(records: list[tuple[str, Mapping[str, Any]]], name: str) -> list[Entry]:
    """All values of an optional column; empty where no record has it."""
    held = [(where, record.get(name)) for where, record in records]
    if all(value is None for _, value in held):
        return []
    for where, value in held:
        if value is None:
            raise InvalidInput(f"{where}: no {name}, but other requests of the trace have one")
    return held


def _lines(path: Path) -> list[Entry]:
    stripped = ((number, line.strip()) for number, line in enumerate(read_text(path, "trace").splitlines(), start=1))
    return [
        (f"trace {str(path)!r}, line {number}", line) for number, line in stripped if line and not line.startswith("#")
    ]


def _csv_records(header: list[str], lines: list[Entry]) -> list[tuple[str, Mapping[str, Any]]]:
    records: list[tuple[str, Mapping[str, Any]]] = []
    for where, line in lines:
        row = cells(where, line)
        if len(row) != len(header):
            raise InvalidInput(f"{where}: {len(row)} cells for the {len(header)} columns {', '.join(header)}")
        record = {name: cell for name, cell in zip(header, row, strict=True) if name in COLUMNS}
        records.append((where, {name: cell for name, cell in record.items() if cell or name == "arrival_s"}))
    return records


def _json_records(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        document = json.loads(read_text(path, "trace"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"trace {str(path)!r}: damaged or not JSON ({error})") from error
    if not isinstance(document, list):
        raise InvalidInput(f"trace {str(path)!r}: expected a list of requests, got {type(document).__name__}")
    records: list[tuple[str, Mapping[str, Any]]] = []
    for number, entry in enumerate(document, start=1):
        where = f"trace {str(path)!r}, entry {number}"
        if isinstance(entry, dict) and "arrival_s" in entry:
            records.append((where, entry))
        elif isinstance(entry, dict):
            raise InvalidInput(f"{where}: no arrival_s in {entry!r}")
        else:
            records.append((where, {"arrival_s": entry}))
    return records


def _seconds(where: str, entry: object) -> int:
    """Exact nanoseconds of a decimal number of seconds."""
    try:
        value = Decimal(str(entry))
    except InvalidOperation:
        raise InvalidInput(f"{where}: {entry!r} is not a time in seconds") from None
    if not value.is_finite() or value < 0 or value > 10**9:
        raise InvalidInput(f"{where}: a time must be between 0 and 1e9 seconds, got {entry!r}")
    return int((value * NS_PER_S).to_integral_value())


def positive_whole(where: str, value: object) -> int:
    """A length. Raises `InvalidInput` naming the place for anything but a positive whole number."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InvalidInput(f"{where}: a length must be a positive whole number, got {value!r}")
    return int(text)
