"""Rows of tensors: appended, selected, and lying in memory as before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lazybatch.executors.torch.rows import appended, selected


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    """A tensor whose dimensions lie in any order, the axis of its rows, and their number; a row may own several."""
    rows, share = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dims = draw(st.lists(st.integers(1, 3), min_size=0, max_size=3))
    axis = draw(st.integers(0, len(dims)))
    shape = [*dims[:axis], rows * share, *dims[axis:]]
    order = draw(st.permutations(range(len(shape))))
    memory = torch.arange(float(torch.Size(shape).numel())).reshape([shape[dim] for dim in order])
    return memory.permute([order.index(dim) for dim in range(len(shape))]), axis, rows


def steps(value: torch.Tensor) -> list[int]:
    """Dimensions longer than 1 from the widest to the narrowest step."""
    return sorted((d for d in range(value.ndim) if value.shape[d] > 1), key=lambda d: -value.stride(d))


@given(laid_out())
def test_appending_keeps_values_and_layout(drawn: tuple[torch.Tensor, int, int]) -> None:
    """The second tensor's rows stand behind the first's, and dimensions lie in the order they lay in."""
    value, axis, _ = drawn
    made = appended([value, value + 100], axis)
    assert torch.equal(made, torch.cat([value, value + 100], axis))
    before = [dim for dim in steps(made) if value.shape[dim] > 1]
    assert before == steps(value)


@given(laid_out(), st.data())
def test_selecting_keeps_values_and_layout(drawn: tuple[torch.Tensor, int, int], data: st.DataObject) -> None:
    """Chosen rows in the chosen order, each with its whole share."""
    value, axis, rows = drawn
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True))
    made = selected(value, axis, rows, order)
    parts = value.chunk(rows, axis)
    assert torch.equal(made, torch.cat([parts[k] for k in order], axis))
    assert [dim for dim in steps(value) if made.shape[dim] > 1] == steps(made)


def test_channels_last_stays() -> None:
    """The layout that convolutions prefer survives a merge and an eviction."""
    value = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    for made in (appended([value, value], 0), selected(value, 0, 3, [2, 0])):
        assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", [[0], [0, 1]])
def test_rows_at_the_front_are_not_moved(order: list[int]) -> None:
    """Dropping the last rows copies nothing."""
    value = torch.randn(3, 4)
    assert selected(value, 0, 3, order).data_ptr() == value.data_ptr()
