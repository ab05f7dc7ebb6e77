"""Rows of a long run, kept as they come, so that an interrupted one goes on where it was.

Owns: `Journal`: a file with a line per finished job, valid for one state of the code.
Must not know: what a job is, beyond its being a frozen dataclass of JSON values; how its rows are made.

Only for jobs in virtual time: what they find depends on the code, the profiles and the versions of packages alone, so
rows that were kept are those that another run would find. The first line says which code wrote the file; rows of
other code are not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.common import ROOT
from lazybatch.profiles import versions

Row = dict[str, Any]
PARTS = ("lazybatch/**/*.py", "bench/*.py", "profiles/**/*.json")
"""What rows depend on."""


class Journal:
    """kept: how many jobs were found in the file. A file of other code, or that cannot be read, is begun anew."""

    def __init__(self, path: Path, *, code: str | None = None) -> None:
        self._path = path
        self._code = code or digest()
        self._rows = self._read()
        self.kept = len(self._rows)
        self._file = path.open("a" if self._rows else "w", encoding="utf-8")
        if not self._rows:
            self._write(self._code)
        elif not path.read_bytes().endswith(b"\n"):  # interrupted in the middle of a line
            self._file.write("\n")

    def rows_of(self, job: Any) -> list[Row] | None:
        """The rows of a job that is done; None for any other."""
        return self._rows.get(_name(job))

    def keep(self, job: Any, rows: list[Row]) -> None:
        """This job is done."""
        self._rows[_name(job)] = rows
        self._write([_name(job), rows])

    def close(self) -> None:
        """Leave the file for another run."""
        self._file.close()

    def remove(self) -> None:
        """Everything is done, and kept elsewhere."""
        self._file.close()
        self._path.unlink()

    def _write(self, value: Any) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()

    def _read(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {}
        with suppress(OSError, UnicodeDecodeError):
            lines = self._path.read_text(encoding="utf-8").splitlines()
            if lines and lines[0] == json.dumps(self._code):
                for line in lines[1:]:
                    with suppress(ValueError):  # an interrupted line
                        name, found = json.loads(line)
                        rows[name] = found
        return rows


def _name(job: Any) -> str:
    return f"{type(job).__name__} {json.dumps(asdict(job), sort_keys=True)}"


def digest(root: Path = ROOT, parts: Iterable[str] = PARTS) -> str:
    """One short text for the code, the profiles and the versions that rows depend on."""
    made = sha256(json.dumps(versions(), sort_keys=True, default=str).encode())
    for part in parts:
        for path in sorted(root.glob(part)):
            made.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return made.hexdigest()[:16]
