"""Tensors as arrays: the same values, whatever else a tensor is."""

from __future__ import annotations

import numpy as np
import torch

from lazybatch.partition.tensors import to_array


def test_values_stay_what_they_are() -> None:
    """A gradient is no matter, bfloat16 becomes float32 exactly, and a number is an array without axes."""
    value = torch.tensor([1.5, -2.25], requires_grad=True)
    for one in (value, value.to(torch.bfloat16)):
        array = to_array(one)
        assert array.dtype == np.float32
        assert array.tolist() == [1.5, -2.25]
    assert to_array(torch.tensor([True])).dtype == np.bool_
    assert to_array(3).dtype == np.int64
