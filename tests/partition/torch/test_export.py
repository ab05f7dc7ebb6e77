"""torch.export's refusals, in words a user understands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lazybatch.errors import ModelError
from lazybatch.partition.torch.export import Refused, discovered, export, functional, with_rows
from lazybatch.partition.torch.source import read_source
from tests.torch_modules import Wrapped, sound

X = torch.randn(4, 6)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.reshape(4, 6), r"fixed number of rows \(4\)"),
        (lambda x: x * 2 if x.shape[0] > 3 else x, "decides by the number of rows .* 4 <= rows"),
        (lambda x: x[: max(1, x.shape[0] - 2)], "decides by the number of rows"),
        (lambda x: x if x.sum() > 0 else -x, "control flow depends on values"),
    ],
)
def test_rows_that_may_not_vary(function: Callable[[Tensor], Tensor], said: str) -> None:
    """Constants and branches by the number of rows, and branches by values, are named."""
    with pytest.raises(Refused, match=said):
        export(read_source(Wrapped(function), X), {"x": 0})


def test_what_cannot_be_exported_at_all() -> None:
    """Control flow by values is a `ModelError` that says so, with nothing printed besides."""
    with pytest.raises(ModelError, match=r"Wrapped.* control flow depends on values .*torch\.cond"):
        export(read_source(Wrapped(lambda x: x if x.sum() > 0 else -x), X), {})


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """torch prints half-made graphs when it fails; we do not."""
    with pytest.raises(ModelError):
        export(read_source(Wrapped(lambda x: x if x.sum() > 0 else -x), X), {})
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")


def test_in_place_operators_become_values() -> None:
    """After `functional`, no operator writes to its arguments."""
    for name in ("residual", "views"):
        source = read_source(sound(name).module(), sound(name).batch(2))
        program = functional(export(source, dict.fromkeys(source.names, 0)))
        for node in program.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                assert not node.target._schema.is_mutable


def test_rows_are_repeated_or_cut() -> None:
    """Any number of rows can be had from the examples, along the axes given."""
    source = read_source(sound("recurrent").module(), sound("recurrent").batch(2))
    shapes = [tuple(tensor.shape) for tensor in with_rows(source, {"steps": 1, "lengths": 0}, 3)]
    assert shapes == [(5, 3, 4), (1, 2, 6), (1, 2, 6), (3,)]


def test_tied_sizes_are_discovered() -> None:
    """Sizes that must be equal carry one symbol, whichever axis they stand on."""
    source = read_source(sound("recurrent").module(), sound("recurrent").batch(2))
    shapes: Any = discovered(source)
    rows = shapes[3][0]
    assert isinstance(rows, str)
    assert shapes[0][1] == shapes[1][1] == shapes[2][1] == rows
    assert discovered(read_source(Wrapped(lambda x: x if x.sum() > 0 else -x), X)) is None
