"""Letters to phonemes as a program: two trained loops, whose answers are those of the plain arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazybatch as lb
from graphs import g2p
from graphs.__main__ import main
from graphs.build import BuildError
from graphs.trained import LENGTHS_FILE, TRAINED
from graphs.words import REAL, invented, words
from lazybatch.core.lengths import LengthGuess
from lazybatch.lengths import load_lengths
from tests.graphs.interpreter import Interpreter
from tests.graphs.replay import Course, replay
from tests.serving import flat_table

Said = Callable[[str], Any]
POLICIES = ("continuous", "lazy", "lookahead", "graph")
LENGTHS = (None, LengthGuess.of([2, 4, 5, 6, 7, 7, 8, 9, 11, 15]))
"""Letters are counted beforehand; of phonemes a few numbers were seen."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported program."""
    return g2p.export(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def model(program: Path) -> Any:
    """The program, loaded: its bodies cut and proved joinable."""
    return lb.load(program, cache=False)


@pytest.fixture(scope="module")
def plain() -> g2p.Weights:
    """The package's weights."""
    return g2p.Weights.read()


@pytest.fixture(scope="module")
def said(plain: g2p.Weights) -> Said:
    """Plain evaluation of a word, once."""
    return functools.cache(lambda word: plain.phonemes(g2p.letters(word)))


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("knight", "N AY1 T"),
        ("phlox", "F L AA1 K S"),
        ("hello", "HH EH1 L OW0"),
    ],
)
def test_it_can_read(word: str, phonemes: str, plain: g2p.Weights) -> None:
    """The weights are read in the right order: silent letters are silent."""
    assert g2p.spelled(plain.phonemes(g2p.letters(word))) == phonemes.split()


def test_letters_and_phonemes_are_numbered() -> None:
    """Letters from 3 on, unknown ones 1, the end of the word 2; 74 phonemes; the end symbol cuts the answer."""
    assert g2p.letters("aZ-").tolist() == [3, 28, 1, 2]
    assert g2p.letters("").tolist() == [2]
    assert len(g2p.PHONEMES) == len(set(g2p.PHONEMES)) == 74
    assert g2p.spelled([21, 3, 22]) == [g2p.PHONEMES[21]]
    assert g2p.spelled([21, 22]) == [g2p.PHONEMES[21], g2p.PHONEMES[22]]


def test_the_plain_arithmetic_is_a_gated_unit(plain: g2p.Weights) -> None:
    """The step agrees with torch's GRU cell on the same weights, to rounding."""
    import torch

    unit = plain.decoder
    cell = torch.nn.GRUCell(256, g2p.WIDTH)
    parts = (unit.input_weights, unit.state_weights, unit.input_bias, unit.state_bias)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({name: torch.from_numpy(part) for name, part in zip(names, parts, strict=True)})
    state = np.random.default_rng(0).uniform(-1, 1, g2p.WIDTH).astype(np.float32)
    with torch.no_grad():
        wanted = cell(torch.from_numpy(unit.embedding[5])[None], torch.from_numpy(state)[None])[0].numpy()
    assert np.allclose(unit.step(5, state), wanted, atol=1e-5)


def test_the_program_read_by_hand(program: Path, plain: g2p.Weights) -> None:
    """The program's file says what the package does: letters, then phonemes until the end symbol or the twentieth."""
    interpreter = Interpreter(program)
    given = [*words(24, seed=4), "a", "antidisestablishmentarianism"]
    for word in given:
        letters = g2p.letters(word)
        answer = interpreter({"letters": letters})
        phonemes = plain.phonemes(letters)
        assert answer.outputs["phonemes"].tolist() == phonemes.tolist(), word
        assert answer.trips == (len(word) + 1, len(phonemes))
        assert answer.truncated == (phonemes[-1] != g2p.END)


def test_a_word_that_is_too_long_is_cut_off(program: Path, plain: g2p.Weights) -> None:
    """The longest one needs more than twenty phonemes, and says that it was not done."""
    letters = g2p.letters(max(REAL, key=len))
    answer = Interpreter(program)({"letters": letters})
    assert answer.truncated
    assert answer.trips[1] == len(plain.phonemes(letters)) == g2p.STEPS_MAX
    assert len(g2p.spelled(answer.outputs["phonemes"])) == g2p.STEPS_MAX


def test_words_are_many_and_different() -> None:
    """More than a thousand words, none twice, all the real ones among them; of all lengths; by the seed alone."""
    made = words(1200, seed=3)
    assert len(set(made)) == len(made) == 1200
    assert len(set(made) & set(REAL)) == len(set(REAL)) > 300
    assert min(map(len, made)) == 1
    assert max(map(len, made)) > 20
    assert made == words(1200, seed=3)
    assert made != words(1200, seed=4)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in (*made, *invented(100)))


def check(given: Sequence[str], said: Said, results: Sequence[Any]) -> None:
    """Every answer that is there is the word's own: phonemes, iterations of both loops, whether it was cut off."""
    for word, result in zip(given, results, strict=True):
        if result is None:
            continue
        letters = g2p.letters(word)
        phonemes = said(word)
        assert result["phonemes"].tolist() == phonemes.tolist(), word
        assert result.trips == (len(letters), len(phonemes)), word
        assert result.truncated == (phonemes[-1] != g2p.END), word


def check_course(given: Sequence[str], said: Said, course: Course, policy: str) -> None:
    """The same, of a replay; what was streamed are the answers; and it was no trivial one."""
    check(given, said, course.results)
    for result, steps in zip(course.results, course.steps, strict=True):
        if result is not None:
            assert [int(step["phoneme_next"]) for step in steps] == result["phonemes"].tolist()
    assert course.rows_most > 1
    assert 0 < sum(result is None for result in course.results) < 0.5 * len(given)
    if policy != "graph":
        assert course.joins > 5
        assert course.left > 5
        assert course.preemptions > 0


