"""Letters to phonemes as a program: two trained loops, whose answers are those of the plain arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphs import g2p
from graphs.words import REAL, invented, words
from tests.graphs.interpreter import Interpreter


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported program."""
    return g2p.export(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def plain() -> g2p.Weights:
    """The package's weights."""
    return g2p.Weights.read()


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("knight", "N AY1 T"),
        ("phlox", "F L AA1 K S"),
        ("hello", "HH EH1 L OW0"),
    ],
)
def test_it_can_read(word: str, phonemes: str, plain: g2p.Weights) -> None:
    """The weights are read in the right order: silent letters are silent."""
    assert g2p.spelled(plain.phonemes(g2p.letters(word))) == phonemes.split()


def test_letters_and_phonemes_are_numbered() -> None:
    """Letters from 3 on, unknown ones 1, the end of the word 2; 74 phonemes; the end symbol cuts the answer."""
    assert g2p.letters("aZ-").tolist() == [3, 28, 1, 2]
    assert g2p.letters("").tolist() == [2]
    assert len(g2p.PHONEMES) == len(set(g2p.PHONEMES)) == 74
    assert g2p.spelled([21, 3, 22]) == [g2p.PHONEMES[21]]
    assert g2p.spelled([21, 22]) == [g2p.PHONEMES[21], g2p.PHONEMES[22]]


def test_the_plain_arithmetic_is_a_gated_unit(plain: g2p.Weights) -> None:
    """The step agrees with torch's GRU cell on the same weights, to rounding."""
    import torch

    unit = plain.decoder
    cell = torch.nn.GRUCell(256, g2p.WIDTH)
    parts = (unit.input_weights, unit.state_weights, unit.input_bias, unit.state_bias)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({name: torch.from_numpy(part) for name, part in zip(names, parts, strict=True)})
    state = np.random.default_rng(0).uniform(-1, 1, g2p.WIDTH).astype(np.float32)
    with torch.no_grad():
        wanted = cell(torch.from_numpy(unit.embedding[5])[None], torch.from_numpy(state)[None])[0].numpy()
    assert np.allclose(unit.step(5, state), wanted, atol=1e-5)


def test_the_program_read_by_hand(program: Path, plain: g2p.Weights) -> None:
    """The program's file says what the package does: letters, then phonemes until the end symbol or the twentieth."""
    interpreter = Interpreter(program)
    given = [*words(24, seed=4), "a", "antidisestablishmentarianism"]
    for word in given:
        letters = g2p.letters(word)
        answer = interpreter({"letters": letters})
        phonemes = plain.phonemes(letters)
        assert answer.outputs["phonemes"].tolist() == phonemes.tolist(), word
        assert answer.trips == (len(word) + 1, len(phonemes))
        assert answer.truncated == (phonemes[-1] != g2p.END)


def test_a_word_that_is_too_long_is_cut_off(program: Path, plain: g2p.Weights) -> None:
    """The longest one needs more than twenty phonemes, and says that it was not done."""
    letters = g2p.letters(max(REAL, key=len))
    answer = Interpreter(program)({"letters": letters})
    assert answer.truncated
    assert answer.trips[1] == len(plain.phonemes(letters)) == g2p.STEPS_MAX
    assert len(g2p.spelled(answer.outputs["phonemes"])) == g2p.STEPS_MAX


def test_words_are_many_and_different() -> None:
    """More than a thousand words, none twice, all the real ones among them; of all lengths; by the seed alone."""
    made = words(1200, seed=3)
    assert len(set(made)) == len(made) == 1200
    assert len(set(made) & set(REAL)) == len(set(REAL)) > 300
    assert min(map(len, made)) == 1
    assert max(map(len, made)) > 20
    assert made == words(1200, seed=3)
    assert made != words(1200, seed=4)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in (*made, *invented(100)))
