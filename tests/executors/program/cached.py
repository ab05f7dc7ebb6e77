"""What a decoder with its own cache answers to one row alone, in a plain loop over the whole model.

Owns: `alone`. Must not know: how programs are executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench.cached_decoder import Decoder
from tests.whole import Whole


def alone(decoder: Decoder, path: Path, firsts: Iterable[int]) -> list[list[int]]:
    """The words after each of these first ones."""
    whole = Whole(path)
    blank = np.zeros((1, *decoder.cache_shape), np.float32)
    found = []
    for first in firsts:
        feeds = {"token": np.array([first]), **dict.fromkeys(decoder.states, blank)}
        words: list[int] = []
        while len(words) < decoder.slots and 0 not in words:
            made = whole.run({**feeds, "position": np.array([len(words)])})
            feeds = {"token": made["token_next"], **{name: made[output] for name, output in decoder.states.items()}}
            words.append(int(made["token_next"][0]))
        found.append(words)
    return found
