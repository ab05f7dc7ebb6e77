"""Every kind of fault: the verdict with its reason, node by node against whole, and each request's own answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests import serving
from tests.cases.case import Case, Verdict
from tests.cases.catalogue import EVERY
from tests.loading import load_fine
from tests.whole import Whole, aligned, assert_close_to_peak, assert_same_bits


class Loaded:
    """A case's model on disk, loaded, and the whole of it."""

    def __init__(self, case: Case, folder: Path) -> None:
        path = folder / "model.onnx"
        onnx.save(case.model, path)
        self.case, self.path = case, path
        self.whole = Whole(path)
        self.model = load_fine(path)

    def wanted(self) -> list[dict[str, Any]]:
        """Every request's right answer: a single run of the whole model."""
        return [serving.answer(self.model, self.whole.run(single)) for single in self.case.singles]

    def check(self, answers: list[Any], what: str) -> None:
        """Bit for bit where requests are served alone; within the case's tolerance where they were joined."""
        for k, (got, want) in enumerate(zip(answers, self.wanted(), strict=True)):
            if self.model.joinable:
                assert_close_to_peak(got, want, f"{what}, request {k}", rtol=self.case.atol, atol=self.case.atol)
            else:
                assert_same_bits(got, want, f"{what}, request {k}")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Cases by name, each loaded once, in a cache of its own."""
    made: dict[str, Loaded] = {}

    def get(case: Case) -> Loaded:
        if case.name not in made:
            made[case.name] = Loaded(case, tmp_path_factory.mktemp("case"))
        return made[case.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield get


@pytest.mark.parametrize("case", EVERY)
def test_verdict(case: Case, loaded: Any) -> None:
    """Joinable where rows are independent; elsewhere not, with a reason that names the culprit."""
    model = loaded(case).model
    assert model.joinable == (model.reason is None)
    if case.verdict is Verdict.JOINS:
        assert model.joinable, model.reason
    elif case.verdict is Verdict.ALONE:
        assert not model.joinable, "rows of this model must not be joined"
        assert any(word in model.reason for word in case.culprits), f"{model.reason!r} names none of {case.culprits}"


@pytest.mark.parametrize("case", EVERY)
def test_node_by_node_equals_whole(case: Case, loaded: Any) -> None:
    """The chain gives the whole model's bits: for each request, and for all of them in one run where it takes them."""
    one = loaded(case)
    runs = list(case.singles)
    together = [k for k in range(len(runs)) if case.may_join([0, k])]
    try:
        one.whole.run(case.joined(together))
    except Exception:  # the whole model refuses this batch, so there is nothing to compare with
        together = []
    if together:
        runs.append(case.joined(together))
    for k, feeds in enumerate(runs):
        assert_same_bits(one.model.run(aligned(feeds)), one.whole.run(feeds), f"run {k}")


@pytest.mark.parametrize("case", EVERY)
def test_together(case: Case, loaded: Any) -> None:
    """Requests served in as few sub-batches as they may share: each gets what a single run gives."""
    one = loaded(case)
    requests = [case.request(k) for k in range(len(case.singles))]
    one.check(serving.together(one.model, requests, max_batch_size=16), "together")


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("seed", [1, 2])
def test_preempted_and_merged(case: Case, seed: int, loaded: Any) -> None:
    """Requests preempt each other, catch up and merge at random nodes: each still gets what a single run gives."""
    one = loaded(case)
    requests = [case.request(k % len(case.singles)) for k in range(2 * len(case.singles))]
    answers, _ = serving.interleaved(one.model, requests, seed, max_batch_size=8)
    half = len(case.singles)
    one.check(answers[:half], f"interleaved (seed {seed})")
    one.check(answers[half:], f"interleaved (seed {seed}), second half")


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("policy", ["lazy", "graph"])
def test_through_the_batcher(case: Case, policy: str, loaded: Any) -> None:
    """Submitted by several threads at once, each request gets what a single run gives."""
    one = loaded(case)
    count = len(case.singles)
    answers = serving.batched(one.model, [case.request(k % count) for k in range(3 * count)], policy, max_batch_size=8)
    for turn in range(3):
        one.check(answers[turn * count : (turn + 1) * count], f"{policy}, turn {turn}")


def test_the_catalogue_is_whole() -> None:
    """Nothing dropped out of the catalogue unseen."""
    names = [parameters.values[0].name for parameters in EVERY]
    assert len(names) == len(set(names))
    assert len(names) >= 95
