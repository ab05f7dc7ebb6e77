"""A real ONNX model through the public face: preempted, merged, cancelled, and the answers are those of rows alone."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from tests.engine.kit import LONG_S, accounts
from tests.onnx_models import floats, mlp, save

WIDTH, LAYERS = 256, 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A perceptron of several nodes."""
    path = save(mlp(WIDTH, WIDTH, LAYERS), tmp_path_factory.mktemp("model") / "mlp.onnx")
    loaded = lb.load(path, preempt_within=1e-5)
    assert loaded.joinable
    assert len(loaded.graph) > 2
    return loaded


def test_rows_of_many_clients_get_the_answers_of_rows_alone(model: Any, tmp_path: Path) -> None:
    """Under `lazy`, with clients that come and go at random: every answer equals the one the row gets alone."""
    (name,) = model.partition.inputs
    inputs = [{name: floats(seed, WIDTH)} for seed in range(24)]
    table = lb.profile(model, (1, 2, 4, 8), budget_s=0.5)
    with lb.LazyBatcher(model, policy="serial") as alone:
        expected = [alone.predict(one) for one in inputs]
    wrong: list[int] = []

    def client(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            k = chance.randrange(len(inputs))
            future = batcher.submit(inputs[k])
            if chance.random() < 0.2:
                future.cancel()
                continue
            answer = future.result(LONG_S)
            for output, array in expected[k].items():
                if not np.allclose(answer[output], array, rtol=1e-5, atol=1e-6):
                    wrong.append(k)

    options = {"policy": "lazy", "sla": 10.0, "max_batch_size": 8, "trace": tmp_path / "trace.json"}
    with lb.LazyBatcher(model, table=table, **options) as batcher:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
    assert wrong == []
    stats = batcher.stats()
    assert stats.preemptions > 0
    assert stats.merges > 0
    assert stats.cancelled > 0
    assert stats.failed == 0
    accounts(stats)
    assert batcher.memory["mlp"].total_bytes > 0


def test_bad_rows_are_refused_and_their_mates_served(model: Any) -> None:
    """Names, shapes and dtypes are checked at submit; nothing of the call is admitted."""
    (name,) = model.partition.inputs
    good = {name: floats(1, WIDTH)}
    with lb.LazyBatcher(model, policy="graph") as batcher:
        for bad in ({}, {name: floats(1, WIDTH + 1)}, {name: floats(1, WIDTH).astype(np.int64)}, {"other": good[name]}):
            with pytest.raises(lb.InvalidInput):
                batcher.submit(bad)
            with pytest.raises(lb.InvalidInput, match="row 1 of the batch"):
                batcher.predict_batch([good, bad])
        assert batcher.stats().accepted == 0
        assert len(batcher.predict_batch([good, good])) == 2
