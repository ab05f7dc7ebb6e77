"""The search for batch axes, on plain functions: whatever the framework, the same proof."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lazybatch.errors import ExecutionError
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Array, Feeds
from lazybatch.partition.proof.search import NO_INPUT, Finding, Verdict, judge
from lazybatch.partition.proof.traits import Outcome

PORTS = (Port("x", "float32", ("n", 12)), Port("k", "int64", ("n",)))


NOTHING = Finding()


def verdict(function: Callable[[Array, Array], Array], finding: Finding = NOTHING, **options: object) -> Verdict:
    """The verdict on a function of x (n, 12) and k (n,)."""

    def run(feeds: Feeds) -> Outcome:
        return {"y": function(feeds["x"], feeds["k"])}

    chosen: dict[str, object] = {"batch_axes": None, "examples": None, "tolerance": None, **options}
    return judge([PORTS], ["y"], run, lambda *_: finding, **chosen)  # type: ignore[arg-type]


def test_a_sound_function() -> None:
    """Rows that keep to themselves are proved on the axis both inputs share."""
    found = verdict(lambda x, k: x * k[:, None])
    assert (found.reason, found.candidate) == (None, {"x": 0, "k": 0})


def test_a_crowd_is_tried() -> None:
    """What begins to matter at many rows is found."""
    found = verdict(lambda x, k: x + (1 if len(x) > 8 else 0))
    assert found.reason is not None
    assert "rows share its batch" in found.reason


def test_wild_indices_are_tried_where_rows_are_picked() -> None:
    """An index out of bounds must not reach another row; only models that pick are tried."""

    def picks(x: Array, k: Array) -> Array:
        at = k + 12 * np.arange(len(k))
        if (at >= x.size).any() or (at < 0).any():
            raise ExecutionError("out of bounds")
        return x.reshape(-1)[at][:, None]

    assert verdict(picks).reason is None
    found = verdict(picks, Finding(picks=True))
    assert found.reason is not None
    assert "fails alone" in found.reason


def test_what_operators_say_comes_first() -> None:
    """A refusal for an operator is the reason, whatever runs show."""
    assert verdict(lambda x, k: x, Finding(["operator so and so", "operator such"])).reason == "operator so and so"


def test_what_is_said_in_which_order() -> None:
    """A scale of the whole tensor unless there is a tolerance, then what runs show, then what is dear to look at."""
    scale = Finding(scales=["operator scale"], data={"y"}, further=lambda: "further")
    assert verdict(lambda x, k: x - x.mean(0), scale).reason == "operator scale; pass tolerance to allow it"
    assert verdict(lambda x, k: x, scale, tolerance=0.1).reason == "further"
    mixed = verdict(lambda x, k: x - x.mean(0), Finding(further=lambda: "further")).reason
    assert mixed is not None
    assert mixed.startswith("output 'y'")


def test_an_output_that_is_the_same_for_ordinary_rows() -> None:
    """What may depend on rows, yet has no axis for them, is refused; what cannot, is everybody's."""

    def run(feeds: Feeds) -> Outcome:
        return {"y": feeds["x"], "z": np.zeros(3)}

    def judged(*data: str) -> str | None:
        finding = Finding(data=data)
        options = {"batch_axes": None, "examples": None, "tolerance": None}
        return judge([PORTS], ["y", "z"], run, lambda *_: finding, **options).reason  # type: ignore[arg-type]

    assert judged("y") is None
    assert judged("y", "z") == "output 'z' has no axis for the rows, yet may depend on their values"


def test_examples_and_drawn_rows() -> None:
    """With examples, rows are drawn freely besides where the model takes them; measuring goes by the examples."""
    examples = {"x": [np.full((2, 12), 0.5, np.float32)], "k": [np.array([70, 90])]}
    both = verdict(lambda x, k: x * k[:, None], examples=examples, drawn=True)
    assert [bool(recipe.examples) for recipe in both.recipes] == [False, True]
    assert both.typical is both.recipes[-1]

    def picky(x: Array, k: Array) -> Array:
        if (k < 50).any():
            raise ExecutionError("too small")
        return x * k[:, None]

    only = verdict(picky, examples=examples, drawn=True)
    assert [bool(recipe.examples) for recipe in only.recipes] == [True]
    assert only.reason is None


def test_every_example_is_tried_in_a_crowd() -> None:
    """The first example as well where drawn rows come before it: there is a recipe of its own for each."""
    ports = (*PORTS, Port("late", "bool", ()))

    def run(feeds: Feeds) -> Outcome:
        crowd = len(feeds["x"]) > 8 and feeds["k"].min() > 50 and not feeds["late"]
        return {"y": feeds["x"] + float(crowd)}

    rows = {"x": np.ones((1, 12), np.float32), "k": np.array([70])}
    examples = {name: [value, value] for name, value in rows.items()} | {"late": [np.array(False), np.array(True)]}
    options = {"batch_axes": {"x": 0, "k": 0}, "examples": examples, "tolerance": None, "drawn": True}
    found = judge([ports], ["y"], run, lambda *_: NOTHING, **options)  # type: ignore[arg-type]
    assert [bool(recipe.examples) for recipe in found.recipes] == [False, True, True]
    assert found.reason is not None
    assert "rows share its batch" in found.reason


def test_what_is_left_out_is_noted() -> None:
    """Of very many unbatched inputs not every one is probed: the verdict says so."""
    ports = (*PORTS, Port("at", "float32", ()))
    examples = {name: [value] * 20 for name, value in {"x": np.ones(12, np.float32), "k": np.array(1)}.items()}
    examples["at"] = [np.array(k, np.float32) for k in range(20)]
    options = {"batch_axes": {"x": 0, "k": 0}, "examples": examples, "tolerance": None}
    found = judge([ports], ["y"], lambda feeds: {"y": feeds["x"]}, lambda *_: NOTHING, **options)  # type: ignore[arg-type]
    assert found.reason is None
    assert found.note == "of 20 different sets of unbatched inputs among example_inputs, 8 were probed"


def test_no_input_is_accepted() -> None:
    """A model that refuses everything is not judged, and asks for examples."""

    def never(x: Array, k: Array) -> Array:
        raise ExecutionError("never")

    found = verdict(never)
    assert (found.reason, list(found.recipes)) == (NO_INPUT, [])
