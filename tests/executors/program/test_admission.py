"""Rows of programs: what is taken, what is refused in which words, and what makes rows join."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from lazybatch.errors import InvalidInput
from lazybatch.program import Append, Carry, Feed, Repeat
from tests.executors.program.test_model import models, single, translate

__all__ = ["models"]


def sound(length: int, width: int = 4) -> dict[str, Any]:
    """A row of so many entries."""
    return {"audio": np.zeros((length, width), np.float32)}


def test_padded_sizes_make_rows_join(models: dict[str, Any]) -> None:
    """Rows of one padded size are alike, whatever their lengths; their size is their length."""
    model = translate(models)
    short, long, other = (model.admit({"source": np.zeros((n, 4), np.float32)}) for n in (1, 3, 4))
    assert short.signature == long.signature != other.signature
    assert (short.size, long.size, other.size) == (1, 3, 4)
    assert short.trips == (None,)


def test_what_is_given_per_iteration_may_be_of_any_length(models: dict[str, Any]) -> None:
    """Rows that make more iterations join those that make fewer; how many is known."""
    model = single(models, "lstm", Repeat(carry={"s": "s_next"}, each={"x": "audio"}), "s")
    one, other = model.admit(sound(1)), model.admit(sound(9))
    assert one.signature == other.signature
    assert (one.trips, other.trips) == ((1,), (9,))


def test_rows_are_copied(models: dict[str, Any]) -> None:
    """What the caller does to its array later is no matter."""
    model = single(models, "lstm", Repeat(carry={"s": "s_next"}, each={"x": "audio"}), "s")
    given = sound(2)
    row = model.admit(given)
    given["audio"][:] = 7
    assert row.values["audio"].max() == 0


def test_lengths_that_all_rows_share(models: dict[str, Any]) -> None:
    """An input without a batch axis that is given a length makes rows of other lengths unlike."""
    loop = Repeat(carry={"h": "h_next"}, trips="n", trips_max=4)
    model = single(models, "clock", loop, "h", time=Feed(length_of="text"))
    rows = [model.admit({"text": np.zeros(n), "n": 2}) for n in (3, 3, 4)]
    assert model.joinable
    assert rows[0].signature == rows[1].signature != rows[2].signature


def test_values_that_all_rows_share(models: dict[str, Any]) -> None:
    """Likewise for its value."""
    loop = Repeat(carry={"h": "h_next"}, trips="n", trips_max=4)
    model = single(models, "clock", loop, "h", time="rate")
    rows = [model.admit({"rate": np.array(rate), "n": 2}) for rate in (8, 8, 16)]
    assert model.joinable
    assert rows[0].signature == rows[1].signature != rows[2].signature


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([1], "a row of program 'translate' is a dict"),
        ({}, "input 'source' is missing: program 'translate' takes 'source'"),
        ({"source": np.zeros((2, 4), np.float32), "x": 1}, "unknown input 'x'"),
        (
            {"source": np.zeros((2, 5), np.float32)},
            r"'source' has shape \[2, 5\], .* \(read by stage 'encoder' as 'source'",
        ),
        ({"source": np.zeros((2, 4))}, "'source' has dtype float64, expected float32 .*stage 'encoder'"),
        ({"source": np.zeros((7, 4), np.float32)}, "'source' has 7 entries, more than the 6 it can be padded to"),
    ],
)
def test_refused_rows(models: dict[str, Any], row: Any, says: str) -> None:
    """Clear words for each mistake, naming the input and the stage that reads it."""
    with pytest.raises(InvalidInput, match=says):
        translate(models).admit(row)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (sound(0), r"'audio' has no entries, expected at least one \(read by stage 'step' as 'x'\)"),
        (sound(2, 3), r"'audio' has shape \[2, 3\]"),
        (sound(9), "'audio' makes 9 iterations of stage 'step'; it allows 5"),
        ({"audio": np.float32(1)}, "'audio' has shape"),
    ],
)
def test_refused_sequences(models: dict[str, Any], row: Any, says: str) -> None:
    """What is given per iteration needs entries, of the right shape, and not too many."""
    loop = Repeat(carry={"s": "s_next"}, each={"x": "audio"}, trips_max=5)
    with pytest.raises(InvalidInput, match=says):
        single(models, "lstm", loop, "s").admit(row)


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (0, "'n' makes 0 iterations of stage 'step'; every row makes at least one"),
        (5, "'n' makes 5 iterations of stage 'step'; it allows 4"),
        ([1, 2], "'n' has shape .* expected one integer"),
        (1.5, "do not fit int64 exactly"),
    ],
)
def test_refused_counts(models: dict[str, Any], count: Any, says: str) -> None:
    """A number of iterations is one whole number within the loop's limits."""
    loop = Repeat(carry={"h": "h_next"}, iteration="time", trips="n", trips_max=4)
    with pytest.raises(InvalidInput, match=says):
        single(models, "clock", loop, "h").admit({"n": count})


