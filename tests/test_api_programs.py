"""Programs behind the batcher: real loops under every policy, streamed, cancelled and cut off, each row as if alone."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from lazybatch.api import assembly
from lazybatch.config import BatcherOptions
from lazybatch.core.latency import EngineTime
from lazybatch.core.lengths import LengthGuess
from lazybatch.executors.program.model import ProgramModel
from lazybatch.program import Carry, Program, Repeat, Stage
from tests.engine.kit import LONG_S, accounts
from tests.executors.program import bodies, programs
from tests.executors.program.programs import matches, plain
from tests.serving import flat_table

POLICIES = ("graph", "continuous", "cellular", "lazy", "oracle", "aimd", "lookahead", "serial")
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> ProgramModel:
    """A loop in whole numbers."""
    return programs.count(tmp_path_factory.mktemp("count"))


@pytest.fixture(scope="module")
def translate(tmp_path_factory: pytest.TempPathFactory) -> ProgramModel:
    """Encoder, decoder and something behind it."""
    return programs.translate(tmp_path_factory.mktemp("translate"))


def counts(rows: int, seed: int = 1) -> list[dict[str, Any]]:
    """Rows of `count`, some of which are cut off."""
    rng = np.random.default_rng(seed)
    return [{"from": np.array(rng.integers(0, 4)), "to": np.array(rng.integers(0, 12))} for _ in range(rows)]


def sentences(rows: int, seed: int = 1) -> list[dict[str, Any]]:
    """Rows of `translate`, of several lengths."""
    rng = np.random.default_rng(seed)
    return [{"source": rng.standard_normal((rng.integers(1, 7), 4)).astype(np.float32)} for _ in range(rows)]


def served(models: dict[str, ProgramModel], policy: str, **options: Any) -> lb.LazyBatcher:
    """A batcher over programs, with tables that make joining worth while."""
    tables = {name: flat_table(model) for name, model in models.items()}
    return lb.LazyBatcher(models, policy=policy, table=tables, sla=5.0, allow_foreign_table=True, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_as_the_plain_loop(policy: str, count: ProgramModel, translate: ProgramModel) -> None:
    """Two programs at once, rows handed in by several threads: every result is that of the row by itself."""
    models = {"count": count, "translate": translate}
    rows = [("count", row) for row in counts(24)] + [("translate", row) for row in sentences(24)]
    futures: list[Any] = [None] * len(rows)

    def submit(first: int) -> None:
        for k in range(first, len(rows), 3):
            futures[k] = batcher.submit(rows[k][1], model=rows[k][0])

    lengths = {"count": LengthGuess.of([1, 2, 5]), "translate": LengthGuess.of([2, 3, 6])}
    with served(models, policy, lengths=lengths, max_batch_size=8) as batcher:
        threads = [threading.Thread(target=submit, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cut = 0
        for (name, row), future in zip(rows, futures, strict=True):
            answer = future.result(LONG_S)
            matches(answer, plain(models[name], row), TOLERANCE)
            cut += answer.truncated
        stats = batcher.stats()
    assert stats.policy_failures == 0
    assert stats.truncated == cut > 0
    accounts(batcher.stats())


def test_streams_bring_what_the_result_holds(count: ProgramModel, translate: ProgramModel) -> None:
    """Step by step the same values that are stacked in the result; synchronous and asynchronous."""
    models = {"count": count, "translate": translate}

    async def consume(row: dict[str, Any]) -> None:
        stream = batcher.astream(row, model="translate")
        steps = [step["token"] async for step in stream]
        answer = await asyncio.wrap_future(stream.future)
        assert np.array_equal(np.stack(steps), answer["tokens"])
        matches(answer, plain(translate, row), TOLERANCE)

    async def all_of_them() -> None:
        await asyncio.gather(*map(consume, sentences(10, seed=5)))

    with served(models, "continuous", max_batch_size=4) as batcher:
        for row in counts(10, seed=4):
            with batcher.stream(row, model="count") as stream:
                squares = np.array([step["square"] for step in stream])
                answer = stream.future.result()
            assert np.array_equal(squares, answer["squares"])
            matches(answer, plain(count, row), 0.0)
        asyncio.run(all_of_them())


@pytest.mark.parametrize("policy", ["continuous", "lookahead", "graph"])
def test_a_row_that_its_next_stage_does_not_take(policy: str, tmp_path: Path) -> None:
    """Rows leave a loop together, one of them with fewer entries than the next loop needs: that row alone fails, those
    that leave with it and those that stay in the loop get their answers."""
    count: Any = lb.load(bodies.counter(tmp_path / "counter.onnx"), cache=False)
    total: Any = lb.load(bodies.adder(tmp_path / "adder.onnx"), cache=False)
    first = Repeat(carry={"n": "n_next"}, done="finished", trips_max=9, collect=("square",))
    then = Repeat(carry={"sum": "sum_next"}, each={"x": "count.square"}, trips="steps")
    stages = (Stage("count", count, {"target": "to"}, first), Stage("total", total, loop=then))
    outputs = {"n": "count.n", "sum": "total.sum"}
    model = ProgramModel(Program("twice", stages, outputs), {"count": count, "total": total})
    rows = [
        {"to": to, "steps": steps} for to, steps in ((2, 2), (2, 3), (2, 1), (4, 4), (1, 2), (9, 1), (9, 9), (3, 3))
    ]
    with served({"twice": model}, policy, max_batch_size=8) as batcher:
        answers = [future.exception(LONG_S) or future.result() for future in [batcher.submit(row) for row in rows]]
        accounts(batcher.stats())
    for row, answer in zip(rows, answers, strict=True):
        if row["steps"] > row["to"]:
            assert isinstance(answer, lb.ExecutionError)
            says = f"'count.square' has {row['to']} entries, the row makes {row['steps']} iterations"
            assert str(answer) == f"stage 'total': input 'x' of each iteration: {says}"
        else:
            matches(answer, plain(model, row))


def test_words_go_round(tmp_path: Path) -> None:
    """A state of text: kept, collected and streamed as text of any length, an array of objects like all text."""
    body: Any = lb.load(bodies.words(tmp_path / "words.onnx"), cache=False)
    loop = Repeat(carry={"word": Carry("word_next", "word")}, trips="count", collect=("word_next",))
    outputs = {"word": "step.word", "words": "step.word_next"}
    model = ProgramModel(Program("words", (Stage("step", body, loop=loop),), outputs), {"step": body})
    rows = [{"word": np.array(f"word{10**k}", object), "count": 1 + k % 3} for k in range(6)]
    with served({"words": model}, "continuous", max_batch_size=4) as batcher:
        streams = [batcher.stream(row) for row in rows]
        for row, stream in zip(rows, streams, strict=True):
            steps = [step["word_next"] for step in stream]
            assert [(step.dtype, step.item()) for step in steps] == [(np.dtype(object), row["word"])] * row["count"]
            matches(stream.future.result(), plain(model, row))


def test_a_stream_that_is_left_frees_its_row(translate: ProgramModel) -> None:
    """Rows withdrawn in the middle of a loop do not disturb those beside them, and nothing is left behind."""
    rows = sentences(30, seed=8)
    with served({"translate": translate}, "continuous", max_batch_size=4) as batcher:
        kept = []
        for k, row in enumerate(rows):
            if k % 3:
                kept.append((row, batcher.submit(row)))
                continue
            for _ in batcher.stream(row):
                break
        for row, future in kept:
            matches(future.result(LONG_S), plain(translate, row), TOLERANCE)
    accounts(batcher.stats())
    executor: Any = batcher._executors["translate"]
    assert (executor._at, executor._rows) == ({}, {})


def test_policies_are_told_what_the_engine_takes_around_an_iteration(count: ProgramModel) -> None:
    """The table shown is the one measured; the one that is predicted with has the engine's time, too."""
    table = replace(flat_table(count), engine=EngineTime(7, 1, 5, 2))
    served = assembly.assemble(
        {"count": count}, BatcherOptions(), table=table, allow_foreign_table=True, limits={"max_batch_size": 4}
    )
    (lane,) = assembly.to_lanes(served, BatcherOptions())
    assert served[0].table is table
    assert lane.latency == table.dispatched() != replace(table, engine=None)


