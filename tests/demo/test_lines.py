"""Drawn lines and the trained models: what is drawn is what is read."""

from __future__ import annotations

import numpy as np

from lazybatch.demo import lines, models
from lazybatch.executors.ort.session import open_session


def _answers(name: str, rows: list[np.ndarray]) -> np.ndarray:
    session = open_session(models.find(name), optimise=True)
    return session.run(None, {session.get_inputs()[0].name: np.stack(rows)})[0]


def test_whole_models_read_every_line() -> None:
    """The whole models name the direction of every line and read every text exactly: preprocessing is theirs."""
    drawn = lines.draw()
    turned = _answers("direction", [lines.direction_input(line) for line in drawn])
    assert [lines.is_turned(one) for one in turned] == [line.turned for line in drawn]
    assert {line.turned for line in drawn} == {True, False}
    alphabet = models.alphabet(models.find("reader"))
    read = _answers("reader", [lines.reader_input(line) for line in drawn])
    assert [lines.read(one, alphabet) for one in read] == [line.text for line in drawn]


def test_drawing_is_seeded() -> None:
    """The same seed draws the same pixels, another seed others."""
    first, again, other = lines.draw(seed=1), lines.draw(seed=1), lines.draw(seed=2)
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].pixels, other[0].pixels)


def test_inputs_are_normalised_and_padded() -> None:
    """Rows are float32 in [-1, 1], of the model's shape, and zero beyond the line's end."""
    line = lines.draw(["Ab"])[0]
    row = lines.reader_input(line)
    assert row.shape == (3, 48, 320)
    assert row.dtype == np.float32
    assert np.abs(row).max() <= 1.0
    assert (row[:, :, line.pixels.shape[1] + 1 :] == 0).all()


def test_decoding_collapses_repeats_and_drops_blanks() -> None:
    """a a blank a b b reads "aab": equal neighbours are one character, unless a blank stands between them."""
    alphabet = ["", "a", "b"]
    steps = np.eye(3)[[1, 1, 0, 1, 2, 2]]
    assert lines.read(steps, alphabet) == "aab"
    assert lines.read(np.eye(3)[[0, 0]], alphabet) == ""
