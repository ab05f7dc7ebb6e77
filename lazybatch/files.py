"""Reading files that people write: text and JSON, with errors that name the file.

Owns: `read_text`, `cells`, `unrepeated`.
Must not know: what stands in the files.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput


def read_text(path: Path, what: str) -> str:
    """A text file. Raises `InvalidInput` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read the {what} {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        ) from error


def cells(where: str, line: str) -> list[str]:
    """The cells of a line of CSV, without blanks around. Raises `InvalidInput` for what is none, naming ``where``."""
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise InvalidInput(f"{where}: {error}") from None


def unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook`` of `json.loads`: JSON allows a key twice, and the last would win without a word.

    Raises `InvalidInput` naming the key.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"{key!r} is given twice in one object")
        found[key] = value
    return found