def test_a_policy_that_predicts_says_what_it_does_not_know(
    count: ProgramModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Of loops without lengths; policies that do not predict have no need of them."""
    table = flat_table(count)
    for policy, lengths, said in (
        ("lookahead", None, True),
        ("lookahead", LengthGuess.of([3]), False),
        ("continuous", None, False),
    ):
        with lb.LazyBatcher(
            count, policy=policy, table=table, lengths=lengths, allow_foreign_table=True, max_batch_size=4
        ):
            pass
        assert ("model 'count': how often rows go round loop 'count' is not known" in caplog.text) is said, policy
        caplog.clear()


def test_a_target_counts_the_iterations_of_the_lengths_seen(
    count: ProgramModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused where not even the shortest row seen can meet it, the engine's time included; where only a row of mean
    length cannot, that is said; what nothing is known of goes round once."""
    table = replace(flat_table(count), engine=EngineTime(1_000_000, 0, 1_000_000, 0))
    once_s = body_s = table.dispatched().whole_ns(1) / 1e9

    def served(sla: float, lengths: LengthGuess | None) -> None:
        with lb.LazyBatcher(
            count, policy="graph", table=table, sla=sla, lengths=lengths, allow_foreign_table=True, max_batch_size=4
        ):
            pass

    served(once_s, None)
    seen = LengthGuess.of([3, 5, 5])
    with pytest.raises(lb.InvalidInput, match=r"one row alone takes"):
        served(once_s + 1.9 * body_s, seen)
    served(once_s + 2.1 * body_s, seen)
    assert f"below what a row of mean length takes alone, {once_s + 3 * body_s:.6f} s (4 times" in caplog.text
    caplog.clear()
    served(once_s + 3.1 * body_s, seen)
    assert not caplog.text


def test_loops_are_not_executed_in_allowed_sizes(count: ProgramModel) -> None:
    """Said before anything is measured, and not of models beside them that have no loops."""
    with pytest.raises(lb.InvalidInput, match=r"allowed_batch_sizes=\[1, 4\]: model 'count' has loops"):
        lb.LazyBatcher({"count": count}, max_batch_size=4, allowed_batch_sizes=(1, 4))
    models = {"count": count, "pair": lambda rows: rows}
    limits = {"max_batch_size": 4, "allowed_batch_sizes": {"pair": (2, 4)}}
    with lb.LazyBatcher(models, policy="graph", **limits) as batcher:
        assert batcher.predict("one", model="pair") == "one"
        assert batcher.stats().padding_rows == 1