def test_rows_may_join(model: Any) -> None:
    """Both bodies are proved to keep rows apart, at any iteration."""
    assert model.joinable
    assert [(loop.name, loop.same_iteration, loop.trips_max) for loop in model.graph.loops] == [
        ("encoder", False, None),
        ("decoder", False, g2p.STEPS_MAX),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_joined_answers_are_the_words_own(policy: str, model: Any, said: Said) -> None:
    """Words arrive at random, preempt, join at different letters and phonemes, leave early, are withdrawn."""
    given = [*words(32, seed=6), max(REAL, key=len)]
    rows = [{"letters": g2p.letters(word)} for word in given]
    course = replay(model, rows, policy, seed=8, withdrawn=0.15, lengths=LENGTHS)
    check_course(given, said, course, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_thousand_words(policy: str, model: Any, said: Said) -> None:
    """The same for 1,200 words: those that are there in the end are more than a thousand."""
    given = words(1200, seed=1)
    rows = [{"letters": g2p.letters(word)} for word in given]
    course = replay(model, rows, policy, seed=2, withdrawn=0.05, lengths=LENGTHS)
    check_course(given, said, course, policy)
    assert sum(result is not None for result in course.results) >= 1000


@pytest.mark.slow
def test_rounding_decides_no_phoneme(plain: g2p.Weights) -> None:
    """In none of 1,200 words do the two best phonemes of a step score so alike that rounding could swap them."""
    margins = [
        np.diff(np.sort(scores)[-2:])[0] for word in words(1200, seed=1) for scores in plain.scores(g2p.letters(word))
    ]
    assert min(margins) > 5e-5


@pytest.mark.parametrize("policy", POLICIES)
def test_through_the_batcher(policy: str, model: Any, said: Said) -> None:
    """Live, all words at once and some of them streamed: each gets its own phonemes, step by step where asked for."""
    given = words(32, seed=11)
    table = {"table": flat_table(model), "lengths": LENGTHS, "sla": 30.0} if policy in ("lazy", "lookahead") else {}
    with lb.LazyBatcher(model, policy=policy, max_batch_size=8, **table) as batcher:
        futures = [batcher.submit({"letters": g2p.letters(word)}) for word in given]
        streamed = [
            [int(step["phoneme_next"]) for step in batcher.stream({"letters": g2p.letters(word)})] for word in given[:6]
        ]
        results = [future.result(timeout=120) for future in futures]
    check(given, said, results)
    assert streamed == [said(word).tolist() for word in given[:6]]


def test_a_row_with_an_unknown_letter_fails_alone(model: Any, said: Said) -> None:
    """A number beyond the alphabet makes a node fail; that row fails, its mates get their answers."""
    given = words(6, seed=12)
    with lb.LazyBatcher(model, policy="continuous", max_batch_size=8) as batcher:
        futures = [batcher.submit({"letters": g2p.letters(word)}) for word in given]
        bad = batcher.submit({"letters": np.array([5, 500, 2])})
        assert isinstance(bad.exception(timeout=120), lb.ExecutionError)
        check(given, said, [future.result(timeout=120) for future in futures])


@pytest.mark.parametrize(
    ("row", "culprit"),
    [
        ({"letters": np.array([1.0, 2.0])}, "letters"),
        ({"letters": np.zeros((2, 2), np.int64)}, "letters"),
        ({"letters": np.zeros(0, np.int64)}, "letters"),
        ({"word": np.array([2])}, "letters"),
    ],
)
def test_wrong_rows_are_refused(row: dict[str, Any], culprit: str, model: Any) -> None:
    """Wrong types, shapes, names, and a word without letters: refused with the name of the input."""
    with pytest.raises(lb.InvalidInput, match=culprit):
        model.admit(row)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes the program, its bodies and lengths that were seen, and compares it with the package."""
    assert main(["export", "--model", "g2p", "-o", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    path = tmp_path / "g2p" / "program.json"
    assert report == {"model": "g2p", "file": str(path), "words_compared": 100, "words_differing": 0}
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "decoder.onnx",
        "encoder.onnx",
        "lengths.json",
        "program.json",
    ]
    pairs = load_lengths(path.parent / LENGTHS_FILE).pairs["decoder"]
    assert len(pairs) == g2p.CHARACTERISED
    assert {output for _, output in pairs} <= set(range(1, g2p.STEPS_MAX + 1))
    assert np.corrcoef(np.array(pairs).T)[0, 1] > 0.7, "longer words have more phonemes"


def test_requests_are_words_and_know_their_trips(said: Said) -> None:
    """Rows of many lengths, by the seed alone; how often they go round is what they do."""
    made = TRAINED["g2p"].requests(30, 5)
    given = words(30, seed=5)
    assert [row["letters"].tolist() for row in made] == [g2p.letters(word).tolist() for word in given]
    assert [TRAINED["g2p"].trips(row) for row in made[:8]] == [(len(one) + 1, len(said(one))) for one in given[:8]]


def test_another_network_is_noticed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the files are not those of the weights, the check names a word and both answers."""
    weights = g2p.Weights.read()
    other = dataclasses.replace(weights, output_bias=np.roll(weights.output_bias, 1))
    monkeypatch.setattr(g2p.Weights, "read", lambda: other)
    with pytest.raises(BuildError, match="by plain arithmetic"):
        g2p.check(program)


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what to install and how; nothing is written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["export", "--model", "g2p", "-o", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install --no-deps g2p-en==2.1.0" in line
    assert not list(tmp_path.iterdir())
