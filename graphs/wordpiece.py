"""WordPiece, the tokens of uncased BERT: Devlin et al. (2018); Wu et al. (2016).

Owns: `WordPiece`: text to ids. Must not know: any model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNKNOWN, BEGIN, END = "[UNK]", "[CLS]", "[SEP]"
WORD_MAX = 100
"""Words longer than this are unknown without a search."""


class WordPiece:
    """A vocabulary: the line number of a token is its id. Raises `ValueError` where a special token is missing."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.ids: Mapping[str, int] = {token: number for number, token in enumerate(tokens)}
        for special in (UNKNOWN, BEGIN, END):
            if special not in self.ids:
                raise ValueError(f"the vocabulary of {len(tokens)} tokens has no {special}")

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """A vocabulary file, one token a line."""
        return cls(path.read_text(encoding="utf-8").splitlines())

    def encode(self, text: str, most: int = 512) -> NDArray[np.int64]:
        """Ids of a text, between those of its begin and end; cut off to at most so many."""
        pieces = [piece for word in _words(text) for piece in self.pieces(word)]
        names = [BEGIN, *pieces[: most - 2], END]
        return np.array([self.ids[name] for name in names], dtype=np.int64)

    def pieces(self, word: str) -> list[str]:
        """The longest known beginning, then the longest known continuation, and so on; or unknown as a whole."""
        found: list[str] = []
        at = 0
        while at < len(word) <= WORD_MAX:
            for end in range(len(word), at, -1):
                piece = ("##" if at else "") + word[at:end]
                if piece in self.ids:
                    found.append(piece)
                    at = end
                    break
            else:
                break
        return found if at == len(word) else [UNKNOWN]


def _words(text: str) -> Iterator[str]:
    """Lower case without accents; every punctuation mark is a word of its own."""
    plain = [c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn"]
    word: list[str] = []
    for character in plain:
        mark = _is_mark(character)
        if character.isspace() or mark:
            if word:
                yield "".join(word)
            word = []
            if mark:
                yield character
        elif unicodedata.category(character)[0] != "C":
            word.append(character)
    if word:
        yield "".join(word)


def _is_mark(character: str) -> bool:
    """Punctuation: also those ASCII symbols that Unicode does not count as such."""
    ascii_symbol = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return ascii_symbol or unicodedata.category(character)[0] == "P"
