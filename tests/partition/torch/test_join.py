"""May rows share a batch? What is found by itself, what is refused, and how it is served then."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.partition.torch.join import first_axes, identity, judge_torch, tied_axes
from lazybatch.partition.torch.source import read_source
from tests.torch_modules import CASES, Case, Wrapped, fine, load_fine, sound

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Mixing(nn.Module):
    """Takes the mean over its rows away: nothing but the values shows it."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, 6) -> (N, 6)."""
        return x - x.mean(0)


@CASES
def test_sound_modules_join(case: Case) -> None:
    """Each is proved joinable on the axes its rows lie on, found without being told."""
    partition = fine(case.name).partition
    assert partition.joinable, partition.reason
    wanted = case.axes or dict.fromkeys(partition.inputs, 0)
    assert partition.provenance["batch_axes"] == wanted
    assert len(partition.pieces) > 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x - x.mean(0), "a row changes by up to"),
        (lambda x: x / x.shape[0], "div .* steers by the number of rows"),
        (lambda x: x.cumsum(0), "a row changes|walks over the rows"),
        (lambda x: x.flip(0), "a row changes"),
        (lambda x: torch.softmax(x, 0), "a row changes"),
        (lambda x: x * 2 if x.shape[0] > 3 else x, "decides by the number of rows"),
        (lambda x: x.sum(), "no output has a row|has no axis for the rows"),
        (lambda x: torch.dropout(x, 0.5, True), "draws random numbers"),
        (lambda x: x[x[:, 0] > 0], "as it finds in the whole batch"),
        (lambda x: torch.relu(x - (x.mean(0) - 100).relu()), "ties rows together|a row changes"),
    ],
)
def test_mixing_modules_are_refused(function: Callable[[Tensor], Tensor], said: str) -> None:
    """Whatever ties rows together is refused with a reason, and served alone: as the module answers one row."""
    model = load_fine(Wrapped(function), X)
    assert not model.joinable
    assert model.reason is not None
    assert re.search(said, model.reason), model.reason


def test_served_alone_answers_are_the_modules() -> None:
    """A refused module still runs node by node, one row at a time, rows given and answered without a batch axis."""
    model = load_fine(Mixing().eval(), X)
    assert len(model.graph) > 1
    executor = model.executor(max_batch_size=1)
    executor.open(0, {3: model.admit({"x": X[1]})}, 1)
    for node in range(len(model.graph)):
        executor.run(0, node)
    assert np.array_equal(executor.close(0)[3]["output"], np.zeros(6, np.float32))
    executor.shutdown()


def test_a_fixed_number_of_rows_is_one_request() -> None:
    """A module that computes with four rows only takes the four of them as one request."""
    model = load_fine(Wrapped(lambda x: x.reshape(4, 2, 3).sum(1).sin()), X)
    assert model.reason is not None
    assert "fixed number of rows (4)" in model.reason
    row = model.admit({"x": X})
    with pytest.raises(InvalidInput, match=r"shape \[6\], expected \[4, 6\]"):
        model.admit({"x": X[0]})
    executor = model.executor(max_batch_size=1)
    executor.open(0, {0: row}, 1)
    for node in range(len(model.graph)):
        executor.run(0, node)
    assert np.array_equal(executor.close(0)[0]["output"], X.reshape(4, 2, 3).sum(1).sin().numpy())


def test_require_joinable() -> None:
    """Asked to, loading refuses what cannot be joined."""
    with pytest.raises(ModelError, match=r"rows cannot share a batch: .*a row changes"):
        load_fine(Mixing().eval(), X, require_joinable=True)


def test_data_dependent_control_flow() -> None:
    """What torch.export refuses altogether is a `ModelError` that names the cause."""
    with pytest.raises(ModelError, match="control flow depends on values"):
        load_fine(Wrapped(lambda x: x if x.sum() > 0 else -x), X)


def test_module_that_fails_on_its_examples() -> None:
    """A module that does not take its own examples is told so before anything else."""
    with pytest.raises(ModelError, match=r"fails on its example_inputs: .*shapes cannot be multiplied"):
        load_fine(nn.Linear(3, 3).eval(), X)


def test_declared_axes() -> None:
    """Declared axes are taken at their word, and proved; a declaration that cannot be is refused."""
    model = load_fine(Wrapped(torch.sin), X, batch_axes={"x": 1})
    assert model.partition.boundaries["x"].axis == 1
    assert model.joinable
    for axes, said in (({"y": 0}, "is no input"), ({"x": 2}, "has 2 dimensions")):
        with pytest.raises(InvalidInput, match=said):
            load_fine(Wrapped(torch.sin), X, batch_axes=axes)


def test_no_axis_at_all() -> None:
    """A module of scalars has no rows; it is served as it is."""
    model = load_fine(Wrapped(lambda x: x.sin().cos()), torch.tensor(0.5))
    assert not model.joinable
    assert model.admit({"x": 0.25}).values["x"].shape == ()


def test_axes_in_the_order_they_are_tried() -> None:
    """First axes of equal length come first; then what torch.export ties together, if some input begins with it."""
    source = read_source(sound("recurrent").module(), sound("recurrent").batch(2))
    assert first_axes(source) == {"steps": 0}
    assert tied_axes(source)[0] == {"steps": 1, "state": 1, "cell": 1, "lengths": 0}
    features = read_source(Mixing().eval(), X)
    assert tied_axes(features) == [{"x": 0}]


def test_identity_tells_modules_apart() -> None:
    """The same module has the same identity; weights and refusals are part of it."""
    batch = sound("tied").batch(2)
    one, same = (identity(read_source(sound("tied").module(), batch), None) for _ in range(2))
    assert one == same
    assert identity(read_source(Wrapped(lambda x: x.reshape(4, 6)), X), None) != one


def test_the_refusal_that_came_furthest_is_told() -> None:
    """A declared axis that fails is the reason given, with the evidence of what outputs did."""
    source = read_source(Mixing().eval(), X)
    _, verdict = judge_torch(source, None, None)
    evidence: Any = verdict.evidence
    assert evidence.grew == {"output": 0}
    assert evidence.max_abs_diff > 0
