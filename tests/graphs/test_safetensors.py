"""Safetensors files: what was written is read, and what is none is refused with a reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.safetensors import read


def write(path: Path, header: dict[str, Any], data: bytes) -> Path:
    """A file as the format says."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_tensors_come_back(tmp_path: Path) -> None:
    """Types, shapes and values, in any order of places; the metadata is no tensor."""
    floats, numbers = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7], dtype=np.int64)
    header = {
        "__metadata__": {"format": "np"},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "one": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    found = read(write(tmp_path / "w", header, floats.tobytes() + numbers.tobytes()))
    np.testing.assert_array_equal(found["a"], floats)
    np.testing.assert_array_equal(found["b"], numbers)
    assert found["one"].shape == ()
    assert set(found) == {"a", "b", "one"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}, "tensor 'x' is of type BF16"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}, r"tensor 'x' has 1 values for the shape \[3\]"),
    ],
)
def test_tensors_that_cannot_be_read(entry: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Types that NumPy lacks and shapes that do not fit name the tensor."""
    with pytest.raises(ValueError, match=said):
        read(write(tmp_path / "w", {"x": entry}, bytes(4)))


@pytest.mark.parametrize("content", [b"", b"\xff" * 12])
def test_files_that_are_none(content: bytes, tmp_path: Path) -> None:
    """Too short, or with a header longer than the file."""
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no safetensors file"):
        read(path)
