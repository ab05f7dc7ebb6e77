"""Trained models with loops, whose weights lie in installed packages: what there is, without opening any of it.

Owns: `TRAINED`.
Must not know: what the models compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from graphs import g2p, silero

LENGTHS_FILE = "lengths.json"
"""Beside a program: how often rows went round, by loop."""

Row = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Trained:
    """One model. what: its stages and outputs, in words.

    export: writes it into a folder and returns the path of its ``program.json``. check: compares what was written with
    the package's own network, and says what was compared; raises `BuildError` where they differ.
    requests: so many rows as callers submit them, of the lengths that are usual, from a seed. trips: how often a row
    goes round in each loop.
    """

    what: str
    export: Callable[[Path], Path]
    check: Callable[[Path], Mapping[str, object]]
    requests: Callable[[int, int], list[Row]]
    trips: Callable[[Row], tuple[int, ...]]


TRAINED: Mapping[str, Trained] = {
    silero.NAME: Trained("voice (loop) -> probability", silero.export, silero.check, silero.requests, silero.trips),
    g2p.NAME: Trained("encoder (loop) -> decoder (loop) -> phonemes", g2p.export, g2p.check, g2p.requests, g2p.trips),
}
"""By the name of the folder they are written into."""