def test_more_iterations_than_are_counted(models: dict[str, Any]) -> None:
    """Where a loop has no limit, one that executors and schedulers can count to holds."""
    loop = Repeat(carry={"h": "h_next"}, iteration="time", trips="n")
    model = single(models, "clock", loop, "h")
    assert model.admit({"n": (1 << 31) - 1}).trips == ((1 << 31) - 1,)
    for count in (1 << 31, (1 << 63) - 1):
        with pytest.raises(InvalidInput, match="iterations of stage 'step'; it allows 2147483647"):
            model.admit({"n": count})


def test_entries_must_last_for_all_iterations(models: dict[str, Any]) -> None:
    """Where another input says how many iterations there are, each needs an entry."""
    loop = Repeat(carry={"s": "s_next"}, each={"x": "audio"}, trips="n")
    model = single(models, "lstm", loop, "s")
    assert model.admit({**sound(4), "n": 3}).trips == (3,)
    with pytest.raises(InvalidInput, match="'audio' has 2 entries, but stage 'step' makes 3 iterations"):
        model.admit({**sound(2), "n": 3})


def test_room_limits_iterations(models: dict[str, Any]) -> None:
    """A row cannot make more iterations than what grows has room for."""
    loop = Repeat(carry={"h": Carry("h_next", "h"), "keys": Append("key", 0, 7)}, iteration="position", trips="n")
    model = single(models, "decoder", loop, "h", memory="memory")
    row = {"h": np.zeros(6, np.float32), "memory": np.zeros((3, 6), np.float32)}
    assert model.admit({**row, "n": 7}).trips == (7,)
    with pytest.raises(InvalidInput, match="it allows 7"):
        model.admit({**row, "n": 8})


def test_entries_must_last_for_the_iterations_that_are_made(models: dict[str, Any]) -> None:
    """Of two sequences one may end where the loop does at the latest; the other says how many iterations are made."""
    loop = Repeat(each={"n": "audio", "target": "marks"}, done="finished", trips_max=3)
    model = single(models, "counter", dataclasses.replace(loop, collect=("square",)), "square")
    row = {"audio": np.arange(10), "marks": np.full(3, 99)}
    assert model.admit(row).trips == (None,)
    for entries, says in ((10, 3), (2, 2)):
        with pytest.raises(InvalidInput, match=f"'marks' has 1 entries, but stage 'step' makes {says} iterations"):
            model.admit({"audio": np.arange(entries), "marks": np.arange(1)})
    executor = model.executor(max_batch_size=1)
    executor.open(0, {0: model.admit(row)}, 1)
    assert [executor.run(0, 0) for _ in range(3)] == [[], [], []]
    assert executor.close(0)[0]["out"][:, 0].tolist() == [0, 1, 4]


def test_a_length_is_read_of_anything_that_has_one(models: dict[str, Any]) -> None:
    """Numbers of any type, text, tensors: what is no array at all is refused by name, as ever."""
    loop = Repeat(carry={"h": "h_next"}, trips="n", trips_max=4)
    model = single(models, "clock", loop, "h", time=Feed(length_of="text"))
    for text in ([1, 2, 3], ["a", "b", "c"], np.zeros((3, 2)), torch.zeros(3, requires_grad=True)):
        assert len(model.admit({"text": text, "n": 2}).values["text"]) == 3
    with pytest.raises(InvalidInput, match=r"input 'text' is no array: .* \(read by stage 'step' as 'time'\)"):
        model.admit({"text": [[1, 2], [3]], "n": 2})


def test_a_length_that_only_says_how_often(models: dict[str, Any]) -> None:
    """An input may be read for the number of iterations and for nothing else; rows join whatever it is."""
    model = single(models, "clock", Repeat(carry={"h": "h_next"}, trips=Feed(length_of="text"), iteration="time"), "h")
    rows = [model.admit({"text": np.zeros(n)}) for n in (3, 5)]
    assert [row.trips for row in rows] == [(3,), (5,)]
    assert rows[0].signature == rows[1].signature
    none, single_value = "makes 0 iterations of stage 'step'; every row makes at least one", "is a single value"
    for text, says in (([], none), (2.0, single_value)):
        with pytest.raises(InvalidInput, match=says):
            model.admit({"text": text})


def test_tensors_are_rows_like_arrays(models: dict[str, Any]) -> None:
    """They are taken as a model takes them by itself: of the very type, or refused in the same words."""
    model = single(models, "lstm", Repeat(carry={"s": "s_next"}, each={"x": "audio"}), "s")
    for audio in (torch.ones(2, 4, requires_grad=True), torch.ones(2, 4, dtype=torch.bfloat16)):
        assert model.admit({"audio": audio}).values["audio"].tolist() == [[1.0] * 4] * 2
    with pytest.raises(InvalidInput, match=r"'audio' has dtype float64, expected float32 \(read by stage 'step'"):
        model.admit({"audio": torch.ones(2, 4, dtype=torch.float64)})
