"""Tensors as arrays.

Owns: `to_array`.
Must not know: modules, how they are cut. So little that whoever is given a tensor can have it without any of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lazybatch.partition.proof.rows import Array


def to_array(value: Any) -> Array:
    """A tensor (or Python number) as an array; bfloat16, which NumPy does not have, as float32."""
    if not isinstance(value, Tensor):
        return np.asarray(value)
    value = value.detach()
    if value.dtype is torch.bfloat16:
        value = value.to(torch.float32)
    array: Array = value.cpu().numpy()
    return array
