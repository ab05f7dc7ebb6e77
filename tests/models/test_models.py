"""Real trained models: node by node equals whole, joined equals alone, preempted and merged equals alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import lazybatch as lb
from tests import serving
from tests.loading import load_fine
from tests.models.zoo import MODELS, RealModel, signatures
from tests.whole import Whole, aligned, assert_close_to_peak, assert_same_bits

SIGNATURES = [pytest.param(model, shape, id=f"{model.name}-{shape}") for model, shape in signatures()]
EACH = [pytest.param(model, id=model.name) for model in MODELS]


class Loaded:
    """A real model, cut as finely as is proved, beside the whole of it."""

    def __init__(self, real: RealModel) -> None:
        self.real = real
        self.whole = Whole(real.path)
        self.cut = load_fine(real.path)

    def alone(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each row gets from the whole model by itself."""
        return [serving.answer(self.cut, self.whole.run(self.real.batch([row]))) for row in rows]

    def check(self, got: list[dict[str, Any] | None], rows: list[dict[str, Any]], what: str) -> None:
        """Every answer that is there equals the row's own."""
        for k, (one, want) in enumerate(zip(got, self.alone(rows), strict=True)):
            if one is not None:
                assert_close_to_peak(one, want, f"{self.real.name}, {what}, row {k}", self.real.rtol)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Models by name, each loaded once for this file, in a cache of its own."""
    made: dict[str, Loaded] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield lambda real: made.get(real.name) or made.setdefault(real.name, Loaded(real))


@pytest.mark.parametrize("real", EACH)
def test_rows_may_join(real: RealModel, loaded: Any) -> None:
    """All seven are ordinary networks over rows: proved joinable, and cut into several nodes."""
    cut = loaded(real).cut
    assert cut.reason is None
    assert cut.joinable
    assert len(cut.graph) > 2


@pytest.mark.parametrize(("real", "shape"), SIGNATURES)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_node_by_node_equals_whole(real: RealModel, shape: int, batch: int, loaded: Any) -> None:
    """At the same batch the chain gives the bits of the whole optimised model."""
    feeds = real.batch(real.rows(batch, seed=10 * shape, shape=shape))
    assert_same_bits(
        loaded(real).cut.run(aligned(feeds)), loaded(real).whole.run(feeds), f"{real.name} at batch {batch}"
    )


@pytest.mark.parametrize(("real", "shape"), SIGNATURES)
def test_joined_equals_alone(real: RealModel, shape: int, loaded: Any) -> None:
    """Five rows in one sub-batch: each gets what it gets by itself, and so does a second round in the same buffers."""
    rows = real.rows(10, seed=100, shape=shape)
    loaded(real).check(serving.together(loaded(real).cut, rows, max_batch_size=5), rows, "joined")


@pytest.mark.parametrize("real", EACH)
def test_several_shapes_side_by_side(real: RealModel, loaded: Any) -> None:
    """Rows of all shapes come mixed: like joins like, and nobody is padded."""
    rows = [real.row(k, k % len(real.shapes)) for k in range(2 * len(real.shapes) + 1)]
    loaded(real).check(serving.together(loaded(real).cut, rows), rows, "mixed shapes")


@pytest.mark.parametrize("real", EACH)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preempted_and_merged_equals_alone(real: RealModel, seed: int, loaded: Any) -> None:
    """Newcomers preempt at random nodes, catch up and merge; nobody's answer changes."""
    rows = [real.row(1000 * seed + k, k % len(real.shapes) if seed == 3 else 0) for k in range(8)]
    answers, merges = serving.interleaved(loaded(real).cut, rows, seed, max_batch_size=6)
    assert merges > 0 or seed == 3, "this seed was chosen because it merges"
    loaded(real).check(answers, rows, f"merged (seed {seed})")


@pytest.mark.parametrize("real", EACH)
def test_cancelled_rows_leave_the_others_alone(real: RealModel, loaded: Any) -> None:
    """Rows are evicted at random node boundaries; those that stay get their own answers."""
    rows, cut = real.rows(10, seed=500), loaded(real).cut
    answers, _ = serving.interleaved(cut, rows, seed=5, max_batch_size=6, evict=1 / len(cut.graph))
    assert any(answer is None for answer in answers)
    assert any(answer is not None for answer in answers)
    loaded(real).check(answers, rows, "with evictions")


@pytest.mark.parametrize("real", EACH)
@pytest.mark.parametrize("policy", ["lazy", "graph", "serial"])
def test_through_the_batcher(real: RealModel, policy: str, loaded: Any) -> None:
    """Several clients at once, all shapes mixed: every future holds its own row's answer."""
    rows = [real.row(2000 + k, k % len(real.shapes)) for k in range(12)]
    answers = serving.batched(loaded(real).cut, rows, policy, max_batch_size=4)
    loaded(real).check(list(answers), rows, policy)


@pytest.mark.parametrize("real", EACH)
def test_random_arrivals_join_in_the_middle(real: RealModel, loaded: Any) -> None:
    """Rows submitted while others run: the lazy policy lets them catch up and join, and nobody's answer changes."""
    cut = loaded(real).cut
    rows = real.rows(24, seed=3000)
    chance = random.Random(7)
    with lb.LazyBatcher(cut, policy="lazy", table=serving.flat_table(cut), sla=30.0, max_batch_size=8) as batcher:
        futures = []
        for row in rows:
            if futures and chance.random() < 0.3:
                futures[-1].result(timeout=120)  # let the server run dry from time to time
            futures.append(batcher.submit(row))
        answers = [future.result(timeout=120) for future in futures]
    loaded(real).check(answers, rows, "random arrivals")
