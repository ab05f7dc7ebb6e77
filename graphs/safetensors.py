"""Weights in safetensors files.

Owns: `read`: the format is 8 bytes with the length of a JSON header, the header (name -> type, shape, place), the data.
Must not know: any model.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
_HEADER_MAX = 100_000_000


def read(path: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a file, by name. Raises `ValueError` saying what is wrong with it."""
    data = path.read_bytes()
    if len(data) < 8:
        raise ValueError(f"{path}: no safetensors file, {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(_HEADER_MAX, len(data) - 8):
        raise ValueError(f"{path}: no safetensors file, its header would have {length} bytes")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{path}: tensor {name!r} is of type {entry['dtype']}, which is not read here")
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + length + begin : 8 + length + end], dtype=_TYPES[entry["dtype"]])
        if values.size != int(np.prod(entry["shape"], dtype=np.int64)):
            raise ValueError(f"{path}: tensor {name!r} has {values.size} values for the shape {entry['shape']}")
        tensors[name] = values.reshape(entry["shape"])
    return tensors
