"""MiniLM: the published network, in torch, as a file, padded and served; the reference is NumPy on the same weights."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lazybatch as lb
from graphs.export import ensure
from graphs.minilm import build, file, weights
from graphs.wordpiece import WordPiece
from lazybatch.policies import names
from tests.engine.kit import LONG_S, accounts
from tests.graphs.plain_bert import sentence
from tests.serving import flat_table

WORDS = (
    "a", "the", "man", "woman", "food", "bread", "music", "guitar", "horse", "field",
    "city", "rains", "slowly", "eats", "plays", "reads", "near", "old", "very", "not",
)  # fmt: skip
TO = (8, 16, 32)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def tokens() -> WordPiece:
    """The vocabulary of the package."""
    return WordPiece.read(file("model/vocab.txt"))


@pytest.fixture(scope="module")
def exported(minilm: tuple[Path, dict[str, Any]]) -> Path:
    """The network as ONNX, of any batch and length."""
    return ensure("minilm", minilm[0], length=None)


@pytest.fixture(scope="module")
def model(exported: Path) -> Any:
    """The file under a padding rule."""
    return lb.load(exported, cache=False, pad=lb.Pad(inputs={"input_ids": 0}, to=TO, mask="attention_mask"))


@pytest.fixture(scope="module")
def known(tokens: WordPiece) -> list[tuple[dict[str, Any], Any]]:
    """Texts of 3 to 32 tokens as rows, and what NumPy computes for each alone, unpadded."""
    chance, trained = random.Random(5), weights()
    made = [" ".join(chance.choices(WORDS, k=chance.randint(1, 30))) for _ in range(24)]
    rows = [{"input_ids": tokens.encode(text, TO[-1])} for text in made]
    return [(row, sentence(row["input_ids"], trained)) for row in rows]


def same(got: dict[str, Any], want: Any) -> None:
    """The answer is NumPy's."""
    hidden, vector = want
    assert got["last_hidden_state"].shape == hidden.shape
    np.testing.assert_allclose(got["last_hidden_state"], hidden, **CLOSE)
    np.testing.assert_allclose(got["sentence_embedding"], vector, **CLOSE)


def test_the_network_in_torch_is_the_published_one(tokens: WordPiece) -> None:
    """Against NumPy written from the paper; and two sentences are as alike as the authors' own code says (0.7553)."""
    pair = [tokens.encode(text) for text in ("A man is eating food.", "A man is eating a piece of bread.")]
    network, trained, vectors = build(0), weights(), []
    with torch.no_grad():
        for ids in pair:
            hidden, vector = network(torch.from_numpy(ids)[None], torch.ones(1, len(ids), dtype=torch.int64))
            got = {"last_hidden_state": hidden[0].numpy(), "sentence_embedding": vector[0].numpy()}
            same(got, sentence(ids, trained))
            vectors.append(vector[0].numpy())
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.7553, abs=1e-3)


def test_padding_is_proved_to_change_nothing(model: Any) -> None:
    """The tokens' vectors have the length, the sentence's has none."""
    assert model.joinable
    assert model.proof.trim == {"last_hidden_state": 0}
    assert model.proof.deviation < 1e-5


def test_a_rule_without_the_mask_is_refused(exported: Path) -> None:
    """Padding that the network takes for words changes the sentence: refused, naming an output."""
    with pytest.raises(lb.ModelError, match=r"padded to 8, (differs|cannot be run)|could be run"):
        lb.load(exported, cache=False, pad=lb.Pad(inputs={"input_ids": 0, "attention_mask": 1}, to=(8,)))


@pytest.mark.parametrize("policy", names())
def test_mixed_lengths_under_random_arrivals(model: Any, known: list[tuple[dict[str, Any], Any]], policy: str) -> None:
    """Texts of many lengths in bursts, a few cancelled: every answer equals the row's alone, unpadded, in NumPy."""
    chance = random.Random(policy)
    futures: list[tuple[Any, Future[Any]]] = []
    with lb.LazyBatcher(model, policy=policy, table=flat_table(model), sla=10.0, max_batch_size=6) as batcher:
        left = list(known)
        while left:
            for _ in range(min(len(left), chance.randint(1, 6))):
                row, want = left.pop()
                futures.append((want, batcher.submit(row)))
            if chance.random() < 0.2:
                futures[-1][1].cancel()
            time.sleep(chance.random() * 0.02)
    for want, future in futures:
        if not future.cancelled():
            same(future.result(LONG_S), want)
    stats = batcher.stats()
    assert stats.completed > 12
    assert stats.tokens < stats.padded_tokens
    accounts(stats)
