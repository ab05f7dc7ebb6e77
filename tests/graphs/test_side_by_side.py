"""Two trained programs on one processor: words and sounds served side by side get the answers they get alone."""

from __future__ import annotations

import random
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from graphs import g2p, silero
from graphs.sounds import sounds
from graphs.words import words
from tests.serving import flat_table


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both programs, loaded."""
    folder: Path = tmp_path_factory.mktemp("zoo")
    return {"words": lb.load(g2p.export(folder), cache=False), "voice": lb.load(silero.export(folder), cache=False)}


@pytest.mark.parametrize("policy", ["lookahead", "lazy"])
def test_side_by_side(policy: str, models: dict[str, Any]) -> None:
    """Clients of either model submit at random, and withdraw a few; whoever gets an answer gets its own."""
    given = {"words": words(40, seed=21), "voice": [silero.chunked(one) for one in sounds(10, seed=21, longest_s=1.5)]}
    futures: dict[str, list[Any]] = {name: [] for name in given}
    tables = {name: flat_table(model) for name, model in models.items()}
    start = threading.Barrier(len(given))

    def client(name: str) -> None:
        chance = random.Random(name)
        start.wait()
        for one in given[name]:
            row = {"letters": g2p.letters(one)} if name == "words" else {"chunks": one}
            futures[name].append(batcher.submit(row, model=name))
            if chance.random() < 0.2:
                wait([chance.choice(futures[name])], timeout=120)
            if chance.random() < 0.1:
                futures[name][-1].cancel()

    limits = {"words": 8, "voice": 4}
    with lb.LazyBatcher(models, policy=policy, table=tables, sla=30.0, max_batch_size=limits) as batcher:
        threads = [threading.Thread(target=client, args=(name,)) for name in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        every = [*futures["words"], *futures["voice"]]
        assert not wait(every, timeout=120).not_done
        assert all(future.cancelled() or future.exception() is None for future in every)
        assert sum(future.cancelled() for future in every) < len(every) / 2
        assert batcher.stats().policy_failures == 0
    said, heard = g2p.Weights.read(), silero.Plain()
    for word, future in zip(given["words"], futures["words"], strict=True):
        if not future.cancelled():
            assert future.result()["phonemes"].tolist() == said.phonemes(g2p.letters(word)).tolist()
    for chunks, future in zip(given["voice"], futures["voice"], strict=True):
        if not future.cancelled():
            assert np.abs(future.result()["probability"] - heard(chunks)).max() <= 1e-5
