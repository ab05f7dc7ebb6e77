"""What the operators of a torch graph say of rows that share a batch."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lazybatch.partition.torch.taint import Marks, operator_of, spread
from tests.partition.torch.test_flat import flat
from tests.torch_modules import CASES, Case, sound

WIDE = torch.randn(4, 6)


def marks(given: Callable[[Tensor], object] | nn.Module | Case, inputs: Tensor = WIDE) -> Marks:
    """Where the marks of a graph arrive when all inputs are batched on axis 0."""
    graph = flat(given, inputs)
    axes = given.axes if isinstance(given, Case) and given.axes else {port.name: 0 for port in graph.inputs}
    return spread(graph, dict(axes))


@CASES
def test_sound_modules_pass(case: Case) -> None:
    """Nothing is held against the operators of modules whose rows may join."""
    found = marks(case)
    assert (found.refusals, found.scales) == ([], [])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.dropout(x, 0.5, True), "native_dropout .* draws random numbers"),
        (lambda x: x + torch.rand_like(x), "rand.* draws random numbers"),
        (lambda x: x[x[:, 0] > 0], "(nonzero|index) .* as it finds in the whole batch"),
        (lambda x: x * x.sum().item(), "item .* takes a number out of the values"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond .* branches or loops"),
        (lambda x: x + x.shape[0] // 2, "floordiv .* steers by the number of rows"),
        (lambda x: x[:, : x.shape[1] - 1] + (x.shape[0] - 8), "(sub|add) .* steers by the number of rows"),
        (lambda x: torch.where(torch.arange(x.shape[0])[:, None] > 8, 0 * x, x), "gt .* steers by the number of rows"),
        (lambda x: x.clamp(max=float("inf")) / (x.shape[0] / 2), "div .* steers by the number of rows"),
        (lambda x: nn.functional.batch_norm(x, None, None, training=True), "normalises by the mean of the whole batch"),
    ],
)
def test_refusals(function: Callable[[Tensor], Tensor], said: str) -> None:
    """Chance, counting, branches, and steering by the number of rows are refused with the operator's name."""
    found = marks(function).refusals
    assert any(re.search(said, text) for text in found), found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.dropout(x, 0.5, False),
        lambda x: nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
        lambda x: x * (torch.ones(x.shape[0], 6) > 0),
        lambda x: x.reshape(x.shape[0] * 2, 3).reshape(x.shape[0], 6),
        lambda x: x.sin()[torch.arange(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.int64)],
        lambda x: x.repeat(2, 1).reshape(2, x.shape[0], 6)[0],
    ],
)
def test_what_is_harmless(function: Callable[[Tensor], Tensor]) -> None:
    """Dropout that does nothing, sizes in shapes, masks of ones, and rows that pick from themselves pass."""
    assert marks(function).refusals == []


def test_picking_is_noticed() -> None:
    """Rows' values picked by rows' values are worth trying with wild indices; a table looked up is not."""
    assert marks(sound("picks")).picks
    assert not marks(sound("tokens")).picks


def test_data_goes_where_values_go() -> None:
    """Values of batched inputs mark what is computed from them; sizes and constants stay unmarked."""
    graph = flat(lambda x: (x.sin(), torch.ones(x.shape[0], 2) * 3))
    data = spread(graph, {"x": 0}).data
    assert {"x", "output_0"} <= data
    assert "output_1" not in data


def test_operators_have_short_names() -> None:
    """No namespace, no overload; Python's own functions by their names."""
    names = {operator_of(node) for node in flat(sound("picks")).operators()}
    assert {"tanh", "index", "arange", "sym_size"} <= names
