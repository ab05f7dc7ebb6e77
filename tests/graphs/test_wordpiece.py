"""WordPiece: what BERT's own tokenizer makes of a text, and vocabularies that cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.minilm import file
from graphs.wordpiece import WordPiece

SMALL = WordPiece(["[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "play", "##ing", "!", ","])


def test_ids_that_are_known() -> None:
    """Sentences whose ids are published: accents go, case goes, marks stand alone, rare words fall into pieces."""
    words = WordPiece.read(file("model/vocab.txt"))
    assert words.encode("Hello, world!").tolist() == [101, 7592, 1010, 2088, 999, 102]
    assert words.encode("Naïve jumping").tolist() == words.encode("naive  JUMPING\n").tolist()
    assert words.pieces("embeddings") == ["em", "##bed", "##ding", "##s"]


def test_the_longest_piece_comes_first() -> None:
    """Greedy from the left; what cannot be put together is unknown as a whole, and so is an endless word."""
    assert SMALL.pieces("unaffable") == ["un", "##aff", "##able"]
    assert SMALL.pieces("unplay") == ["[UNK]"]
    assert SMALL.pieces("play" * 30) == ["[UNK]"]
    assert SMALL.encode("playing, play!").tolist() == [1, 6, 7, 9, 6, 8, 2]


def test_texts_are_cut_off() -> None:
    """Begin and end are kept; an empty text is just these."""
    assert SMALL.encode("play play play", 4).tolist() == [1, 6, 6, 2]
    assert SMALL.encode("\u0000 ").tolist() == [1, 2]


def test_a_vocabulary_has_its_special_tokens(tmp_path: Path) -> None:
    """One that is missing is named."""
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\n[CLS]\nplay\n")
    with pytest.raises(ValueError, match=r"of 3 tokens has no \[SEP\]"):
        WordPiece.read(path)
