"""Letters to phonemes: the trained encoder and decoder of the package g2p-en, as a program of two loops.

Owns: reading the package's weights, the program, a plain evaluation in NumPy, and the check of one against the other.
Must not know: ONNX operators (`graphs.g2p_onnx`), how programs are served.

The network: letters are embedded and read by a GRU, one per iteration; the state after the end-of-word letter starts a
second GRU, which is given its own last phoneme (at first the start symbol) and puts out the likeliest next one, until
that is the end symbol. Weights and the numbering of letters and phonemes are the package's (Park and Kim, Apache 2.0).

    letters (N,) int64 -> encoder, a loop over letters -> decoder, a loop until the end symbol -> phonemes (M,) int64
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.build import BuildError
from graphs.packages import packaged
from graphs.words import words

REQUIREMENT = "g2p-en==2.1.0"
NAME = "g2p"
WIDTH = 256
STEPS_MAX = 20
"""Phonemes of a word at most: the package stops there, and so does the program, which marks the row as truncated."""

LETTER_UNKNOWN, LETTER_END = 1, 2
START, END = 2, 3
_ARPABET = """
    <pad> <unk> <s> </s>
    AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2
    EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH
    UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH
"""
PHONEMES = tuple(_ARPABET.split())
"""ARPAbet with stress, by the number the network gives it."""

CHARACTERISED, CHARACTERISED_SEED = 1000, 1 << 20
"""Words whose letters and phonemes are counted for the file of lengths; their seed is far from those of requests."""

Array = NDArray[Any]


def letters(word: str) -> Array:
    """A word as the program's input: (letters + 1,) int64, small letters from 3 on, then the end of the word."""
    numbers = [ord(one) - ord("a") + 3 if "a" <= one <= "z" else LETTER_UNKNOWN for one in word.lower()]
    return np.array([*numbers, LETTER_END], np.int64)


def spelled(phonemes: Sequence[int] | Array) -> list[str]:
    """What the program answers, as ARPAbet: up to the end symbol, which is missing where the word was cut off."""
    found = [PHONEMES[int(one)] for one in phonemes]
    return found[: found.index(PHONEMES[END])] if PHONEMES[END] in found else found


@dataclass(frozen=True)
class Gru:
    """A gated recurrent unit with its embedding. Gates stand in the order reset, update, new.

    embedding: (symbols, 64). input_weights, state_weights: (3 x 256, 256), twice. Biases: (3 x 256,). float32.
    """

    embedding: Array
    input_weights: Array
    state_weights: Array
    input_bias: Array
    state_bias: Array

    @property
    def width(self) -> int:
        """Numbers in the state."""
        return int(self.state_weights.shape[1])

    def step(self, symbol: int, state: Array) -> Array:
        """The state (256,) after one more symbol."""
        given = self.input_weights @ self.embedding[symbol] + self.input_bias
        kept = self.state_weights @ state + self.state_bias
        reset, update = (
            1 / (1 + np.exp(-(given[gate] + kept[gate]))) for gate in (slice(0, WIDTH), slice(WIDTH, 2 * WIDTH))
        )
        new = np.tanh(given[2 * WIDTH :] + reset * kept[2 * WIDTH :])
        mixed: Array = (1 - update) * new + update * state
        return mixed


@dataclass(frozen=True)
class Weights:
    """All of the network. output_weights: (74, 256), output_bias: (74,)."""

    encoder: Gru
    decoder: Gru
    output_weights: Array
    output_bias: Array

    @classmethod
    def read(cls) -> Weights:
        """From the installed package. Raises `BuildError` where it is missing."""
        with np.load(packaged("g2p_en", "checkpoint20.npz", REQUIREMENT), allow_pickle=False) as data:
            parts = ("emb", "w_ih", "w_hh", "b_ih", "b_hh")
            encoder, decoder = (Gru(*(data[f"{side}_{part}"] for part in parts)) for side in ("enc", "dec"))
            return cls(encoder, decoder, data["fc_w"], data["fc_b"])

    def scores(self, given: Array) -> Iterator[Array]:
        """Plain evaluation of one word: the scores of all phonemes (74,), step by step to the end or the maximum."""
        state = np.zeros(WIDTH, np.float32)
        for letter in given:
            state = self.encoder.step(int(letter), state)
        phoneme = START
        for _ in range(STEPS_MAX):
            state = self.decoder.step(phoneme, state)
            scores = self.output_weights @ state + self.output_bias
            yield scores
            phoneme = int(scores.argmax())
            if phoneme == END:
                return

    def phonemes(self, given: Array) -> Array:
        """Plain evaluation of one word: (phonemes,) int64, the end symbol included where it came."""
        return np.array([scores.argmax() for scores in self.scores(given)], np.int64)


