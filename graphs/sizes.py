"""How large the models with loops are: widths, layers, longest inputs and outputs, and how lengths are spread.

Owns: one frozen record per model, as published by default and tiny for tests, and seeded requests.
Must not know: torch, ONNX, how a model is built.

Source and target lengths are drawn from seeded distributions (`Spread`): log-normal source lengths, and a target that
is the source times a ratio that varies from row to row, as translations and transcripts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PAD, START, END = 0, 1, 2
"""Ids that are no words. A decoder begins with START and ends with END."""
RESERVED = 3

Row = dict[str, NDArray[Any]]
"""One request, without a batch axis, by the program's inputs."""


class Spread(NamedTuple):
    """How lengths vary. mean, sigma: of the source (log-normal). ratio, ratio_sigma: of target over source (likewise).

    least: the shortest source.
    """

    mean: float
    sigma: float
    ratio: float
    ratio_sigma: float
    least: int

    def draw(
        self, rows: int, source_max: int, target_max: int, rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """Source and target lengths of so many rows; the target's includes the end token."""
        source = self.mean * np.exp(self.sigma * rng.standard_normal(rows) - self.sigma**2 / 2)
        ratio = self.ratio * np.exp(self.ratio_sigma * rng.standard_normal(rows) - self.ratio_sigma**2 / 2)
        lengths = np.clip(np.rint(source), self.least, source_max)
        targets = np.clip(np.rint(lengths * ratio) + 1, 1, target_max)
        return [int(length) for length in lengths], [int(length) for length in targets]


TRANSLATED = Spread(17.5, 0.5, 1.0, 0.15, 3)
"""Sentences of 17.5 words on average, nine of ten within 30, and translations about as long."""
SPOKEN = Spread(280.0, 0.4, 0.15, 0.15, 40)
"""Utterances of 2.8 seconds on average, in frames of 10 ms, at 15 characters per second."""


@dataclass(frozen=True, slots=True)
class Gnmt:
    """GNMT: ``layers`` LSTMs of ``width`` in the encoder and as many in the decoder.

    vocabulary: word pieces of either language. source_max, target_max: tokens of a row.
    """

    layers: int = 8
    width: int = 1024
    vocabulary: int = 32000
    source_max: int = 40
    target_max: int = 56
    spread: Spread = TRANSLATED


@dataclass(frozen=True, slots=True)
class Transformer:
    """Transformer base: ``layers`` blocks in the encoder and as many in the decoder.

    width: of the model. inner: of the feed-forward layers. vocabulary: byte pairs shared by both languages.
    source_max, target_max: tokens of a row; the cache has room for target_max of them.
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 37000
    source_max: int = 40
    target_max: int = 56
    spread: Spread = TRANSLATED


@dataclass(frozen=True, slots=True)
class Las:
    """Listen, Attend and Spell: a BLSTM of ``side`` units a side, ``pyramid`` more that halve the time, two LSTMs.

    features: per frame of 10 ms. speller: width of its LSTMs. vocabulary: characters. source_max: frames of a row, a
    multiple of 2 ** pyramid. target_max: characters of a row.
    """

    features: int = 40
    side: int = 256
    pyramid: int = 3
    speller: int = 512
    spellers: int = 2
    vocabulary: int = 30
    source_max: int = 640
    target_max: int = 120
    spread: Spread = SPOKEN

    @property
    def steps(self) -> int:
        """Length of the listener's longest answer."""
        return self.source_max >> self.pyramid


Size = Gnmt | Transformer | Las

FULL: Mapping[str, Size] = {"gnmt": Gnmt(), "transformer": Transformer(), "las": Las()}
"""As published."""
_SHORT = Spread(10.0, 0.5, 1.0, 0.15, 2)
TINY: Mapping[str, Size] = {
    "gnmt": Gnmt(3, 32, 120, 24, 32, _SHORT),
    "transformer": Transformer(2, 32, 4, 64, 120, 24, 32, _SHORT),
    "las": Las(8, 16, 3, 32, 2, 30, 96, 24, Spread(60.0, 0.4, 0.15, 0.15, 10)),
}
"""The same structure, small and short enough for tests."""


SHORT: Mapping[str, Size] = {
    name: replace(size, spread=size.spread._replace(mean=mean))
    for (name, size), mean in zip(FULL.items(), (8.0, 8.0, 120.0), strict=True)
}
"""The published models, and requests of about half the usual length, where time is short. The files are the same."""


def draw_lengths(size: Size, rows: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """Seeded (source length, target length) pairs."""
    rng = np.random.default_rng(seed)
    sources, targets = size.spread.draw(rows, size.source_max, size.target_max, rng)
    return list(zip(sources, targets, strict=True))


def requests(size: Size, rows: int, *, seed: int = 0) -> list[Row]:
    """Seeded requests: word ids, or unit noise as frames of speech, and how long the answer is to be."""
    rng = np.random.default_rng((seed, 1))
    made: list[Row] = []
    for source, target in draw_lengths(size, rows, seed=seed):
        wanted: NDArray[Any] = np.array(target, dtype=np.int64)
        if isinstance(size, Las):
            heard = rng.standard_normal((source, size.features), dtype=np.float32)
            made.append({"frames": heard, "target_length": wanted})
        else:
            words = rng.integers(RESERVED, size.vocabulary, source)
            made.append({"source": words, "target_length": wanted})
    return made
