"""Arrays kept between processes, in files of the cache directory.

Owns: the files (.npz, without pickled objects): read whole or not at all, written whole or not at all, the oldest
dropped; and the digest that names them.
Must not know: what the arrays mean.

A cache that cannot be read or written is done without: nothing here raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger("lazybatch.controls")

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
DAMAGE = (OSError, EOFError, LookupError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile)
"""What reading a damaged file can raise. RuntimeError: an entry can look encrypted, or compressed in an unknown way."""


def digest(parts: Mapping[str, object]) -> str:
    """A name for everything that an answer follows from; ``parts`` is JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def read_arrays(path: Path, names: Sequence[str]) -> Arrays | None:
    """The arrays of these names; None where there is no file with all of them that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            found = {name: data[name] for name in names}
    except DAMAGE:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used last
    return found


def write_arrays(path: Path, arrays: Mapping[str, Any], kept: int) -> None:
    """Put arrays where others find all of them or nothing; of files with the same prefix the last ``kept`` stay.

    The prefix is what comes before the last hyphen of the name.
    """
    draft: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=".control-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        Path(draft).replace(path)
        draft = None
        _prune(path, kept)
    except OSError as error:
        _log.info("the control is not kept: %s", error)
    finally:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)


def _prune(path: Path, kept: int) -> None:
    """Drop the files used longest ago. Tables measured anew at every start would otherwise fill the cache."""
    found = []
    for file in path.parent.glob(f"{path.stem.rpartition('-')[0]}-*{path.suffix}"):
        with contextlib.suppress(OSError):  # another process may be pruning too
            found.append((file.stat().st_mtime_ns, file))
    for _, file in sorted(found, reverse=True)[kept:]:
        with contextlib.suppress(OSError):
            file.unlink()