@cache
def _weights() -> Weights:
    return Weights.read()


def requests(count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Words, half of them real, as rows of the program."""
    return [{"letters": letters(word)} for word in words(count, seed)]


def trips(row: Mapping[str, Array]) -> tuple[int, int]:
    """How often a row goes round in each loop, by plain evaluation."""
    given = row["letters"]
    return len(given), sum(1 for _ in _weights().scores(given))


def export(directory: Path) -> Path:
    """Write the program into ``directory``/g2p and return its ``program.json``.

    Beside it lie lengths for ``lazybatch characterize``: letters and phonemes of words, as seen by running them.
    Raises `BuildError` where the package is missing; `OSError`.
    """
    import onnx

    from graphs.g2p_onnx import bodies

    weights = Weights.read()
    folder = directory / NAME
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in bodies(weights, END).items():
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(folder / f"{name}.onnx"))
    path = folder / "program.json"
    path.write_text(json.dumps(PROGRAM, indent=2) + "\n", encoding="utf-8")
    seen = [letters(word) for word in words(CHARACTERISED, CHARACTERISED_SEED)]
    pairs = [[len(one), len(answer)] for one, answer in zip(seen, Bodies(path)(seen), strict=True)]
    found = {"encoder": [[size, size] for size, _ in pairs], "decoder": pairs}
    (folder / "lengths.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    return path


class Bodies:
    """The exported bodies in loops by hand, many words at once; of use where no program has to be served.

    path: of ``program.json``.
    """

    def __init__(self, path: Path) -> None:
        from lazybatch.executors.ort.session import open_session

        self._encoder, self._decoder = (
            open_session(path.parent / f"{name}.onnx", optimise=True) for name in ("encoder", "decoder")
        )

    def __call__(self, given: Sequence[Array]) -> list[Array]:
        """Per word, as numbers of letters, its phonemes, the end symbol included where it came."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(given):
            by_length[len(one)].append(number)
        found: dict[int, Array] = {}
        for alike in by_length.values():
            found |= zip(alike, self._alike(np.stack([given[number] for number in alike])), strict=True)
        return [found[number] for number in range(len(given))]

    def _alike(self, given: Array) -> Iterator[Array]:
        """Words with the same number of letters: (words, letters)."""
        state = np.zeros((len(given), WIDTH), np.float32)
        for letter in given.T:
            (state,) = self._encoder.run(["h_next"], {"letter": letter, "h": state})
        phoneme, steps = np.full(len(given), START, np.int64), []
        for _ in range(STEPS_MAX):
            state, phoneme = self._decoder.run(["h_next", "phoneme_next"], {"phoneme": phoneme, "h": state})
            steps.append(phoneme)
        for row in np.stack(steps, axis=1):
            ends = np.flatnonzero(row == END)
            yield row[: ends[0] + 1] if len(ends) else row


def check(path: Path, *, count: int = 100, seed: int = 0) -> dict[str, object]:
    """Compare the exported bodies with the plain evaluation, word by word. Raises `BuildError` where one differs."""
    plain, given = Weights.read(), words(count, seed)
    for word, answer in zip(given, Bodies(path)([letters(word) for word in given]), strict=True):
        wanted = plain.phonemes(letters(word))
        if not np.array_equal(answer, wanted):
            raise BuildError(f"{path}: {word!r} is {spelled(answer)}, by plain arithmetic {spelled(wanted)}")
    return {"words_compared": count, "words_differing": 0}


PROGRAM = {
    "program": 1,
    "name": NAME,
    "stages": [
        {
            "name": "encoder",
            "model": "encoder.onnx",
            "loop": {"carry": {"h": {"from": "h_next", "start": 0}}, "each": {"letter": "letters"}},
        },
        {
            "name": "decoder",
            "model": "decoder.onnx",
            "loop": {
                "carry": {
                    "h": {"from": "h_next", "start": "encoder.h"},
                    "phoneme": {"from": "phoneme_next", "start": START},
                },
                "done": "finished",
                "trips_max": STEPS_MAX,
                "collect": ["phoneme_next"],
            },
        },
    ],
    "outputs": {"phonemes": "decoder.phoneme_next"},
}
