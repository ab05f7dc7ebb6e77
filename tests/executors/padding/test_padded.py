"""Padded models: rows of many lengths in one batch give what each gives alone and unpadded, whatever moves them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lazybatch as lb
from lazybatch.errors import InvalidInput
from tests.padding_models import IDS, WIDTH, written

TO = (4, 8, 16)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The masked mean without a rule: rows join at equal lengths only."""
    return lb.load(written("masked", tmp_path_factory.mktemp("plain")), cache=False, preempt_within=1e-9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same under a rule, cut as finely as can be."""
    path = written("masked", tmp_path_factory.mktemp("padded"))
    made = lb.load(path, cache=False, preempt_within=1e-9, pad=lb.Pad(inputs={"ids": 0}, to=TO, mask="mask"))
    assert len(made.graph) > 1
    return made


def text(length: int, seed: int = 0) -> dict[str, Any]:
    """A row of that length, without its mask."""
    return {"ids": np.random.default_rng((seed, length)).integers(1, IDS, length)}


def alone(plain: Any, row: dict[str, Any]) -> dict[str, Any]:
    """What the model gives for a row at its own length."""
    ids = row["ids"]
    made = plain.run({"ids": ids[None], "mask": row.get("mask", np.ones_like(ids))[None]})
    return {name: value[0] for name, value in made.items()}


def same(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Equal names and shapes, values up to summation order."""
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name].shape == value.shape
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def test_a_row_says_what_it_is_and_what_it_was_padded_to(model: Any) -> None:
    """The size is its own length; rows of all lengths have one signature, and the length says where they go."""
    rows = [model.admit(text(length)) for length in (1, 4, 5, 16)]
    assert [(row.size, row.length) for row in rows] == [(1, 4), (4, 4), (5, 8), (16, 16)]
    assert len({row.signature for row in rows}) == 1


def test_rows_that_do_not_fit_are_refused(model: Any) -> None:
    """Too long, empty, of two lengths, of a wrong type: each names the input or the length."""
    with pytest.raises(InvalidInput, match="length 17 is longer than the longest padded length, 16"):
        model.admit(text(17))
    with pytest.raises(InvalidInput, match="empty"):
        model.admit({"ids": np.zeros(0, np.int64)})
    with pytest.raises(InvalidInput, match="'ids' and 'mask' of a row must be of one length, got 3 and 2"):
        model.admit({**text(3), "mask": np.ones(2, np.int64)})
    with pytest.raises(InvalidInput, match="'ids' has dtype float64"):
        model.admit({"ids": np.ones(3)})
    with pytest.raises(InvalidInput, match="'ids' is missing"):
        model.admit({"mask": np.ones(3, np.int64)})
    with pytest.raises(InvalidInput, match="a row of model 'masked' is a dict"):
        model.admit([1, 2, 3])


def test_rows_of_several_lengths_run_at_the_largest(model: Any, plain: Any) -> None:
    """Rows of three padded lengths in one sub-batch, opened together: each gets its own answer at its own length."""
    rows = [text(length, seed=length) for length in (2, 7, 13, 4)]
    executor = model.executor(max_batch_size=8)
    executor.open(0, {k: model.admit(row) for k, row in enumerate(rows)}, len(rows))
    for node in range(len(model.graph)):
        executor.run(0, node)
    answers = executor.close(0)
    for k, row in enumerate(rows):
        same(answers[k], alone(plain, row))
    executor.shutdown()


def test_a_mask_of_the_callers_own_is_kept(model: Any, plain: Any) -> None:
    """Positions that the caller masks within the row stay masked."""
    row = {**text(5), "mask": np.array([1, 0, 1, 1, 0])}
    executor = model.executor(max_batch_size=2)
    executor.open(0, {7: model.admit(row)}, 1)
    for node in range(len(model.graph)):
        executor.run(0, node)
    same(executor.close(0)[7], alone(plain, row))
    executor.shutdown()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_moves_rows_about_their_answers_stay(model: Any, plain: Any, seed: int) -> None:
    """Sub-batches of one padded length opened, parked, merged, thinned out and discarded at random."""
    chance = random.Random(seed)
    executor = model.executor(max_batch_size=8)
    nodes, live, rows, number = len(model.graph), {}, {}, 0
    while number < 12 or live:
        if number < 12 and chance.random() < 0.5:
            count = chance.randint(1, 3)
            made = {number * 10 + k: text(chance.randint(9, 16), seed=number) for k in range(count)}
            made |= {number * 10 + 5: text(chance.randint(1, 8), seed=number)} if chance.random() < 0.5 else {}
            rows |= made
            executor.open(number, {k: model.admit(row) for k, row in made.items()}, len(made))
            live[number] = [0, list(made)]
            number += 1
        if not live:
            continue
        one = chance.choice(list(live))
        at, ids = live[one]
        if len(ids) > 1 and chance.random() < 0.1:
            executor.evict(one, [ids.pop()])
        elif chance.random() < 0.05:
            executor.discard(one)
            del live[one]
        elif at == nodes:
            for k, answer in executor.close(one).items():
                same(answer, alone(plain, rows[k]))
            del live[one]
        else:
            executor.run(one, at)
            live[one][0] += 1
        for other in list(live):
            meet = one in live and other != one and live[other][0] == live[one][0] < nodes
            if meet and len(live[other][1]) + len(live[one][1]) <= 8:
                executor.merge(one, other)
                live[one][1] += live.pop(other)[1]
    executor.shutdown()


def test_made_up_rows_are_as_long_as_is_asked(model: Any) -> None:
    """For measuring: the longest by default, any padded length through `at`; no other."""
    assert model.padded_lengths == TO
    assert model.admit(model.sample_row(1)).size == 16
    short = model.at(4)
    assert short.padded_lengths == ()
    assert (short.admit(short.sample_row(1)).size, short.fingerprint) == (4, model.fingerprint)
    with pytest.raises(InvalidInput, match=r"padded to \[4, 8, 16\], not to 5"):
        model.at(5)


def test_it_says_what_the_model_says(model: Any, plain: Any) -> None:
    """Name, nodes and threads are the model's; the identity is another one, because tables are others."""
    assert (model.name, len(model.graph), model.threads) == ("masked", len(plain.graph), plain.threads)
    assert (model.accelerator, plain.accelerator) == (None, None)
    assert model.fingerprint != plain.fingerprint
    assert repr(model) == f"PaddedModel('masked', {len(plain.graph)} nodes, joinable, padded to [4, 8, 16])"
    assert lb.check(model).joinable
    executor = model.executor(max_batch_size=4)
    assert executor.memory().buffers_bytes >= 4 * 16 * WIDTH * 4
    executor.shutdown()
