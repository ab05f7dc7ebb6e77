"""Partitions kept between processes, so that one model has the same cuts, and its latency tables stay valid.

Owns: where cached partitions lie, what they are keyed by, and that an entry is whole or absent.
Must not know: how a partition is made.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from lazybatch.errors import ModelError
from lazybatch.partition.manifest import VERSION, load_partition
from lazybatch.partition.pieces import Partition

CACHE_VARIABLE = "LAZYBATCH_CACHE"
CUTTER = 7
"""Raised whenever the same model would be cut or proved differently than before."""


def cache_directory() -> Path:
    """Where cached partitions lie: the environment variable `CACHE_VARIABLE`, else below the user's home."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "lazybatch"


def cache_key(parts: Mapping[str, object]) -> str:
    """sha256 over the parts (model, options, runtime) and the processor, for whose kernels cuts were chosen."""
    text = json.dumps(
        {**parts, "cpu": _processor(), "version": VERSION, "cutter": CUTTER}, sort_keys=True, default=repr
    )
    return hashlib.sha256(text.encode()).hexdigest()


def cached_partition(key: str, build: Callable[[Path], Partition]) -> Partition:
    """The entry of this key, built where it is missing or damaged.

    Built aside and moved into place, so that others see all of it or nothing; where another process was faster, its
    entry is taken. A cache that cannot be written to is replaced by a directory that lives as long as the process.
    """
    root = cache_directory()
    entry = root / key[:32]
    if entry.is_dir():
        try:
            return load_partition(entry)
        except ModelError:
            _discard(entry)
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
    except OSError:
        return temporary_partition(build)
    try:
        build(draft)
        try:
            draft.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
        return load_partition(entry)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def temporary_partition(build: Callable[[Path], Partition]) -> Partition:
    """Built in a directory that is removed when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="lazybatch-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return build(directory)


def _discard(entry: Path) -> None:
    """Move a damaged entry aside before deleting it, so that nobody opens half of it."""
    aside = entry.with_name(f".damaged-{entry.name}-{os.getpid()}")
    try:
        entry.rename(aside)
    except OSError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _processor() -> str:
    """Architecture and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name")
    found = dict(line.split(":", 1) for line in reversed(lines) if ":" in line and line.startswith(wanted))
    return f"{platform.machine()} {sorted(' '.join(found.values()).split())}"
