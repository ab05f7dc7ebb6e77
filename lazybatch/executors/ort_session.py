"""The one place where ONNX Runtime sessions are made.

Owns: the process-wide thread pool and arena every session shares, and the options sessions are opened with.
Must not know: partitions, batches, schedulers.

Sessions with a thread pool each fight for the cores (ten times slower for a chain of thirty nodes), so one global pool
serves all of them. It can be set up only before the first session of the process; where somebody else was faster,
sessions fall back to pools of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybatch.errors import ModelError

WEIGHTS_FILE = "weights.bin"
"""Weights of a saved optimised model lie in this file beside it, so that all pieces map one copy."""

_lock = threading.Lock()
_shared: bool | None = None


def runtime() -> Any:
    """The onnxruntime module. Raises `ModelError` naming the extra to install where it is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("serving ONNX models needs onnxruntime: pip install 'lazybatch[onnx]'") from error
    return onnxruntime


def share_threads(threads: int | None = None) -> bool:
    """Set up the global pool and arena, once per process; the first caller's ``threads`` wins.

    Returns False where another library opened a session first, so that no global pool can be had.
    """
    global _shared
    ort = runtime()
    with _lock:
        if _shared is None:
            try:
                ort.set_global_thread_pool_sizes(threads or len(os.sched_getaffinity(0)), 1)
                arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
                ort.create_and_register_allocator(arena, None)
                _shared = True
            except Exception:
                _shared = False
        return _shared


def open_session(
    model: Path | bytes,
    *,
    optimise: bool,
    save_to: Path | None = None,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    folder: Path | None = None,
    profile_to: Path | None = None,
) -> Any:
    """Open a session on a file or on serialised bytes.

    save_to: write the optimised model there, its weights beside it in `WEIGHTS_FILE`.
    folder: where the external data of a model given as bytes lies.
    profile_to: prefix of a per-operator profile (milliseconds matter more than the overhead it brings).
    Raises whatever ONNX Runtime raises; callers know what to call the culprit.
    """
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    if share_threads(threads):
        options.use_per_session_threads = False
        options.add_session_config_entry("session.use_env_allocators", "1")
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", f"{folder}{os.sep}")
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    source = str(model) if isinstance(model, Path) else model
    return ort.InferenceSession(source, options, providers=list(providers or ("CPUExecutionProvider",)))
