"""The reference: a whole model in one ONNX Runtime session, run on one request or on a batch.

Owns: `Whole`, and what "equal" means: `assert_same_bits`, `assert_close`.
Must not know: lazybatch. Nothing here may share code with what it judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Feeds = Mapping[str, Any]


class Whole:
    """One optimised session over the model file, with one thread."""

    def __init__(self, path: Path, *, optimised: bool = True) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [tensor.name for tensor in self._session.get_inputs()]
        self.outputs = [tensor.name for tensor in self._session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """All outputs by name; whatever ONNX Runtime raises comes out as it is."""
        return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))


def same_bits(got: Any, want: Any) -> bool:
    """Equal type, shape and bits (NaN equals the same NaN); sequences and maps element by element."""
    if isinstance(want, list | tuple):
        return isinstance(got, list | tuple) and len(got) == len(want) and all(map(same_bits, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got == want
    if want is None or got is None:
        return got is want
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype == object:
        return bool(np.array_equal(got, want))
    return np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()


def describe(array: Any) -> str:
    """Type, shape and first numbers, for messages."""
    if isinstance(array, list | dict) or array is None:
        return repr(array)[:120]
    made = np.asarray(array)
    return f"{made.dtype}{list(made.shape)} {made.ravel()[:6]}"


def assert_same_bits(got: Mapping[str, Any], want: Mapping[str, Any], what: str) -> None:
    """Every output of ``want`` is in ``got``, bit for bit, and nothing else is."""
    assert set(got) == set(want), f"{what}: outputs {sorted(got)}, expected {sorted(want)}"
    for name, array in want.items():
        assert same_bits(got[name], array), f"{what}: {name!r} is {describe(got[name])}, expected {describe(array)}"


def assert_close(got: Mapping[str, Any], want: Mapping[str, Any], what: str, rtol: float, atol: float) -> None:
    """As `assert_same_bits`, but floats may differ by ``atol + rtol * |want|``; everything else must be equal."""
    assert set(got) == set(want), f"{what}: outputs {sorted(got)}, expected {sorted(want)}"
    for name, array in want.items():
        made, wanted = np.asarray(got[name]), np.asarray(array)
        text = f"{what}: {name!r} is {describe(made)}, expected {describe(wanted)}"
        assert made.dtype == wanted.dtype, text
        assert made.shape == wanted.shape, text
        if wanted.dtype.kind == "f":
            assert np.allclose(made, wanted, rtol=rtol, atol=atol, equal_nan=True), text
        else:
            assert same_bits(made, wanted), text
