"""Trained models with loops, whose weights lie in installed packages: what there is, without opening any of it.

Owns: `TRAINED`.
Must not know: what the models compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphs import g2p, silero


@dataclass(frozen=True, slots=True)
class Trained:
    """One model. what: its stages and outputs, in words.

    export: writes it into a folder and returns the path of its ``program.json``. check: compares what was written with
    the package's own network, and says what was compared; raises `BuildError` where they differ.
    """

    what: str
    export: Callable[[Path], Path]
    check: Callable[[Path], Mapping[str, object]]


TRAINED: Mapping[str, Trained] = {
    silero.NAME: Trained("voice (loop) -> probability", silero.export, silero.check),
    g2p.NAME: Trained("encoder (loop) -> decoder (loop) -> phonemes", g2p.export, g2p.check),
}
"""By the name of the folder they are written into."""
