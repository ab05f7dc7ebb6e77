"""GNMT, Transformer and LAS served: rows of different lengths join, preempt and leave, and get what they get alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from graphs.programs import LENGTHS_FILE, ensure_program, torch_program
from graphs.reference import Reference
from graphs.sizes import FULL, TINY, Row, requests
from lazybatch.lengths import guesses_for, load_lengths
from tests.graphs.replay import Course, replay
from tests.serving import flat_table

POLICIES = ("continuous", "lazy", "lookahead", "graph")


@pytest.fixture(scope="module")
def models(tiny_zoo: Path) -> dict[str, Any]:
    """The tiny models, loaded: stages cut and proved joinable."""
    return {name: lb.load(tiny_zoo / name, cache=False) for name in TINY}


def check(name: str, folder: Path, rows: Sequence[Row], results: Sequence[Any]) -> None:
    """Every answer that is there is what a plain loop over one row gives, END included."""
    evaluate = Reference(folder / name, TINY[name])
    output = "characters" if name == "las" else "tokens"
    for row, result in zip(rows, results, strict=True):
        if result is not None:
            assert np.array_equal(result[output], evaluate([row])[0])
            assert result.trips == (int(row["target_length"]),)
            assert not result.truncated


def check_course(course: Course, policy: str) -> None:
    """It was no trivial run."""
    assert course.rows_most > 1
    assert any(result is None for result in course.results)
    for result, steps in zip(course.results, course.steps, strict=True):
        if result is not None:
            assert [int(step["token_next"]) for step in steps] == next(iter(result.values())).tolist()
    if policy != "graph":
        assert course.joins > 5
        assert course.left > 5


@pytest.mark.parametrize("name", TINY)
def test_rows_of_all_lengths_may_join(models: dict[str, Any], name: str) -> None:
    """Both stages are proved to keep rows apart, at any position; rows of different lengths have one signature."""
    model = models[name]
    assert model.joinable, model.reason
    (loop,) = model.graph.loops
    assert (loop.same_iteration, loop.trips_max) == (False, TINY[name].target_max)
    admitted = [model.admit(row) for row in requests(TINY[name], 20, seed=2)]
    assert len({row.signature for row in admitted}) == 1
    assert len({row.size for row in admitted}) > 5


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TINY)
def test_joined_answers_are_the_rows_own(tiny_zoo: Path, models: dict[str, Any], name: str, policy: str) -> None:
    """Rows arrive at random, enter running loops at any step, end while others go on, are withdrawn."""
    rows = requests(TINY[name], 40, seed=6)
    lengths = guesses_for(models[name].graph, load_lengths(tiny_zoo / name / LENGTHS_FILE))
    course = replay(models[name], rows, policy, seed=4, gap_nodes=5, withdrawn=0.2, lengths=lengths)
    check(name, tiny_zoo, rows, course.results)
    check_course(course, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TINY)
def test_many_rows(tiny_zoo: Path, models: dict[str, Any], name: str, policy: str) -> None:
    """The same for 400 rows, sixteen at a time."""
    rows = requests(TINY[name], 400, seed=7)
    course = replay(models[name], rows, policy, seed=5, gap_nodes=3, withdrawn=0.1, max_batch_size=16)
    check(name, tiny_zoo, rows, course.results)
    check_course(course, policy)


@pytest.mark.parametrize("name", TINY)
def test_through_the_batcher(tiny_zoo: Path, models: dict[str, Any], name: str) -> None:
    """Live, under the default policy, all rows at once."""
    rows, model = requests(TINY[name], 20, seed=8), models[name]
    lengths = load_lengths(tiny_zoo / name / LENGTHS_FILE)
    with lb.LazyBatcher(model, table=flat_table(model), sla=30.0, lengths=lengths, max_batch_size=8) as batcher:
        results = [future.result(timeout=120) for future in [batcher.submit(row) for row in rows]]
    check(name, tiny_zoo, rows, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_as_torch_modules(tiny_zoo: Path, name: str) -> None:
    """Programs of the torch modules themselves give what the files give."""
    model: Any = lb.load(torch_program(name, size=TINY[name]), cache=False)
    assert model.joinable, model.reason
    rows = requests(TINY[name], 16, seed=9)
    course = replay(model, rows, "continuous", seed=3, gap_nodes=8)
    check(name, tiny_zoo, rows, course.results)
    assert course.rows_most > 1


@pytest.mark.parametrize("name", TINY)
def test_too_long_a_source_is_refused(models: dict[str, Any], name: str) -> None:
    """A row that does not fit the padded length is refused with its input's name."""
    (row,) = requests(TINY[name], 1)
    source = next(iter(row))
    longer = {**row, source: np.resize(row[source], (TINY[name].source_max + 1, *row[source].shape[1:]))}
    with pytest.raises(lb.InvalidInput, match=source):
        models[name].admit(longer)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_as_published(tmp_path: Path, name: str) -> None:
    """The full models too, a dozen rows under the policies that join most."""
    path = ensure_program(name, tmp_path)
    model: Any = lb.load(path)
    rows = requests(FULL[name], 12, seed=10)
    evaluate = Reference(path.parent, FULL[name])
    wanted = [evaluate([row])[0] for row in rows]
    for policy in ("continuous", "lookahead"):
        course = replay(model, rows, policy, seed=1, gap_nodes=6)
        for tokens, result in zip(wanted, course.results, strict=True):
            assert np.array_equal(next(iter(result.values())), tokens)
