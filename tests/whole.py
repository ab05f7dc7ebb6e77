"""The reference: a whole model in one ONNX Runtime session, run on one request or on a batch.

Owns: `Whole`, `aligned`, and what "equal" means: `assert_same_bits`, `assert_close_to_peak`.
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
        self._session = _open(path, options)
        self.inputs = [tensor.name for tensor in self._session.get_inputs()]
        self.outputs = [tensor.name for tensor in self._session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """All outputs by name; whatever ONNX Runtime raises comes out as it is."""
        return dict(zip(self.outputs, self._session.run(None, aligned(feeds)), strict=True))


def aligned(feeds: Feeds) -> dict[str, Any]:
    """Copies that start at multiples of 64 bytes, as tensors made by ONNX Runtime do.

    Some of its sums start at the first aligned number, so that the last bits depend on where an input lies.
    """
    return {name: _aligned(value) for name, value in feeds.items()}


def _aligned(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    memory = np.empty(value.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    made = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    made[...] = value
    return made


def _open(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except RuntimeError as error:
        if "global thread pool" not in str(error):
            raise
        options.use_per_session_threads = False  # the process has a pool, and ONNX Runtime wants everybody to use it
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)


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


def close_to_peak(got: Any, want: Any, rtol: float, atol: float = 0.0) -> bool:
    """Same type and shape, and floats off by no more than ``atol + rtol`` times the largest finite number of ``want``.

    Everything but floats must have equal bits. Half precision is given 2e-3, two of its roundings, at least.
    """
    if same_bits(got, want):
        return True
    if not isinstance(want, np.ndarray | np.generic) or not isinstance(got, np.ndarray | np.generic):
        return False
    if want.dtype.kind != "f" or got.shape != want.shape or got.dtype != want.dtype:
        return False
    finite = np.abs(want[np.isfinite(want)])
    peak = float(finite.max()) if finite.size else 0.0
    if want.dtype == np.float16:
        rtol = max(rtol, 2e-3)
    return bool(np.allclose(got, want, rtol=0, atol=atol + rtol * peak, equal_nan=True))


def assert_close_to_peak(
    got: Mapping[str, Any], want: Mapping[str, Any], what: str, rtol: float, atol: float = 0
) -> None:
    """Every output is there and `close_to_peak`."""
    assert set(got) == set(want), f"{what}: outputs {sorted(got)}, expected {sorted(want)}"
    for name, array in want.items():
        if not close_to_peak(got[name], array, rtol, atol):
            off = ""
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.shape(got[name]) == array.shape:
                off = f" (off by {np.abs(got[name] - array).max():.3g}, largest {np.abs(array).max():.3g})"
            raise AssertionError(f"{what}: {name!r} is {describe(got[name])}, expected {describe(array)}{off}")
