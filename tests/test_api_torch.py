"""Torch modules through LazyBatcher: under random arrivals every answer is the module's own."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.errors import ExecutionError, InvalidInput
from tests.executors.torch.test_executor import ROWS, check, expected
from tests.serving import batched, flat_table
from tests.torch_modules import CASES, Case, fine, sound


@CASES
@pytest.mark.parametrize("policy", ["lazy", "graph"])
def test_clients_get_the_modules_answers(case: Case, policy: str) -> None:
    """Several clients at once, rows joined as the policy likes."""
    model, batch = fine(case.name), case.batch(ROWS, seed=11)
    answers = batched(model, list(case.rows(batch, ROWS)), policy, max_batch_size=6)
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        check(got, want)


@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_and_cancellations(seed: int) -> None:
    """Rows arrive in bursts, some are cancelled on their way; whoever is answered gets the module's answer."""
    case, model = sound("residual"), fine("residual")
    batch = case.batch(ROWS, seed=seed)
    rows, wanted = list(case.rows(batch, ROWS)), expected(case, model, batch)
    chance = random.Random(seed)
    futures: list[tuple[int, Future[Any]]] = []
    with lb.LazyBatcher(model, table=flat_table(model), sla=10.0, policy="lazy", max_batch_size=8) as batcher:
        for _ in range(20):
            for k in chance.sample(range(ROWS), chance.randint(1, 6)):
                futures.append((k, batcher.submit(rows[k])))
            if chance.random() < 0.3:
                futures[-1][1].cancel()
            time.sleep(chance.random() * 0.002)
    answered = 0
    for k, future in futures:
        if not future.cancelled():
            check(future.result(timeout=60), wanted[k])
            answered += 1
    assert answered > 20


def test_the_default_policy_serves_them() -> None:
    """Without a table the model is measured; the default policy answers like any other."""
    case, model = sound("tied"), fine("tied")
    batch = case.batch(ROWS, seed=8)
    with lb.LazyBatcher(model, sla=10.0, max_batch_size=4) as batcher:
        answers = batcher.predict_batch(list(case.rows(batch, ROWS)))
    for got, want in zip(answers, expected(case, model, batch), strict=True):
        check(got, want)


def test_a_bad_row_fails_alone() -> None:
    """An index out of range is that row's error; its mates get their answers."""
    case, model = sound("tokens"), fine("tokens")
    batch = case.batch(ROWS, seed=5)
    rows, wanted = list(case.rows(batch, ROWS)), expected(case, model, batch)
    rows[4] = {**rows[4], "ids": np.full(6, 99)}
    with lb.LazyBatcher(model, policy="graph", max_batch_size=ROWS, max_delay=0.05) as batcher:
        futures = [batcher.submit(row) for row in rows]
        for k, future in enumerate(futures):
            if k == 4:
                with pytest.raises(ExecutionError, match="index out of range"):
                    future.result(timeout=60)
            else:
                check(future.result(timeout=60), wanted[k])


def test_a_bare_module_is_no_model() -> None:
    """A module that was not loaded is not taken for a callable of lists."""
    with pytest.raises(InvalidInput, match=r"looks like a torch module: load it first"):
        lb.LazyBatcher(sound("tied").module())  # type: ignore[arg-type]
