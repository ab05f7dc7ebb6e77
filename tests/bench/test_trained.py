"""The trained models with loops as benchmarks see them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import lazybatch as lb
from bench import programs
from bench.programs import Looped, served
from lazybatch.lengths import guesses_for, load_lengths


@pytest.mark.parametrize("name", ["g2p", "silero-vad"])
def test_rows_make_the_trips_they_are_said_to(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a simulation is told of a row is what serving it finds; lengths are there for every loop."""
    monkeypatch.setattr(programs, "ZOO_FOLDER", tmp_path)
    subject = served(name)
    assert isinstance(subject, Looped)
    model = subject.load()
    rows = subject.rows(4, seed=3)
    with lb.LazyBatcher(model, policy="continuous", max_batch_size=4) as batcher:
        answers = batcher.predict_batch(rows)
    assert [answer.trips for answer in answers] == [subject.trips(row) for row in rows]
    assert None not in guesses_for(model.graph, load_lengths(subject.lengths))


def test_a_missing_package_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark ends with one line that says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(lb.InvalidInput, match="pip install --no-deps g2p-en"):
        served("g2p")
